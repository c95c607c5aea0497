//! What an end is notified of: completions and events, each checked against what was posted.

use dat_core::testing::device::*;

use super::super::memory::EMPTY_WORD;
use super::super::plan::Kind;
use super::{Allowed, End};

/// From so many bytes on a message through shared memory is sent when it is in its receive.
const LONG: usize = 16 * 1024;
/// A longer one is offered to its receiver, and both ends agree on its end. The simulation has shorter ones for
/// that than the library has otherwise.
const OFFERED: usize = 64 * 1024;
/// A message of more segments is never offered.
const OFFERED_PARTS: usize = 3;

impl End {
    /// Takes what the library has reported since, and checks that it may.
    pub fn collect(&mut self, peer: &End, allowed: Allowed) -> Result<bool, String> {
        let mut any = false;
        loop {
            let event = self.handler.0.lock().unwrap().pop_front();
            // Completions are there before the event that ends their connection.
            let ends = matches!(&event, Some(e) if !matches!(e, CmEvent::Established { .. }));
            while let Some(completion) = self.send_cq.poll() {
                self.completed(completion, peer, allowed)?;
                any = true;
            }
            while let Some(completion) = self.recv_cq.poll() {
                self.receive_completed(completion, peer, allowed)?;
                any = true;
            }
            // Those without a completion that are not outstanding have succeeded.
            if !self.posted.is_empty() && self.qp().send_outstanding() == 0 {
                self.silent_successes(None, peer, allowed)?;
            }
            let Some(event) = event else {
                return Ok(any);
            };
            any = true;
            self.event(event, allowed)?;
            if ends {
                self.check_flushed()?;
            }
        }
    }

    /// Everything has completed.
    fn check_flushed(&mut self) -> Result<(), String> {
        let qp = self.qp();
        let outstanding = (qp.send_outstanding(), qp.recv_outstanding());
        if outstanding != (0, 0) {
            return Err(format!(
                "{outstanding:?} requests are outstanding after the end"
            ));
        }
        if let Some(number) = self.posted.front() {
            return Err(format!("request {number} was lost"));
        }
        if let Some(number) = self.waiting.front() {
            return Err(format!("receive {number} was lost"));
        }
        Ok(())
    }

    /// Requests before `number` that ask for no completion have succeeded.
    fn silent_successes(
        &mut self,
        number: Option<usize>,
        peer: &End,
        allowed: Allowed,
    ) -> Result<(), String> {
        while let Some(first) = self.posted.front().copied() {
            let silent = self.ops[first].flags.contains(WrFlags::UNSIGNALED);
            if !silent || Some(first) == number {
                return Ok(());
            }
            self.posted.pop_front();
            self.success(first, peer, allowed)?;
        }
        Ok(())
    }

    fn completed(
        &mut self,
        completion: Completion,
        peer: &End,
        allowed: Allowed,
    ) -> Result<(), String> {
        let number = completion.wr_id as usize;
        self.silent_successes(Some(number), peer, allowed)?;
        if self.posted.front() != Some(&number) {
            return Err(format!(
                "request {number} completes ({:?}) before {:?}, or again",
                completion.status,
                self.posted.front()
            ));
        }
        self.posted.pop_front();
        let op = self.ops[number];
        let expected = match op.kind {
            Kind::Send { .. } => WcOp::Send,
            Kind::Write { .. } => WcOp::RdmaWrite,
            Kind::Read { .. } => WcOp::RdmaRead,
            Kind::WriteImm { .. } => WcOp::RdmaWriteImm,
            Kind::Atomic { swaps: false, .. } => WcOp::FetchAdd,
            Kind::Atomic { swaps: true, .. } => WcOp::CompareSwap,
            Kind::Bind => WcOp::Bind { context: 77 },
        };
        if completion.op != expected || completion.context != 1 {
            return Err(format!("request {number} completes as {completion:?}"));
        }
        let bad = self.bad_posted;
        match completion.status {
            WcStatus::Success if op.flags.contains(WrFlags::UNSIGNALED) => {
                Err(format!("request {number} completes unasked"))
            }
            WcStatus::Success => {
                if completion.byte_len as usize != op.len {
                    return Err(format!("request {number}: {} bytes", completion.byte_len));
                }
                self.success(number, peer, allowed)
            }
            status
                if let Kind::Send { number: n, .. } = op.kind
                    && allowed.exact_ends
                    && op.len > OFFERED
                    && op.parts <= OFFERED_PARTS
                    && peer.received > n =>
            {
                Err(format!(
                    "request {number} fails ({status:?}), and has been received"
                ))
            }
            status if allowed.failure => {
                let _ = status;
                Ok(())
            }
            WcStatus::Flushed => match (allowed.ended, self.left) {
                // The own graceful end is after all that was posted before.
                (Some(true), Some((true, posted))) if number < posted && !self.peer_left => {
                    Err(format!("request {number} is flushed by a graceful end"))
                }
                (Some(_), _) => Ok(()),
                _ => Err(format!("request {number} is flushed without an end")),
            },
            status if bad => {
                let _ = status;
                Ok(())
            }
            status => Err(format!("request {number} fails: {status:?}")),
        }
    }

