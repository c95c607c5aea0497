//! One run: two devices, connections between them, and what the program does with these, all in
//! one thread and in an order that the seed decides.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use dat_core::testing::device::soft::{ConnRequest, Listener, Soft};
use dat_core::testing::device::*;
use dat_core::testing::kernel::{Instant, install};

use super::end::{Allowed, End};
use super::faults::Faults;
use super::memory::byte;
use super::net::FIRST_PORT;
use super::plan::{Answer, ConnectionPlan, Disaster, Ending, Plan};
use super::rng::Rng;
use super::world::{HOSTS, MILLI, Nanos, SECOND, Sim, World};

/// Steps of a run at most.
const MAX_STEPS: u64 = 500_000;
/// How long a connection may take of which nothing is to be waited for.
const MAX_TIME: Nanos = 100 * SECOND;
/// The same if something has happened to the connection: the longest limits are those of the kernel.
const MAX_TIME_FAILED: Nanos = 2000 * SECOND;

/// How long the timers of an engine may run that has no connections.
const LAST_TIMERS: Nanos = 5 * MILLI;

/// What has happened in a run.
#[derive(Default, Clone, Copy)]
pub struct Counts {
    pub runs: u64,
    pub steps: u64,
    pub calls: u64,
    pub established: u64,
    pub requests: u64,
    pub succeeded: u64,
    pub bytes: u64,
    pub tainted: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.calls += other.calls;
        self.established += other.established;
        self.requests += other.requests;
        self.succeeded += other.succeeded;
        self.bytes += other.bytes;
        self.tainted += other.tainted;
    }
}

/// The requests that a listener has got.
#[derive(Default)]
struct Requests(Mutex<VecDeque<ConnRequest>>);

impl ListenHandler<Soft> for Requests {
    fn request(&self, request: ConnRequest) {
        self.0.lock().unwrap().push_back(request);
    }
}

/// A connection of the program.
struct Connection {
    plan: ConnectionPlan,
    /// The active and the passive end.
    ends: [End; 2],
    requests: Arc<Requests>,
    listener: Option<Listener>,
    listened: bool,
    connected: bool,
    answered: bool,
    /// Whether something has happened that only this connection may suffer from.
    struck: bool,
    /// Steps that the passive program takes before the answer.
    patience: u64,
}

/// See the module.
struct Run {
    world: Rc<RefCell<World>>,
    rng: Rng,
    devices: [Option<Arc<Soft>>; 2],
    connections: Vec<Connection>,
    steps: u64,
    /// Number of steps in a row in which nothing could be done.
    idle: u64,
    /// Whether the programs have nothing to do before something happens.
    settled: bool,
    trace: bool,
}

/// Whose calls are served while the value lives.
fn enter(world: &Rc<RefCell<World>>, process: usize, context: Option<usize>) {
    let world = &mut *world.borrow_mut();
    world.process = process;
    world.context = context;
}

/// Private data of a connection: of the request, or of the answer.
fn private_data(connection: usize, which: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| byte((connection * 2 + which) as u64, at))
        .collect()
}

/// The qualifier of a connection.
fn qualifier(index: usize, wide: bool) -> u64 {
    let port = u64::from(FIRST_PORT) + index as u64;
    if wide { port << 32 } else { port }
}

/// Runs the seed.
///
/// # Errors
/// What the library has done that it must not do.
pub fn run(seed: u64, trace: bool) -> Result<Counts, String> {
    let mut rng = Rng::new(seed);
    let plan = Plan::random(&mut rng);
    let faults = Faults::of(&mut rng, plan.connections.len());
    let count = plan.connections.len();
    let mut world = World::new(Rng::new(rng.next()), plan.weather.clone(), faults, count);
    world.trace = trace;
    if trace {
        println!("weather: {:?}\nfaults: {:?}", world.weather, world.faults);
        for (index, c) in plan.connections.iter().enumerate() {
            println!(
                "connection {index}: {} connects, {:?}, {:?}, {:?}, wide {}",
                c.active, c.answer, c.ending, c.disaster, c.wide
            );
            for (end, plan) in c.ends.iter().enumerate() {
                println!(
                    "  end {end}: {:?}, {} receives",
                    plan.ops,
                    plan.receives.len()
                );
            }
        }
    }
    let world = Rc::new(RefCell::new(world));
    install(Some(Box::new(Sim(world.clone()))));
    let result = open_and_go(&world, plan, rng, trace);
    install(None);
    result
}

