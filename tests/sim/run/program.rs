//! The steps of the program: it listens, connects, answers, posts and disconnects.

use std::net::SocketAddr;

use dat_core::testing::device::*;

use super::super::end::End;
use super::super::memory::byte;
use super::super::net::FIRST_PORT;
use super::super::plan::Answer;
use super::super::world::HOSTS;
use super::Run;

/// Private data of a connection: of the request, or of the answer.
pub(super) fn private_data(connection: usize, which: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| byte((connection * 2 + which) as u64, at))
        .collect()
}

/// The qualifier of a connection.
fn qualifier(index: usize, wide: bool) -> u64 {
    let port = u64::from(FIRST_PORT) + index as u64;
    if wide { port << 32 } else { port }
}

impl Run {
    /// A step of the program on a connection; false if there was nothing to do.
    pub(super) fn program(&mut self, index: usize) -> Result<bool, String> {
        let dead = [0, 1].map(|process| self.is_dead(process));
        let any = match self.act(index) {
            // What a process does that is killed in a call is of no interest.
            Err(_) if dead != [0, 1].map(|process| self.is_dead(process)) => true,
            result => result?,
        };
        self.collect(index, None)?;
        Ok(any)
    }

    fn act(&mut self, index: usize) -> Result<bool, String> {
        let now = self.now();
        let connection = &self.connections[index];
        let (active, passive) = (connection.ends[0].process, connection.ends[1].process);
        if !connection.listened && now >= connection.plan.listens_at && !self.is_stopped(passive) {
            self.connections[index].listened = true;
            let listens = self.connections[index].plan.answer != Answer::NoListener;
            if listens && !self.is_dead(passive) {
                self.listen(index, passive)?;
                return Ok(true);
            }
        }
        let connection = &self.connections[index];
        if !connection.connected && now >= connection.plan.connects_at && !self.is_stopped(active) {
            self.connections[index].connected = true;
            if !self.is_dead(active) {
                return self.connect(index, active).map(|()| true);
            }
        }
        if self.runs(passive) && self.answer(index, passive)? {
            return Ok(true);
        }
        let first = self.rng.below(2) as usize;
        for end in [first, 1 - first] {
            let process = self.connections[index].ends[end].process;
            if self.runs(process) && self.work(index, end)? {
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
        let listener = self.device(process).listen(qual, handler);
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
        let now = self.now();
        let process = self.connections[index].ends[which].process;
        self.enter(process, Some(index));
        let most = self.rng.pick(&[1, 1, 3, 8]);
        let is_done = |index: usize| self.connections[index].ends.iter().all(End::is_done);
        let all_done = match self.ends_together {
            true => (0..self.connections.len()).all(|other| is_done(other) || self.is_over(other)),
            false => is_done(index),
        };
        let failure = self.allowed(index).failure;
        let connection = &mut self.connections[index];
        let ending = connection.plan.ending;
        let [a, b] = &mut connection.ends;
        let (end, peer) = if which == 0 { (a, &*b) } else { (b, &*a) };
        let mut any = false;
        if end.over.is_none() {
            let early = end.next_receive < end.early;
            if early || end.is_up() && end.steps >= end.lag {
                for _ in 0..most {
                    any |= end.post_receive().map_err(fail)?;
                }
            }
        }
        if !end.is_up() || now < connection.plan.idle_until {
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
            any |= end.steps <= end.lag && end.next_receive < end.receives.len();
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
}
