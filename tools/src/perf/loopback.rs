//! Both ends in one process and one thread: what the library itself costs.

use std::rc::Rc;
use std::time::Duration;

use super::client::{Runner, connect, hello};
use super::failure::{Result, check_interrupted, error};
use super::ia::{Address, Ia};
use super::idle::Idle;
use super::inbox::{Inbox, Slots};
use super::link::Link;
use super::options::Options;
use super::order::{Hello, Op, Order, Test};
use super::pattern;
use super::plan::Plan;
use super::run::{self, Outcome, Pace};
use super::samples::Stopwatch;
use super::server::Server;
use super::side::{Queue, Side};
use super::streams;

/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(10);

/// The two ends.
pub struct Loopback {
    here: Side,
    there: Side,
}

impl Loopback {
    /// Connects the two ends.
    pub fn connect(ia: &Rc<Ia>, options: &Options, plan: &Plan) -> Result<Loopback> {
        let listener = Options {
            qualifier: 0,
            ..options.clone()
        };
        let server = Server::new(ia, &listener)?;
        let (hello, address) = (hello(options, plan), Address::of(ia)?);
        let mut here = Side::new(ia, &hello, options.wait.is_some())?;
        let mut there = Side::new(ia, &hello, options.wait.is_some())?;
        let (ours, theirs) = (here.introduce(&hello), there.introduce(&hello));
        for index in 0..hello.endpoints {
            let mut private = Hello { index, ..ours }.encode();
            let qualifier = server.qualifier;
            connect(&here, index.into(), &address, qualifier, &mut private)?;
            server.take_in(&there, index.into(), &hello)?;
            let answer = ia.connected(here.connect_evd, CONNECT)?;
            if Hello::decode(&answer) != Some(theirs) {
                return error("somebody else has answered");
            }
        }
        (here.peer.base, here.peer.key) = (theirs.base, theirs.key);
        (there.peer.base, there.peer.key) = (ours.base, ours.key);
        Ok(Loopback { here, there })
    }

    /// See [`Side::is_plain`].
    fn is_plain(&self, order: &Order) -> bool {
        self.here.is_plain(order) && self.there.is_plain(order)
    }

    /// What connects the two ends.
    pub fn link(&self) -> Link {
        self.here.link()
    }

    /// A send, its receive, both completions.
    #[inline(always)]
    fn send_one(
        &mut self,
        order: &Order,
        slots: Slots,
        inbox: &mut Inbox,
        (ep, n): (usize, u64),
    ) -> Result<u64> {
        let (here, there) = (&mut self.here, &mut self.there);
        run::prepare::<false>(here, order, slots, false, ep, n);
        let at = here.map.source() + slots.offset(ep, n);
        here.send(ep, at, order.size, ep as u64)?;
        let received = there.take(Queue::Recv)?;
        let (at, number) = inbox.arrival(there, received.cookie as usize)?;
        let mut bad = u64::from(received.length != order.size);
        bad |= run::wrong(there, order, at, pattern::seed(false, ep, number));
        here.take(Queue::Request)?;
        inbox.repost(there, ep)?;
        Ok(bad)
    }

    /// An RDMA write that is seen in memory.
    #[inline(always)]
    fn write_one(&mut self, order: &Order, turn: u64) -> Result<u64> {
        let (here, there) = (&mut self.here, &self.there);
        let last = order.size as usize - 8;
        let (source, landing) = (here.map.source(), here.map.landing());
        here.word(source + last)
            .store(turn, std::sync::atomic::Ordering::Relaxed);
        here.write(0, source, landing, order.size, 0)?;
        let mut idle = Idle::default();
        let arrived = there.word(landing + last);
        while arrived.load(std::sync::atomic::Ordering::Acquire) != turn {
            idle.look_around(here)?;
        }
        here.take(Queue::Request)?;
        Ok(0)
    }

    fn latency(&mut self, order: &Order, inbox: &mut Inbox, pace: Pace) -> Result<Outcome> {
        let (slots, mut turn) = (Slots::new(order), 0);
        match order.op {
            Op::Write | Op::Read => run::one_sided(&mut self.here, order, pace),
            Op::Send if self.is_plain(order) && self.here.endpoints() == 1 => {
                self.sends(order, inbox, pace)
            }
            Op::Send => self.timed(order, pace, |ends, ep, number| {
                ends.send_one(order, slots, inbox, (ep, number))
            }),
            _ => self.timed(order, pace, |ends, _, _| {
                turn += 1;
                ends.write_one(order, turn)
            }),
        }
    }