    fn success(&mut self, number: usize, peer: &End, allowed: Allowed) -> Result<(), String> {
        self.succeeded[number] = true;
        let op = self.ops[number];
        if op.bad_key && matches!(op.kind, Kind::Read { .. } | Kind::Atomic { .. }) {
            return Err(format!("request {number} succeeds with a bad key"));
        }
        match op.kind {
            Kind::Bind => {
                if let Some(window) = &mut self.window {
                    window.bound = true;
                }
            }
            Kind::Read { to, .. } => {
                let key = self.read_keys[number];
                let placed = self.memory.placed(to, key, op.len)?;
                if placed != op.len {
                    return Err(format!(
                        "request {number} succeeds: {placed} bytes of {} were read",
                        op.len
                    ));
                }
            }
            Kind::Atomic { to, before, .. } => {
                let found = self.memory.word(to);
                if found != before {
                    return Err(format!(
                        "request {number} succeeds: {found:x} and not {before:x}"
                    ));
                }
            }
            Kind::Send { .. } if allowed.early_send && op.len < LONG => {}
            Kind::Send { number: n, .. } => {
                let receive = peer.receives[n];
                let placed = peer
                    .memory
                    .placed(receive.slot, receive.message, receive.len)?;
                if placed != receive.len {
                    return Err(format!(
                        "request {number} succeeds: {placed} bytes of {} are in receive {n}",
                        receive.len
                    ));
                }
            }
            Kind::Write { from, peer_slot }
            | Kind::WriteImm {
                from, peer_slot, ..
            } => {
                let key = self.memory.slots[from].source.unwrap_or_default();
                let placed = peer.memory.placed(peer_slot, key, op.len)?;
                if placed != op.len {
                    return Err(format!(
                        "request {number} succeeds: {placed} bytes of {} were written",
                        op.len
                    ));
                }
            }
        }
        Ok(())
    }

    fn receive_completed(
        &mut self,
        completion: Completion,
        peer: &End,
        allowed: Allowed,
    ) -> Result<(), String> {
        let number = completion.wr_id as usize;
        let front = self.waiting.pop_front();
        if front != Some(number) {
            return Err(format!(
                "receive {number} completes in the place of {front:?}"
            ));
        }
        let receive = self.receives[number];
        match completion.status {
            WcStatus::Success => {
                let expected = match receive.imm {
                    Some(imm) => WcOp::RecvRdmaImm { imm },
                    None => WcOp::Recv,
                };
                if completion.op != expected || completion.byte_len as usize != receive.len {
                    return Err(format!(
                        "receive {number} of {} bytes completes as {completion:?}",
                        receive.len
                    ));
                }
                let len = receive.placed();
                let placed = self.memory.placed(receive.slot, receive.message, len)?;
                if placed != len {
                    return Err(format!(
                        "receive {number} succeeds: {placed} bytes of {}",
                        receive.len
                    ));
                }
                if self.received != number {
                    return Err(format!(
                        "receive {number} succeeds after one that has failed"
                    ));
                }
                self.received += 1;
                self.check_writes(peer, number)
            }
            WcStatus::Flushed if allowed.failure || allowed.ended.is_some() => Ok(()),
            _ if allowed.failure => Ok(()),
            status => Err(format!("receive {number} ends: {status:?}")),
        }
    }