fn open_and_go(
    world: &Rc<RefCell<World>>,
    plan: Plan,
    rng: Rng,
    trace: bool,
) -> Result<Counts, String> {
    let mut devices = [None, None];
    for (process, params) in plan.params.iter().enumerate() {
        let victim = world.borrow().faults.victim;
        enter(world, process, plan.open_fails.then_some(victim));
        match Soft::open(params) {
            Ok(device) => devices[process] = Some(device),
            Err(_) if world.borrow().tainted[victim] => {
                drop(devices);
                for process in 0..2 {
                    enter(world, process, None);
                    expect_closed(&world.borrow(), process)?;
                }
                return Ok(Counts::default());
            }
            Err(error) => return Err(format!("the device cannot be opened: {error}")),
        }
    }
    let mut run = Run {
        world: world.clone(),
        rng,
        devices,
        connections: Vec::new(),
        steps: 0,
        idle: 0,
        settled: false,
        trace,
    };
    for plan in plan.connections {
        run.add(plan);
    }
    run.go()?;
    run.finish()
}

/// Nothing of a process is open.
fn expect_closed(world: &World, process: usize) -> Result<(), String> {
    match world.descriptors(process) {
        (0, 0) => Ok(()),
        (all, _) => Err(format!(
            "{all} descriptors of process {process} are open at the end:\n{}",
            world.describe(process)
        )),
    }
}

impl Run {
    fn note(&self, what: std::fmt::Arguments<'_>) {
        if self.trace {
            let now = self.world.borrow().now as f64 / 1e9;
            println!("{now:>12.6} == {what}");
        }
    }

    fn device(&self, process: usize) -> &Arc<Soft> {
        self.devices[process].as_ref().expect("the run goes on")
    }

    fn enter(&self, process: usize, context: Option<usize>) {
        enter(&self.world, process, context);
    }

    fn is_dead(&self, process: usize) -> bool {
        self.world.borrow().processes[process].dead
    }

    fn now(&self) -> Nanos {
        self.world.borrow().now - SECOND
    }

    fn add(&mut self, mut plan: ConnectionPlan) {
        let [a, b] = std::mem::take(&mut plan.ends);
        let end = |run: &Run, process: usize, plan| {
            run.enter(process, None);
            End::new(run.device(process), process, plan)
        };
        let mut ends = [end(self, plan.active, a), end(self, 1 - plan.active, b)];
        let [a, b] = &mut ends;
        a.find_read_keys(b);
        b.find_read_keys(a);
        self.connections.push(Connection {
            plan,
            ends,
            requests: Arc::default(),
            listener: None,
            listened: false,
            connected: false,
            answered: false,
            struck: false,
            patience: self.rng.below(6),
        });
    }

    /// What may happen to a connection by now.
    fn allowed(&self, index: usize) -> Allowed {
        let connection = &self.connections[index];
        let ends = &connection.ends;
        let mut failure = connection.struck || self.world.borrow().tainted[index];
        failure |= ends.iter().any(|end| end.bad_posted);
        let left = ends.iter().filter_map(|end| end.left);
        let ended = left.map(|(graceful, _)| graceful).reduce(|a, b| a && b);
        Allowed { failure, ended }
    }

    /// Checks what the library has reported to the ends of one process, or of both.
    fn collect(&mut self, index: usize, only: Option<usize>) -> Result<(), String> {
        let allowed = self.allowed(index);
        for end in 0..2 {
            let process = self.connections[index].ends[end].process;
            if only.is_some_and(|only| only != process) || self.is_dead(process) {
                continue;
            }
            self.enter(process, None);
            let [a, b] = &mut self.connections[index].ends;
            let (own, peer) = if end == 0 { (a, b) } else { (b, a) };
            let before = (own.established.is_some(), own.over.is_some());
            own.collect(peer, allowed)
                .map_err(|error| format!("connection {index}, end {end}: {error}"))?;
            if before != (own.established.is_some(), own.over.is_some()) {
                let over = own.over.clone();
                self.note(format_args!("connection {index}, end {end}: over {over:?}"));
                self.check_beginning(index, end)?;
            }
        }
        Ok(())
    }