    /// Times sends in a plain order between two endpoints, with all that is known of them in local variables, as C
    /// programs have it.
    fn sends(&mut self, order: &Order, inbox: &mut Inbox, pace: Pace) -> Result<Outcome> {
        let (here, there) = (&self.here, &self.there);
        let send = here.post(here.api.ep_post_send, here.map.source(), order.size);
        let recv = there.post(there.api.ep_post_recv, there.map.inbox(), order.size);
        let (received, sent) = (
            there.completions(Queue::Recv),
            here.completions(Queue::Request),
        );
        let (mut left, size) = (inbox.take_over(), order.size);
        self.timed(order, pace, |ends, _, _| {
            send.post("dat_ep_post_send")?;
            let length = received.take(&ends.there)?;
            sent.take(&ends.here)?;
            if left > 0 {
                left -= 1;
                recv.post("dat_ep_post_recv")?;
            }
            Ok(u64::from(length != size))
        })
    }

    /// Times `once`, for each endpoint in turn and the number of its operation; `once` gives how many messages were
    /// wrong.
    #[inline(always)]
    fn timed(
        &mut self,
        order: &Order,
        pace: Pace,
        mut once: impl FnMut(&mut Loopback, usize, u64) -> Result<u64>,
    ) -> Result<Outcome> {
        let (endpoints, pauses) = (self.here.endpoints(), pace.pauses());
        let mut bad = 0;
        let mut watch = Stopwatch::start(pace.group, order.count * endpoints as u64);
        let (mut number, mut ep) = (0, 0);
        while number < order.count {
            if pauses {
                watch.pause(pace.pause);
            }
            bad += once(self, ep, number)?;
            if watch.lap() {
                check_interrupted()?;
            }
            ep += 1;
            if ep == endpoints {
                (ep, number) = (0, number + 1);
            }
        }
        let times = watch.stop();
        Ok(Outcome { times, bad })
    }

    /// Windows of sends, each received before the next begins.
    fn stream(&mut self, order: &Order, inbox: &mut Inbox) -> Result<Outcome> {
        match self.is_plain(order) {
            true => self.stream_as::<true>(order, inbox),
            false => self.stream_as::<false>(order, inbox),
        }
    }

    fn stream_as<const PLAIN: bool>(
        &mut self,
        order: &Order,
        inbox: &mut Inbox,
    ) -> Result<Outcome> {
        let slots = Slots::new(order);
        let (here, there) = (&mut self.here, &mut self.there);
        let window = u64::from(order.window);
        let mut bad = 0;
        let watch = Stopwatch::start(u64::MAX, 0);
        for first in (0..order.count).step_by(order.window as usize) {
            for ep in 0..here.endpoints() {
                check_interrupted()?;
                for number in first..first + window {
                    run::prepare::<PLAIN>(here, order, slots, false, ep, number);
                    let at = here.map.source() + slots.offset_as::<PLAIN>(ep, number);
                    here.send_as::<PLAIN>(ep, at, order.size, ep as u64)?;
                }
                for _ in 0..window {
                    let received = there.take_as::<PLAIN>(Queue::Recv)?;
                    let (at, number) =
                        inbox.arrival_as::<PLAIN>(there, received.cookie as usize)?;
                    bad += u64::from(received.length != order.size);
                    if !PLAIN {
                        bad += run::wrong(there, order, at, pattern::seed(false, ep, number));
                    }
                    inbox.repost_as::<PLAIN>(there, ep)?;
                }
                for _ in 0..window {
                    here.take_as::<PLAIN>(Queue::Request)?;
                }
            }
        }
        let times = watch.stop();
        Ok(Outcome { times, bad })
    }
}

impl Runner for Loopback {
    fn run(&mut self, order: &Order, pace: Pace) -> Result<Outcome> {
        let expected = match order.op {
            Op::Send => order.count,
            _ => 0,
        };
        run::furnish(&mut self.here, order, false);
        run::furnish(&mut self.there, order, true);
        let slots = Slots::new(order);
        let there = &self.there;
        let mut inbox = Inbox::data(there, slots, order.size, expected, streams::depth(order))?;
        let mut outcome = match (order.test, order.op) {
            (Test::Latency, _) => self.latency(order, &mut inbox, pace)?,
            (_, Op::Send) => self.stream(order, &mut inbox)?,
            _ => {
                let mut none = Inbox::data(&self.here, slots, order.size, 0, 0)?;
                streams::stream(&mut self.here, order, &mut none, pace)?
            }
        };
        if order.op == Op::Write {
            outcome.bad += run::check_written(&mut self.there, order);
        }
        Ok(outcome)
    }
}

/// An operation is one way.
pub fn trips(_order: &Order) -> u32 {
    1
}
