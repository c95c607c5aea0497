//! A walk: the steps are made with the library and with the model, and compared one by one.

mod connections;
mod events;
mod srqs;
mod transfers;

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::agent::{Answer, Call, Code};
use crate::library::Library;
use crate::rules::World;
use crate::rules::ep::{EpName, State};
use crate::rules::srq::Room;
use crate::steps::Step;

/// For a wait of the library that has to time out, in microseconds.
const BRIEFLY: i64 = 300;

/// What a step is: a difference, or nothing.
pub type Same = Result<(), String>;

/// A walk that is being made.
pub struct Walk<'a> {
    library: &'a mut Library,
    world: World,
    /// What has to happen happens within this time.
    patience: Duration,
    /// Steps that made a call.
    pub made: usize,
}

impl<'a> Walk<'a> {
    /// Makes the steps, with parties that have done nothing so far.
    ///
    /// # Errors
    /// Where library and model differ.
    pub fn make(
        library: &'a mut Library,
        steps: &[Step],
        patience: Duration,
    ) -> Result<usize, String> {
        let (early, one_process) = (library.early, library.is_one_process());
        let mut walk = Walk {
            library,
            world: World::new(early, one_process),
            patience,
            made: 0,
        };
        walk.begin()?;
        for step in steps {
            walk.step(step).map_err(|why| format!("{step:?}: {why}"))?;
        }
        walk.end()?;
        Ok(walk.made)
    }

    fn begin(&mut self) -> Same {
        self.library.trace.clear();
        for party in 0..2 {
            self.library.open(party)?;
            self.create_evds(party)?;
        }
        Ok(())
    }

    /// Everything has been reported, and nothing else; the memory is what it has to be.
    fn end(&mut self) -> Same {
        self.calm().map_err(|why| format!("at the end: {why}"))?;
        for party in 0..2 {
            self.check_areas(party)?;
        }
        for party in 0..2 {
            self.must(Call::Close, party, &[], Code::SUCCESS)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Same {
        let calls = self.library.trace.len();
        match *step {
            Step::Join { party, slot, peer } => self.join(EpName { party, slot }, peer),
            Step::EpCreate { party, slot, shape } => self.create(EpName { party, slot }, shape),
            Step::EpFree { party, slot } => self.free(EpName { party, slot }),
            Step::EpReset { party, slot } => self.reset(EpName { party, slot }),
            Step::EpStatus { party, slot } => self.status(EpName { party, slot }),
            Step::Listen { party } => self.listen(party),
            Step::Deafen { party } => self.deafen(party),
            Step::Connect { party, slot } => self.connect(EpName { party, slot }),
            Step::Answer {
                party,
                slot,
                accept,
            } => self.answer(EpName { party, slot }, accept),
            Step::Disconnect {
                party,
                slot,
                graceful,
                calm,
            } => self.disconnect(EpName { party, slot }, graceful, calm),
            Step::Receive {
                party,
                slot,
                len,
                flags,
            } => self.post_receive(EpName { party, slot }, len, flags),
            Step::Send {
                party,
                slot,
                len,
                flags,
            } => self.post_send(EpName { party, slot }, len, flags),
            Step::Write {
                party,
                slot,
                len,
                flags,
                at,
            } => self.post_write(EpName { party, slot }, len, flags, at),
            Step::Read {
                party,
                slot,
                len,
                flags,
                at,
            } => self.post_read(EpName { party, slot }, len, flags, at),
            Step::Forbidden { party, slot, read } => {
                self.post_forbidden(EpName { party, slot }, read)
            }
            Step::Dequeue { party, evd } => self.dequeue(party, evd),
            Step::Wait {
                party,
                evd,
                threshold,
            } => self.wait(party, evd, threshold.into()),
            Step::Software { party, evd } => self.post_software(party, evd),
            Step::Resize { party, evd, length } => self.resize(party, evd, length.into()),
            Step::Waitable {
                party,
                evd,
                waitable,
            } => self.set_waitable(party, evd, waitable),
            Step::EvdQuery { party, evd } => self.query_evd(party, evd),
            Step::EvdFree { party, evd } => self.free_evd(party, evd),
            Step::SrqCreate { party, srq, size } => self.create_srq(party, srq, size.into()),
            Step::SrqFree { party, srq } => self.free_srq(party, srq),
            Step::SrqPost { party, srq, len } => self.post_shared(party, srq, len),
            Step::SrqQuery { party, srq } => self.query_srq(party, srq),
            Step::SrqWatermark { party, srq, mark } => self.watermark(party, srq, mark.into()),
            Step::Calm => self.calm(),
            Step::Pause { us } => {
                sleep(Duration::from_micros(us.into()));
                Ok(())
            }
        }?;
        self.made += usize::from(self.library.trace.len() > calls);
        Ok(())
    }

    /// Makes a call that has to return this.
    fn must(
        &mut self,
        call: Call,
        party: usize,
        args: &[i64],
        code: Code,
    ) -> Result<Answer, String> {
        let answer = self.library.call(call, party, args)?;
        match answer.code() == code {
            true => Ok(answer),
            false => Err(format!("{call:?} is {:?}, not {code:?}", answer.code())),
        }
    }

    /// Makes a post that depends on whether there is room. What the model has completed may not
    /// have completed yet. Says whether the post has succeeded.
    fn post(&mut self, call: Call, party: usize, args: &[i64], room: Room) -> Result<bool, String> {
        let start = Instant::now();
        loop {
            let code = self.library.call(call, party, args)?.code();
            return match (code, room) {
                (Code::SUCCESS, Room::Yes | Room::Maybe) => Ok(true),
                (Code::INSUFFICIENT_RESOURCES, Room::No | Room::Maybe) => Ok(false),
                (Code::INSUFFICIENT_RESOURCES, Room::Yes) if start.elapsed() < self.patience => {
                    sleep(Duration::from_micros(50));
                    continue;
                }
                _ => Err(format!("{call:?} is {code:?} (room: {room:?})")),
            };
        }
    }

    /// Waits until `settled` is true of what a call answers.
    fn until(
        &mut self,
        call: Call,
        party: usize,
        args: &[i64],
        settled: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, String> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(10);
        loop {
            let answer = self.must(call, party, args, Code::SUCCESS)?;
            if settled(&answer) || start.elapsed() > self.patience {
                return Ok(answer);
            }
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// Waits until the library knows the state that an endpoint has.
    fn settle(&mut self, name: EpName) -> Same {
        let state = self.world.ep(name).state;
        let args = [name.slot as i64];
        let answer = self.until(Call::EpGetStatus, name.party, &args, |answer| {
            answer.word(1) == state as i64
        })?;
        match answer.word(1) == state as i64 {
            true => Ok(()),
            false => Err(format!(
                "{name:?} is in state {}, not {state:?}",
                answer.word(1)
            )),
        }
    }

    /// The same for an endpoint and the one that it is or was connected with.
    fn settle_both(&mut self, name: EpName) -> Same {
        self.settle(name)?;
        match self
            .world
            .ep(name)
            .peer
            .filter(|&peer| self.world.find(peer).is_some())
        {
            Some(peer) => self.settle(peer),
            None => Ok(()),
        }
    }

    fn state(&self, name: EpName) -> Option<State> {
        self.world.find(name).map(|ep| ep.state)
    }
}
