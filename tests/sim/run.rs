//! One run: two devices, connections between them, and what the program does with these, all in
//! one thread and in an order that the seed decides.

mod checks;
mod program;
mod release;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dat_core::testing::device::soft::{ConnRequest, Listener, Soft};
use dat_core::testing::device::*;
use dat_core::testing::handle::pin::pin;
use dat_core::testing::kernel::{Instant, install};

use self::release::{end_process, expect_closed};
use super::end::End;
use super::faults::Faults;
use super::plan::{Answer, ConnectionPlan, Disaster, Plan, Service, Transport};
use super::rng::Rng;
use super::world::kernel::Sim;
use super::world::processes::Thread;
use super::world::{MILLI, Nanos, SECOND, World};

/// Steps of a run at most.
const MAX_STEPS: u64 = 500_000;
/// How long a connection may take of which nothing is to be waited for.
const MAX_TIME: Nanos = 100 * SECOND;
/// The same if something has happened to the connection: the longest limits are those of the kernel.
const MAX_TIME_FAILED: Nanos = 2000 * SECOND;

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
    pub segments: u64,
    /// How long the runs have taken, in real time.
    pub time: Duration,
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
        self.segments += other.segments;
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
    /// For each process who serves its device.
    service: [Service; 2],
    /// Whether no connection is ended before all is done on each of them.
    ends_together: bool,
    steps: u64,
    /// Whether the programs have nothing to do before something happens.
    settled: bool,
    trace: bool,
}

/// Whose calls are served while the value lives.
fn enter(world: &Rc<RefCell<World>>, process: usize, context: Option<usize>) {
    let world = &mut *world.borrow_mut();
    world.process = process;
    world.context = context;
    world.touched = context;
}

/// Runs the seed.
///
/// # Errors
/// What the library has done that it must not do.
pub fn run(seed: u64, transport: Transport, trace: bool) -> Result<Counts, String> {
    let mut rng = Rng::new(seed);
    // The others are as they were before there were these operations.
    let extended = seed % 4 == 3;
    let plan = Plan::random(&mut rng, transport, extended);
    let faults = Faults::of(&mut rng, plan.connections.len());
    let active = plan.connections.iter().map(|c| c.active).collect();
    let mut world = World::new(Rng::new(rng.next()), plan.weather.clone(), faults, active);
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
    let mut result = open_and_go(&world, plan, rng, trace);
    for process in 0..2 {
        enter(&world, process, None);
        end_process(&world, process);
        let dead = world.borrow().processes[process].dead;
        if let (Ok(_), false) = (&result, dead) {
            result = expect_closed(&world.borrow(), process).and(result);
        }
    }
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
        service: plan.service,
        ends_together: plan.ends_together,
        steps: 0,
        settled: false,
        trace,
    };
    for plan in plan.connections {
        run.add(plan);
    }
    run.go()?;
    run.finish()
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

    /// Whether a process is neither dead nor stopped.
    fn runs(&self, process: usize) -> bool {
        self.world.borrow().runs(process)
    }

    fn is_stopped(&self, process: usize) -> bool {
        !self.runs(process) && !self.is_dead(process)
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
        let index = self.connections.len();
        for end in &mut ends {
            let (at, len) = end.memory.region();
            let regions = &mut self.world.borrow_mut().regions;
            regions.push((at..at + len, index));
        }
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

    /// Has a device do what there is to do, in one of the ways in which it may be served.
    fn serve(&mut self, process: usize) -> Result<(), String> {
        self.enter(process, None);
        let way = match self.service[process] {
            Service::Any => self.rng.below(8),
            Service::Thread => 3,
        };
        let device = self.device(process);
        match way {
            0..3 => {
                let outcome = device.poll_events(&pin());
                if outcome == PollOutcome::NeedsProgress {
                    device.progress();
                }
            }
            3..7 => device.serve_once(),
            _ => {
                let word = AtomicU32::new(0);
                device.block(&word, 0, Some(Instant::now()));
            }
        }
        (0..self.connections.len()).try_for_each(|index| self.collect(index, Some(process)))
    }

    /// Runs a thread that was started, of a process that is not stopped; false if there is none.
    fn run_thread(&mut self) -> bool {
        let thread = {
            let world = &mut *self.world.borrow_mut();
            let ready = |thread: &Thread| world.runs(thread.process);
            match world.threads.iter().position(ready) {
                Some(number) => world.threads.remove(number),
                None => return false,
            }
        };
        self.settled = false;
        self.enter(thread.process, None);
        (thread.body)();
        true
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
            // Who connects to a process that cannot listen yet gives up after a while.
            let listened = self.connections.iter().all(|c| c.listened);
            if matches!(what, Disaster::Stop(..)) && !listened {
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
                Disaster::KillInCall(process, calls) => {
                    let process = &mut self.world.borrow_mut().processes[process];
                    process.calls_left.get_or_insert(calls);
                }
                Disaster::Stop(process, time) => self.world.borrow_mut().stop(process, time),
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
            [0, 1].map(|p| world.processes[p].hot && world.runs(p))
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
            // Polls that find nothing, unless the process has something to do.
            let process = self.rng.below(2) as usize;
            if self.runs(process) && self.service[process] == Service::Any {
                self.settled &= !hot[process];
                return self.serve(process);
            }
        }
        if choice < 65 && self.run_thread() {
            return Ok(());
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
        let due = |c: &Connection| {
            let listens = (!c.listened).then_some(c.plan.listens_at);
            let connects = (!c.connected).then_some(c.plan.connects_at);
            [listens, connects, Some(c.plan.idle_until)]
        };
        let due = self.connections.iter().flat_map(due).flatten();
        let due = due.map(|due| due + SECOND).filter(|due| *due > now).min();
        if let Some(due) = due
            && next.is_none_or(|next| due <= next)
        {
            let world = &mut *self.world.borrow_mut();
            world.now = world.now.max(due);
            self.settled = false;
            return Ok(());
        }
        if self.run_thread() {
            return Ok(());
        }
        let stopped = [0, 1].map(|p| !self.runs(p));
        let stepped = self.world.borrow_mut().step();
        // A process that goes on has what there was to do meanwhile.
        self.settled &= stopped == [0, 1].map(|p| !self.runs(p));
        match stepped || busy {
            true => Ok(()),
            // A poll on the chance of an arrival might find one that nothing has reported.
            false => Err("nothing happens any more, and connections are open".into()),
        }
    }

    fn go(&mut self) -> Result<(), String> {
        loop {
            self.strike();
            if (0..self.connections.len()).all(|index| self.is_over(index)) {
                return Ok(());
            }
            self.step()?;
            let failed = (0..self.connections.len()).any(|index| {
                self.allowed(index).failure || self.connections[index].plan.answer == Answer::Late
            });
            let limit = if failed { MAX_TIME_FAILED } else { MAX_TIME };
            if self.now() > limit {
                return Err(format!("not over after {} s", limit / SECOND));
            }
        }
    }
}
