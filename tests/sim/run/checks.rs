//! What the program of a run checks: the beginning of each connection, what the library has reported,
//! and that all is done at the end.

use dat_core::testing::device::CmEvent;

use super::super::end::Allowed;
use super::super::plan::{Answer, Ending, Kind};
use super::program::private_data;
use super::{Counts, Run};

impl Run {
    /// What may happen to a connection by now.
    pub(super) fn allowed(&self, index: usize) -> Allowed {
        let connection = &self.connections[index];
        let ends = &connection.ends;
        let world = self.world.borrow();
        let mut failure = world.tainted[index] || world.processes.iter().any(|p| p.dead);
        failure |= connection.struck && connection.plan.fails();
        failure |= ends.iter().any(|end| end.bad_posted);
        let left = ends.iter().filter_map(|end| end.left);
        let ended = left.map(|(graceful, _)| graceful).reduce(|a, b| a && b);
        Allowed {
            failure,
            ended,
            early_send: world.weather.one_host,
            exact_ends: world.weather.one_host && !world.weather.falls_back,
        }
    }

    /// Checks what the library has reported to the ends of one process, or of both.
    pub(super) fn collect(&mut self, index: usize, only: Option<usize>) -> Result<(), String> {
        let allowed = self.allowed(index);
        for end in 0..2 {
            let process = self.connections[index].ends[end].process;
            if only.is_some_and(|only| only != process) || !self.runs(process) {
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

    /// All is over: checks what is left.
    pub(super) fn finish(mut self) -> Result<Counts, String> {
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
        counts.segments = self.world.borrow().segments;
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
                let sends =
                    sends.filter(|op| matches!(op.kind, Kind::Send { .. } | Kind::WriteImm { .. }));
                if peer.received < sends.count() {
                    return fail("a message before a graceful end was not received".into());
                }
            }
        }
        Ok(())
    }
}