    /// The attempt has led to what the program has answered.
    fn check_beginning(&self, index: usize, end: usize) -> Result<(), String> {
        let allowed = self.allowed(index);
        let connection = &self.connections[index];
        let own = &connection.ends[end];
        let fail = |what: &str| {
            let got = (&own.established.is_some(), &own.over);
            Err(format!(
                "connection {index}, end {end}: {got:?}, expected {what}"
            ))
        };
        let wanted = private_data(index, 1, connection.plan.private_data[1]);
        if let Some(data) = &own.established {
            let expected: &[u8] = if end == 0 { &wanted } else { b"" };
            if **data != *expected {
                return fail("other private data");
            }
        }
        if let Some(CmEvent::PeerRejected { private_data }) = &own.over
            && (connection.plan.answer != Answer::Reject || **private_data != *wanted)
        {
            return fail("no rejection, or other private data");
        }
        if allowed.failure || allowed.ended.is_some() || end == 1 {
            return Ok(());
        }
        match (connection.plan.answer, &own.over) {
            (Answer::Accept, None)
            | (Answer::Reject, Some(CmEvent::PeerRejected { .. }))
            | (Answer::Drop | Answer::NoListener, Some(CmEvent::NonPeerRejected))
            | (Answer::Late, Some(CmEvent::TimedOut)) => Ok(()),
            _ => fail(&format!("{:?}", connection.plan.answer)),
        }
    }

    /// A step of the program on a connection; false if there was nothing to do.
    fn program(&mut self, index: usize) -> Result<bool, String> {
        let any = self.act(index)?;
        self.collect(index, None)?;
        Ok(any)
    }