    /// What the peer has written before the message `number` is there.
    fn check_writes(&mut self, peer: &End, number: usize) -> Result<(), String> {
        while let Some(op) = peer.ops.get(self.checked) {
            self.checked += 1;
            match op.kind {
                Kind::Send { number: n, .. } if n == number => return Ok(()),
                Kind::Write { from, peer_slot }
                | Kind::WriteImm {
                    from, peer_slot, ..
                } => {
                    let key = peer.memory.slots[from].source.unwrap_or_default();
                    let placed = self.memory.placed(peer_slot, key, op.len)?;
                    if placed != op.len {
                        return Err(format!(
                            "receive {number} completes before a write: {placed} of {}",
                            op.len
                        ));
                    }
                    if matches!(op.kind, Kind::WriteImm { number: n, .. } if n == number) {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Err(format!("receive {number} completes, which was not sent"))
    }

    fn event(&mut self, event: CmEvent, allowed: Allowed) -> Result<(), String> {
        if !self.begun {
            return Err(format!("{event:?} without an attempt"));
        }
        if let Some(over) = &self.over {
            return Err(format!("{event:?} after {over:?}"));
        }
        match event {
            CmEvent::Established { private_data } => {
                if self.established.is_some() {
                    return Err("established twice".into());
                }
                self.established = Some(private_data);
                return Ok(());
            }
            // Only queue pairs for datagrams resolve.
            CmEvent::Resolved(_) => return Err(format!("{event:?} of a queue pair that connects")),
            CmEvent::Disconnected | CmEvent::Broken => {
                if self.established.is_none() && self.left.is_none() {
                    return Err(format!("{event:?} of no connection"));
                }
            }
            CmEvent::PeerRejected { .. }
            | CmEvent::NonPeerRejected
            | CmEvent::Unreachable
            | CmEvent::TimedOut
            | CmEvent::AcceptError => {
                if self.established.is_some() {
                    return Err(format!("{event:?} after the connection was established"));
                }
            }
        }
        let fair = match (&event, allowed.ended) {
            (CmEvent::Disconnected, Some(_)) | (CmEvent::Broken, Some(false)) => true,
            (CmEvent::Disconnected | CmEvent::Broken, _) => allowed.failure,
            _ => true,
        };
        if !fair {
            return Err(format!("{event:?}, and nothing has happened"));
        }
        self.over = Some(event);
        Ok(())
    }

    /// What is in the memory at the end of a run.
    pub fn check_memory(&self, peer: &End) -> Result<(), String> {
        self.memory.check()?;
        for (number, receive) in self.receives.iter().enumerate() {
            let len = receive.placed();
            let placed = self.memory.placed(receive.slot, receive.message, len)?;
            if number < self.received && placed != len {
                return Err(format!("the message of receive {number} is damaged"));
            }
        }
        for (number, op) in peer.ops.iter().enumerate() {
            if let Kind::Write { from, peer_slot }
            | Kind::WriteImm {
                from, peer_slot, ..
            } = op.kind
            {
                let key = peer.memory.slots[from].source.unwrap_or_default();
                let placed = self.memory.placed(peer_slot, key, op.len)?;
                if placed > 0 && op.bad_key {
                    return Err("a write with a bad key has an effect".into());
                }
                let later = peer.next_op;
                if placed > 0 && number >= later {
                    return Err("a write has an effect that was never posted".into());
                }
            }
        }
        self.check_words(peer)?;
        for (number, op) in self.ops.iter().enumerate() {
            if let Kind::Read { to, .. } = op.kind {
                let key = self.read_keys[number];
                let placed = self.memory.placed(to, key, op.len)?;
                if self.succeeded[number] && placed != op.len {
                    return Err("what was read is damaged".into());
                }
            }
        }
        Ok(())
    }

    /// The word of this end that the peer adds to has each operation that has succeeded, and those that
    /// were posted at most; each once.
    fn check_words(&self, peer: &End) -> Result<(), String> {
        let (mut least, mut most) = (EMPTY_WORD, EMPTY_WORD);
        let mut found = None;
        for (number, op) in peer.ops.iter().enumerate() {
            let Kind::Atomic {
                to,
                peer_slot,
                before,
                ..
            } = op.kind
            else {
                continue;
            };
            found = Some(self.memory.word(peer_slot));
            if number < peer.next_op {
                most = before.wrapping_add(1);
            }
            if peer.succeeded[number] {
                least = before.wrapping_add(1);
            }
            let result = peer.memory.word(to);
            if result != before && (result != EMPTY_WORD || peer.succeeded[number]) {
                return Err(format!("the result of request {number} is {result:x}"));
            }
        }
        match found {
            Some(found) if !(least..=most).contains(&found) => {
                Err(format!("a word is {found:x}, not {least:x} to {most:x}"))
            }
            _ => Ok(()),
        }
    }
}
