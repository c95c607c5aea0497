//! The end of a run: everything is destroyed, and nothing may be left.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use dat_core::testing::process;

use super::super::world::{MILLI, Nanos, SECOND, World};
use super::Run;

/// How long the timers of an engine may run that has no connections.
const LAST_TIMERS: Nanos = 5 * MILLI;

/// A process ends: drops what the library has once in a process.
pub(super) fn end_process(world: &Rc<RefCell<World>>, process: usize) {
    // SAFETY: the devices of the process were dropped.
    unsafe { process::end_process() };
    // SAFETY: as above.
    unsafe { world.borrow_mut().unmap_all(process) };
}

/// Nothing of a process is open.
pub(super) fn expect_closed(world: &World, process: usize) -> Result<(), String> {
    match world.descriptors(process) {
        (0, 0) => Ok(()),
        (all, _) => Err(format!(
            "{all} descriptors of process {process} are open at the end:\n{}",
            world.describe(process)
        )),
    }
}

impl Run {
    /// Destroys everything; nothing may be left.
    pub(super) fn release(&mut self) -> Result<(), String> {
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
            while self.run_thread() {}
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
            let left = self.world.borrow().left_of_connections(process);
            if !self.is_dead(process) && !left.is_empty() {
                return Err(format!("process {process} still has:\n{left}"));
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