    fn act(&mut self, index: usize) -> Result<bool, String> {
        let now = self.now();
        let connection = &self.connections[index];
        let (active, passive) = (connection.ends[0].process, connection.ends[1].process);
        if !connection.listened && now >= connection.plan.listens_at {
            self.connections[index].listened = true;
            if connection_listens(&self.connections[index].plan) && !self.is_dead(passive) {
                self.listen(index, passive)?;
                return Ok(true);
            }
        }
        let connection = &self.connections[index];
        if !connection.connected && now >= connection.plan.connects_at {
            self.connections[index].connected = true;
            if !self.is_dead(active) {
                return self.connect(index, active).map(|()| true);
            }
        }
        if !self.is_dead(passive) && self.answer(index, passive)? {
            return Ok(true);
        }
        let first = self.rng.below(2) as usize;
        for end in [first, 1 - first] {
            let process = self.connections[index].ends[end].process;
            if !self.is_dead(process) && self.work(index, end)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn listen(&mut self, index: usize, process: usize) -> Result<(), String> {
        self.enter(process, Some(index));
        let connection = &self.connections[index];
        let qual = qualifier(index, connection.plan.wide);
        let handler = connection.requests.clone();
        let listener = self.device(process).listen(qual, 4, handler);
        self.note(format_args!(
            "listen {index}: {:?}",
            listener.as_ref().map(|_| ())
        ));
        match listener {
            Ok(listener) => self.connections[index].listener = Some(listener),
            Err(_) if self.allowed(index).failure => {}
            Err(error) => return Err(format!("connection {index} has no listener: {error:?}")),
        }
        Ok(())
    }

    fn connect(&mut self, index: usize, process: usize) -> Result<(), String> {
        self.enter(process, Some(index));
        let connection = &self.connections[index];
        let to = SocketAddr::from((HOSTS[1 - process], 9));
        let plan = &connection.plan;
        let data = private_data(index, 0, plan.private_data[0]);
        let qual = qualifier(index, plan.wide);
        let end = &connection.ends[0];
        let connected = self
            .device(process)
            .connect(end.qp(), to, qual, plan.timeout, &data);
        self.note(format_args!("connect {index}: {connected:?}"));
        match connected {
            Ok(()) => self.connections[index].ends[0].begun = true,
            Err(_) if self.allowed(index).failure => {}
            Err(error) => return Err(format!("connection {index} is refused: {error:?}")),
        }
        Ok(())
    }

    /// The passive program answers a request.
    fn answer(&mut self, index: usize, process: usize) -> Result<bool, String> {
        let connection = &mut self.connections[index];
        if connection.requests.0.lock().unwrap().is_empty() {
            return Ok(false);
        }
        let answer = connection.plan.answer;
        if answer == Answer::Late && !connection.answered && connection.ends[0].over.is_none() {
            return Ok(false);
        }
        if connection.patience > 0 {
            connection.patience -= 1;
            return Ok(true);
        }
        let request = connection.requests.0.lock().unwrap().pop_front();
        let Some(request) = request else {
            return Ok(false);
        };
        let again = std::mem::replace(&mut connection.answered, true);
        let plan = &connection.plan;
        let expected = private_data(index, 0, plan.private_data[0]);
        if request.private_data() != expected {
            return Err(format!("request {index} has other private data"));
        }
        let data = private_data(index, 1, plan.private_data[1]);
        self.note(format_args!("answer {index}: {answer:?}, again {again}"));
        self.enter(process, Some(index));
        if again {
            if !self.allowed(index).failure {
                return Err(format!("request {index} arrives twice"));
            }
            drop(request);
            return Ok(true);
        }
        match answer {
            Answer::Accept | Answer::Late => {
                let qp = self.connections[index].ends[1].qp().clone();
                self.connections[index].ends[1].begun = true;
                match self.device(process).accept(request, &qp, &data) {
                    Ok(()) => {}
                    Err(_) if self.allowed(index).failure => {}
                    Err(error) => return Err(format!("accept {index}: {error:?}")),
                }
            }
            Answer::Reject => self.device(process).reject(request, &data),
            Answer::Drop | Answer::NoListener => drop(request),
        }
        Ok(true)
    }

    /// The program of an end does something.
    fn work(&mut self, index: usize, which: usize) -> Result<bool, String> {
        let fail = |error| format!("connection {index}, end {which}: {error}");
        let process = self.connections[index].ends[which].process;
        self.enter(process, Some(index));
        let most = self.rng.pick(&[1, 1, 3, 8]);
        let all_done = self.connections[index].ends.iter().all(End::is_done);
        let failure = self.allowed(index).failure;
        let connection = &mut self.connections[index];
        let ending = connection.plan.ending;
        let [a, b] = &mut connection.ends;
        let (end, peer) = if which == 0 { (a, &*b) } else { (b, &*a) };
        let mut any = false;
        if end.over.is_none() {
            let early = end.next_receive < end.early;
            if early || end.is_up() {
                for _ in 0..most {
                    any |= end.post_receive().map_err(fail)?;
                }
            }
        }
        if !end.is_up() {
            return Ok(any);
        }
        end.steps += 1;
        if end.left.is_none() {
            for _ in 0..most {
                any |= end.post_request(peer).map_err(fail)?;
            }
        }
        let mine = ending.end == which;
        let due = match ending.after {
            Some(steps) => mine && end.steps > steps,
            None => mine && all_done,
        };
        let follows = ending.both && all_done && !mine;
        // After a failure that the library need not notice the program ends the connection.
        let gives_up = failure && end.steps > 100;
        let waits = mine && ending.after.is_some();
        if end.left.is_none() && (due || follows || gives_up) {
            self.leave(index, which, ending.graceful && !gives_up);
            any = true;
        } else {
            // So that time does not pass.
            any |= end.left.is_none() && (waits || failure);
        }
        Ok(any)
    }

    fn leave(&mut self, index: usize, which: usize, graceful: bool) {
        self.note(format_args!(
            "disconnect {index}, end {which}, graceful {graceful}"
        ));
        let connection = &mut self.connections[index];
        let end = &mut connection.ends[which];
        end.left = Some((graceful, end.next_op));
        let (process, qp) = (end.process, end.qp().clone());
        connection.ends[1 - which].peer_left = true;
        self.enter(process, None);
        qp.disconnect(graceful);
    }

    /// Has a device do what there is to do, in one of the ways in which it may be served.
    fn serve(&mut self, process: usize) -> Result<(), String> {
        self.enter(process, None);
        let way = self.rng.below(8);
        let device = self.device(process);
        match way {
            0..3 => device.progress(),
            3..7 => device.serve_once(),
            _ => {
                let word = AtomicU32::new(0);
                device.block(&word, 0, Some(Instant::now()));
            }
        }
        (0..self.connections.len()).try_for_each(|index| self.collect(index, Some(process)))
    }

    /// A disaster of a connection, if its time has come.
    fn strike(&mut self) {
        for index in 0..self.connections.len() {
            let Some((at, what)) = self.connections[index].plan.disaster else {
                continue;
            };
            if self.steps < at || self.connections[index].struck {
                continue;
            }
            self.note(format_args!("disaster {index}: {what:?}"));
            self.settled = false;
            self.connections[index].struck = true;
            match what {
                Disaster::Reset => self.world.borrow_mut().reset_connection(index),
                Disaster::Silence => self.world.borrow_mut().silence(index),
                Disaster::Kill(process) => {
                    self.world.borrow_mut().kill(process);
                    self.connections.iter_mut().for_each(|c| c.struck = true);
                }
            }
        }
    }

    /// Whether a connection has nothing left to do.
    fn is_over(&self, index: usize) -> bool {
        let connection = &self.connections[index];
        let end_over = |end: &End| !end.begun || end.over.is_some() || self.is_dead(end.process);
        let begun = connection.connected || self.is_dead(connection.ends[0].process);
        // A request that arrives late is dropped with the listener.
        begun && connection.ends.iter().all(end_over)
    }

    /// One step; an error if nothing can ever happen again.
    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(format!("not over after {MAX_STEPS} steps"));
        }
        let hot = {
            let world = self.world.borrow();
            [0, 1].map(|p| world.processes[p].hot && !world.processes[p].dead)
        };
        let busy = hot[0] || hot[1];
        let choice = self.rng.below(100);
        if busy && choice < 55 {
            let process = match hot {
                [true, true] => self.rng.below(2) as usize,
                [first, _] => usize::from(!first),
            };
            self.settled = false;
            return self.serve(process);
        }
        if choice > 97 {
            // Polls that find nothing.
            let process = self.rng.below(2) as usize;
            if !self.is_dead(process) {
                return self.serve(process);
            }
        }
        if choice < 80 && !self.settled {
            let index = self.rng.below(self.connections.len() as u64) as usize;
            return self.program(index).map(|_| ());
        }
        self.advance(busy)
    }

