//! Steps with shared receive queues.

use super::transfers::buffer_length;
use super::{Same, Walk};
use crate::agent::{Call, Code};
use crate::rules::ep::{EpName, Receive, State};
use crate::rules::evd::Stream;
use crate::rules::srq::Srq;
use crate::rules::{EPS, memory};

impl Walk<'_> {
    pub(super) fn create_srq(&mut self, party: usize, srq: usize, size: i64) -> Same {
        if self.world.parties[party].srqs[srq].is_some() {
            return Ok(());
        }
        self.must(Call::SrqCreate, party, &[srq as i64, size], Code::SUCCESS)?;
        let answer = self.must(Call::SrqQuery, party, &[srq as i64], Code::SUCCESS)?;
        if answer.word(3) < size || [answer.word(1), answer.word(2)] != [0, 0] {
            return Err(format!("a new SRQ: {answer:?}"));
        }
        self.world.parties[party].srqs[srq] = Some(Srq::new(answer.word(3) as usize));
        Ok(())
    }

    pub(super) fn free_srq(&mut self, party: usize, srq: usize) -> Same {
        let party_model = &self.world.parties[party];
        let Some(model) = &party_model.srqs[srq] else {
            return Ok(());
        };
        let used = party_model
            .eps
            .iter()
            .flatten()
            .any(|ep| ep.created.srq == Some(srq));
        let buffers: Vec<usize> = model.buffers.iter().map(|receive| receive.buffer).collect();
        let taken = model.taken != 0;
        if !used && taken {
            return Ok(());
        }
        let code = if used {
            Code::INVALID_STATE
        } else {
            Code::SUCCESS
        };
        self.must(Call::SrqFree, party, &[srq as i64], code)?;
        if !used {
            self.world.orphan(party, Stream::SrqErrors(srq));
            let party = &mut self.world.parties[party];
            party.srqs[srq] = None;
            for buffer in buffers {
                party.memory.give_back(buffer);
            }
        }
        Ok(())
    }

    pub(super) fn post_shared(&mut self, party: usize, srq: usize, len: u8) -> Same {
        let Some(room) = self.world.parties[party].srqs[srq].as_ref().map(Srq::room) else {
            return Ok(());
        };
        self.settle_srq(party, srq)?;
        let Some(buffer) = self.world.parties[party].memory.take() else {
            return Ok(());
        };
        let receive = Receive {
            cookie: self.world.number(),
            buffer,
            len: buffer_length(len),
        };
        let at = memory::buffer_offset(buffer) as i64;
        let args = [srq as i64, at, receive.len as i64, receive.cookie];
        if !self.post(Call::SrqPostRecv, party, &args, room)? {
            self.world.parties[party].memory.give_back(buffer);
            return Ok(());
        }
        self.world.post_shared(party, srq, receive);
        self.settle_srq(party, srq)?;
        for slot in 0..EPS {
            let name = EpName { party, slot };
            if self.state(name) == Some(State::Disconnected) {
                self.settle_both(name)?;
            }
        }
        Ok(())
    }

    /// Waits until the messages that take buffers have taken them.
    pub(super) fn settle_srq(&mut self, party: usize, srq: usize) -> Same {
        let Some(model) = &self.world.parties[party].srqs[srq] else {
            return Ok(());
        };
        let available = model.buffers.len() as i64;
        let answer = self.until(Call::SrqQuery, party, &[srq as i64], |answer| {
            answer.word(1) == available
        })?;
        match answer.word(1) == available {
            true => Ok(()),
            false => Err(format!(
                "SRQ {srq} has {} buffers, not {available}",
                answer.word(1)
            )),
        }
    }

    pub(super) fn query_srq(&mut self, party: usize, srq: usize) -> Same {
        self.settle_srq(party, srq)?;
        let Some(model) = &self.world.parties[party].srqs[srq] else {
            return Ok(());
        };
        let outstanding = (model.buffers.len() + model.taken) as i64;
        let (lost, limit) = (model.lost, model.limit as i64);
        let answer = self.must(Call::SrqQuery, party, &[srq as i64], Code::SUCCESS)?;
        if answer.word(3) != limit || !lost && answer.word(2) != outstanding {
            return Err(format!(
                "SRQ {srq} has {} outstanding of {}, not {outstanding} of {limit}",
                answer.word(2),
                answer.word(3)
            ));
        }
        Ok(())
    }

    pub(super) fn watermark(&mut self, party: usize, srq: usize, mark: usize) -> Same {
        let Some(model) = &self.world.parties[party].srqs[srq] else {
            return Ok(());
        };
        let mark = mark % (model.limit + 2);
        let code = match mark > model.limit {
            true => Code::INVALID_PARAMETER,
            false => Code::SUCCESS,
        };
        self.settle_srq(party, srq)?;
        self.must(Call::SrqSetLw, party, &[srq as i64, mark as i64], code)?;
        if code == Code::SUCCESS {
            self.world.set_low_watermark(party, srq, mark);
        }
        Ok(())
    }
}
