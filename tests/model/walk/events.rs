//! Steps with EVDs.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{BRIEFLY, Same, Walk};
use crate::agent::{Answer, Call, Code};
use crate::library::observed;
use crate::rules::ep::EpName;
use crate::rules::evd::{self, EVDS, Evd, Event, Stream, number, status};
use crate::rules::{Party, memory};

impl Walk<'_> {
    /// All EVDs but the asynchronous one, which the IA has made.
    pub(super) fn create_evds(&mut self, party: usize) -> Same {
        self.query_created(party, evd::ASYNC)?;
        for evd in 1..EVDS {
            self.create_evd(party, evd)?;
        }
        Ok(())
    }

    fn create_evd(&mut self, party: usize, evd: usize) -> Same {
        let (length, flags) = evd::CREATED[evd];
        let args = [evd as i64, length, flags];
        self.must(Call::EvdCreate, party, &args, Code::SUCCESS)?;
        self.query_created(party, evd)
    }

    fn query_created(&mut self, party: usize, evd: usize) -> Same {
        let (length, flags) = evd::CREATED[evd];
        let answer = self.must(Call::EvdQuery, party, &[evd as i64], Code::SUCCESS)?;
        if answer.word(1) < length || answer.word(3) != flags {
            return Err(format!("EVD {evd} has length {}", answer.word(1)));
        }
        self.world.parties[party].evds[evd] = Some(Evd::new(answer.word(1)));
        Ok(())
    }

    fn evd(&mut self, party: usize, evd: usize) -> &mut Evd {
        let evd = self.world.parties[party].evds[evd].as_mut();
        evd.expect("all EVDs exist between two steps")
    }

    /// An event was dequeued.
    fn take(&mut self, party: usize, evd: usize, answer: &Answer) -> Same {
        if answer.word(2) != evd as i64 {
            return Err(format!("the event is of EVD {}, not {evd}", answer.word(2)));
        }
        let seen = observed(answer);
        let event = self.evd(party, evd).take(&seen)?;
        if event.number == number::DTO_COMPLETION && 1 << seen.status == status::SUCCESS {
            self.check_contents(party, &event)?;
        }
        if !event.passed.is_empty() {
            let slot = seen.object as usize;
            self.world.dequeued(EpName { party, slot }, &event);
        }
        let Party { memory, srqs, .. } = &mut self.world.parties[party];
        Party::forget(memory, srqs, &event);
        Ok(())
    }

    fn check_contents(&mut self, party: usize, event: &Event) -> Same {
        let (Some(buffer), Some(contents)) = (event.buffer, &event.contents) else {
            return Ok(());
        };
        let at = memory::buffer_offset(buffer);
        let found = self.library.read_memory(party, at, contents.len())?;
        match found == *contents {
            true => Ok(()),
            false => Err(format!("request {} brought other bytes", event.cookie)),
        }
    }

    pub(super) fn dequeue(&mut self, party: usize, evd: usize) -> Same {
        // Connection requests are taken by who answers them.
        if evd == evd::REQUESTS {
            return Ok(());
        }
        self.dequeue_any(party, evd).map(drop)
    }

    /// Dequeues an event, or finds out that there is none. Says which.
    pub(super) fn dequeue_any(&mut self, party: usize, evd: usize) -> Result<bool, String> {
        let (due, _) = self.evd(party, evd).count();
        let start = Instant::now();
        loop {
            let answer = self
                .library
                .call(Call::EvdDequeue, party, &[evd as i64, 0])?;
            match answer.code() {
                Code::SUCCESS => {
                    self.take(party, evd, &answer)?;
                    return Ok(true);
                }
                Code::QUEUE_EMPTY if due == 0 => return Ok(false),
                Code::QUEUE_EMPTY if start.elapsed() < self.patience => {
                    sleep(Duration::from_micros(20))
                }
                Code::QUEUE_EMPTY => return Err(self.missing(party, evd)),
                other => return Err(format!("dequeue of EVD {evd}: {other:?}")),
            }
        }
    }

    fn missing(&mut self, party: usize, evd: usize) -> String {
        let evd_model = self.evd(party, evd);
        let (due, _) = evd_model.count();
        format!(
            "EVD {evd} of party {party} is empty, {due} missing: {}",
            evd_model.describe()
        )
    }

    pub(super) fn wait(&mut self, party: usize, evd: usize, threshold: i64) -> Same {
        // Unsignalled completions release no waiter.
        if evd == evd::REQUESTS || evd == evd::UNSIGNALLED {
            return Ok(());
        }
        let model = self.evd(party, evd);
        let (due, optional) = model.count();
        let (due, most) = (due as i64, (due + optional) as i64);
        let allowed: &[Code] = if threshold < 1 || threshold > model.length {
            if !model.waitable {
                return Ok(());
            }
            &[Code::INVALID_PARAMETER]
        } else if !model.waitable {
            &[Code::INVALID_STATE]
        } else if threshold <= due {
            &[Code::SUCCESS]
        } else if threshold > most {
            &[Code::TIMEOUT_EXPIRED]
        } else {
            &[Code::SUCCESS, Code::TIMEOUT_EXPIRED]
        };
        let timeout = match allowed {
            [Code::SUCCESS] => self.patience.as_micros() as i64,
            _ => BRIEFLY,
        };
        let answer =
            self.library
                .call(Call::EvdWait, party, &[evd as i64, timeout, threshold, 0])?;
        let code = answer.code();
        if !allowed.contains(&code) {
            let missing = self.missing(party, evd);
            return Err(format!("wait is {code:?}, not {allowed:?}; {missing}"));
        }
        let more = answer.word(7);
        match code {
            Code::SUCCESS => {
                if more < threshold - 1 || more > most - 1 {
                    return Err(format!("nmore is {more}, of {due} to {most} events"));
                }
                self.take(party, evd, &answer)
            }
            Code::TIMEOUT_EXPIRED if more > most || more >= threshold => {
                Err(format!("nmore is {more}, of {due} to {most} events"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn post_software(&mut self, party: usize, evd: usize) -> Same {
        let number = self.world.number();
        let args = [evd as i64, number];
        if evd != evd::SOFTWARE {
            return self
                .must(Call::EvdPostSe, party, &args, Code::INVALID_PARAMETER)
                .map(drop);
        }
        let model = self.evd(party, evd);
        let full = model.count().0 as i64 >= model.length;
        let code = if full {
            Code::QUEUE_FULL
        } else {
            Code::SUCCESS
        };
        self.must(Call::EvdPostSe, party, &args, code)?;
        if !full {
            let event = Event {
                number: number::SOFTWARE,
                cookie: number,
                ..Event::default()
            };
            self.evd(party, evd).push(Stream::Software, event);
        }
        Ok(())
    }

    /// Only of the EVD whose events are all there.
    pub(super) fn resize(&mut self, party: usize, evd: usize, length: i64) -> Same {
        if evd != evd::SOFTWARE {
            return Ok(());
        }
        let length = length % 8 + 1;
        let count = self.evd(party, evd).count().0 as i64;
        let code = if length < count {
            Code::INVALID_STATE
        } else {
            Code::SUCCESS
        };
        self.must(Call::EvdResize, party, &[evd as i64, length], code)?;
        let answer = self.must(Call::EvdQuery, party, &[evd as i64], Code::SUCCESS)?;
        if code == Code::SUCCESS {
            if answer.word(1) < length {
                return Err(format!("EVD {evd} has length {}", answer.word(1)));
            }
            self.evd(party, evd).length = answer.word(1);
        }
        self.compare_length(party, evd, &answer)
    }

    fn compare_length(&mut self, party: usize, evd: usize, answer: &Answer) -> Same {
        let length = self.evd(party, evd).length;
        match answer.word(1) == length {
            true => Ok(()),
            false => Err(format!(
                "EVD {evd} has length {}, not {length}",
                answer.word(1)
            )),
        }
    }

    pub(super) fn set_waitable(&mut self, party: usize, evd: usize, waitable: bool) -> Same {
        let call = match waitable {
            true => Call::EvdClearUnwaitable,
            false => Call::EvdSetUnwaitable,
        };
        self.must(call, party, &[evd as i64], Code::SUCCESS)?;
        self.evd(party, evd).waitable = waitable;
        Ok(())
    }

    pub(super) fn query_evd(&mut self, party: usize, evd: usize) -> Same {
        /// `DAT_EVD_STATE_WAITABLE` and `DAT_EVD_STATE_UNWAITABLE`.
        const WAITABLE: [i64; 2] = [0x8, 0x4];
        let answer = self.must(Call::EvdQuery, party, &[evd as i64], Code::SUCCESS)?;
        self.compare_length(party, evd, &answer)?;
        let waitable = self.evd(party, evd).waitable;
        if answer.word(2) & 0xc != WAITABLE[usize::from(waitable)] {
            return Err(format!("state {:#x} of EVD {evd}", answer.word(2)));
        }
        Ok(())
    }

    /// An EVD that something feeds cannot be freed. Another one takes its events with it; it is
    /// created again.
    pub(super) fn free_evd(&mut self, party: usize, evd: usize) -> Same {
        let fed = match evd {
            // The library answers with its own rules when this is the EVD of the IA, or of CRs
            // that would be lost.
            evd::ASYNC | evd::REQUESTS => return Ok(()),
            evd => self.world.parties[party].feeds(evd),
        };
        let code = if fed {
            Code::INVALID_STATE
        } else {
            Code::SUCCESS
        };
        self.must(Call::EvdFree, party, &[evd as i64], code)?;
        if !fed {
            self.create_evd(party, evd)?;
        }
        Ok(())
    }

    /// Dequeues everything that is due, and finds nothing else.
    pub(super) fn calm(&mut self) -> Same {
        for party in 0..2 {
            for evd in 0..EVDS {
                while evd != evd::REQUESTS && self.dequeue_any(party, evd)? {}
            }
        }
        Ok(())
    }
}