    /// Lets time pass; not for long while somebody has something to do.
    fn advance(&mut self, busy: bool) -> Result<(), String> {
        let (now, next) = {
            let mut world = self.world.borrow_mut();
            (world.now, world.next_time())
        };
        let soon = next.is_some_and(|next| next <= now + MILLI / 5);
        if busy && !soon {
            return Ok(());
        }
        if !soon && !self.settled {
            // The program does all that it can first.
            for index in 0..self.connections.len() {
                if self.program(index)? {
                    return Ok(());
                }
            }
            self.settled = true;
        }
        if !soon {
            let due = |c: &Connection| {
                let listens = (!c.listened).then_some(c.plan.listens_at);
                let connects = (!c.connected).then_some(c.plan.connects_at);
                listens.into_iter().chain(connects).min()
            };
            let due = self.connections.iter().filter_map(due).min();
            if let Some(due) = due.map(|due| due + SECOND)
                && next.is_none_or(|next| due <= next)
            {
                let world = &mut *self.world.borrow_mut();
                world.now = world.now.max(due);
                self.settled = false;
                return Ok(());
            }
        }
        if self.world.borrow_mut().step() || busy {
            self.idle = 0;
            return Ok(());
        }
        self.idle += 1;
        match self.idle > 100 {
            true => Err("nothing happens any more, and connections are open".into()),
            false => Ok(()),
        }
    }

    fn go(&mut self) -> Result<(), String> {
        while (0..self.connections.len()).any(|index| !self.is_over(index)) {
            self.strike();
            self.step()?;
            let failed = (0..self.connections.len()).any(|index| {
                self.allowed(index).failure || self.connections[index].plan.answer == Answer::Late
            });
            let limit = if failed { MAX_TIME_FAILED } else { MAX_TIME };
            if self.now() > limit {
                return Err(format!("not over after {} s", limit / SECOND));
            }
        }
        Ok(())
    }

    /// All is over: checks what is left.
    fn finish(mut self) -> Result<Counts, String> {
        let mut counts = Counts {
            runs: 1,
            steps: self.steps,
            ..Counts::default()
        };
        for index in 0..self.connections.len() {
            let [a, b] = &self.connections[index].ends;
            for (which, end, peer) in [(0, a, b), (1, b, a)] {
                end.check_memory(peer)
                    .map_err(|e| format!("connection {index}, end {which}: {e}"))?;
                counts.established += u64::from(end.established.is_some());
                counts.requests += end.next_op as u64;
                for (number, op) in end.ops.iter().enumerate() {
                    if end.succeeded[number] {
                        counts.succeeded += 1;
                        counts.bytes += op.len as u64;
                    }
                }
            }
            self.check_complete(index)?;
            counts.tainted += u64::from(self.allowed(index).failure);
        }
        self.release()?;
        counts.calls = self.world.borrow().calls;
        Ok(counts)
    }

    /// A connection to which nothing has happened has done all of its work.
    fn check_complete(&self, index: usize) -> Result<(), String> {
        let connection = &self.connections[index];
        let Ending { after, .. } = connection.plan.ending;
        if self.allowed(index).failure || connection.plan.answer != Answer::Accept {
            return Ok(());
        }
        let [a, b] = &connection.ends;
        for (which, end, peer) in [(0, a, b), (1, b, a)] {
            let fail = |what: String| Err(format!("connection {index}, end {which}: {what}"));
            if end.established.is_none() {
                return fail("was never established".into());
            }
            if after.is_none() && (!end.is_done() || !end.succeeded.iter().all(|done| *done)) {
                return fail("has not done all".into());
            }
            // What was posted before a graceful end of this end alone has arrived.
            if let Some((true, posted)) = end.left
                && peer.left.is_none()
            {
                let lost = (0..posted).find(|number| !end.succeeded[*number]);
                if let Some(number) = lost {
                    return fail(format!(
                        "request {number} of a graceful end has not succeeded"
                    ));
                }
                let sends = end.ops[..posted].iter();
                let sends = sends.filter(|op| matches!(op.kind, super::plan::Kind::Send { .. }));
                if peer.received < sends.count() {
                    return fail("a message before a graceful end was not received".into());
                }
            }
        }
        Ok(())
    }

    /// Destroys everything; nothing may be left.
    fn release(&mut self) -> Result<(), String> {
        for index in 0..self.connections.len() {
            for which in 0..2 {
                let process = self.connections[index].ends[which].process;
                self.enter(process, None);
                self.connections[index].ends[which].release();
                if which == 1 {
                    let requests = self.connections[index].requests.clone();
                    let left = std::mem::take(&mut *requests.0.lock().unwrap());
                    drop(left);
                    self.connections[index].listener = None;
                }
            }
        }
        // Streams that were ended are read to their end by the peer.
        let limit = self.world.borrow().now + 60 * SECOND;
        let mut closed_at = None;
        for round in 0.. {
            for process in 0..2 {
                while !self.is_dead(process) && self.world.borrow().processes[process].hot {
                    self.enter(process, None);
                    self.device(process).serve_once();
                }
            }
            let idle = (0..2).all(|p| self.is_dead(p) || self.is_idle(p));
            let closed = (0..2).all(|p| self.is_dead(p) || self.device(p).remains().sources == 0);
            let mut world = self.world.borrow_mut();
            // The timers of connections are gone with these; others are short.
            let since = *closed_at.get_or_insert(world.now);
            if !closed {
                closed_at = None;
            } else if !idle && world.now > since + LAST_TIMERS {
                break;
            }
            if idle || world.now > limit || round > 100_000 || !world.step() {
                break;
            }
        }
        for process in 0..2 {
            if self.is_dead(process) {
                continue;
            }
            if !self.is_idle(process) {
                return Err(format!(
                    "process {process} still has {:?}:\n{}",
                    self.device(process).remains(),
                    self.world.borrow().describe(process)
                ));
            }
        }
        for connection in std::mem::take(&mut self.connections) {
            for end in connection.ends {
                self.enter(end.process, None);
                drop(end);
            }
        }
        for process in 0..2 {
            self.enter(process, None);
            let device = self.devices[process].take().expect("the run ends here");
            if !self.is_dead(process) && Arc::strong_count(&device) != 1 {
                let count = Arc::strong_count(&device);
                return Err(format!("{count} references to device {process} are left"));
            }
            drop(device);
            if !self.is_dead(process) {
                expect_closed(&self.world.borrow(), process)?;
            }
        }
        Ok(())
    }

    /// Whether a device has nothing left but itself.
    fn is_idle(&self, process: usize) -> bool {
        let (_, sockets) = self.world.borrow().descriptors(process);
        sockets == 0 && self.device(process).remains() == Default::default()
    }
}

/// Whether the passive program listens for a connection.
fn connection_listens(plan: &ConnectionPlan) -> bool {
    plan.answer != Answer::NoListener
}
