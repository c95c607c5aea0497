//! Short messages to and fro on the first endpoint, while all others are kept full of a stream: whether
//! the library serves the one beside the others.
//!
//! The first endpoint's receives are posted here, one at a time, and not by the [`Inbox`]. The length of a
//! message tells whether another one follows.

use std::time::Instant;

use super::failure::{Result, check_interrupted};
use super::idle::Idle;
use super::inbox::{Inbox, Slots};
use super::order::{Order, PING};
use super::run::{self, Outcome};
use super::samples::Times;
use super::side::{Queue, Side};
use super::streams;

/// Bytes of the message that is the last one.
const LAST: u32 = 1;
/// The endpoint of the messages to and fro.
const FIRST: usize = 0;

/// The client's end of the messages to and fro.
struct Dialogue {
    begun: Instant,
    /// Nanoseconds of each round trip.
    took: Vec<u64>,
    /// Completions that the message under way still has to come: those of its send and of the answer.
    left: u32,
    /// The message under way is the last one.
    last: bool,
}

impl Dialogue {
    fn new() -> Dialogue {
        Dialogue {
            begun: Instant::now(),
            took: Vec::new(),
            left: 0,
            last: false,
        }
    }

    fn send(&mut self, side: &Side, last: bool) -> Result<()> {
        side.recv(FIRST, side.map.ping_in(), PING, FIRST as u64)?;
        (self.begun, self.left, self.last) = (Instant::now(), 2, last);
        let length = if last { LAST } else { PING };
        side.send(FIRST, side.map.ping_out(), length, FIRST as u64)
    }

    /// The answer has arrived, or the send has completed. `over` if all streams have ended.
    fn completed(&mut self, side: &Side, over: bool, answered: bool) -> Result<()> {
        if answered && !self.last {
            self.took.push(self.begun.elapsed().as_nanos() as u64);
        }
        self.left -= 1;
        match self.left == 0 && !self.last {
            true => self.send(side, over),
            false => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 && self.last
    }
}

/// The client: streams on all endpoints but the first, and messages to and fro on that.
///
/// # Errors
/// What the library says.
pub fn client(side: &mut Side, order: &Order, inbox: &mut Inbox, burst: u32) -> Result<Outcome> {
    let (slots, endpoints) = (Slots::new(order), side.endpoints());
    let burst = u64::from(burst).clamp(1, order.window.into());
    let (mut posted, mut done) = (vec![0; endpoints], vec![0; endpoints]);
    let mut granted = vec![streams::depth(order); endpoints];
    let mut left = order.count * (endpoints as u64 - 1);
    let started = Instant::now();
    let mut dialogue = Dialogue::new();
    dialogue.send(side, left == 0)?;
    let mut idle = Idle::default();
    let mut ended = None;
    while !dialogue.is_over() {
        check_interrupted()?;
        for ep in 1..endpoints {
            let open = (done[ep] + u64::from(order.window)).min(granted[ep]);
            let room = open.min(order.count) - posted[ep];
            if room < burst && posted[ep] + room < order.count {
                continue;
            }
            for number in posted[ep]..posted[ep] + room {
                run::prepare::<false>(side, order, slots, false, ep, number);
                let at = side.map.source() + slots.offset(ep, number);
                side.send(ep, at, order.size, ep as u64)?;
            }
            posted[ep] += room;
        }
        // One of each queue at a time, so that no queue waits until the other one is empty.
        let mut idled = true;
        if let Some(completion) = side.poll(Queue::Request)? {
            idled = false;
            let ep = completion.cookie as usize;
            if ep == FIRST {
                dialogue.completed(side, left == 0, false)?;
            } else {
                done[ep] += 1;
                left -= 1;
            }
        }
        if let Some(arrived) = side.poll(Queue::Recv)? {
            idled = false;
            let ep = arrived.cookie as usize;
            if ep == FIRST {
                dialogue.completed(side, left == 0, true)?;
            } else {
                inbox.arrival(side, ep)?;
                granted[ep] += streams::credit(order);
                inbox.repost(side, ep)?;
            }
        }
        if left == 0 && ended.is_none() {
            ended = Some(started.elapsed());
        }
        match idled {
            true => idle.look_around(side)?,
            false => idle = Idle::default(),
        }
    }
    side.expect_note()?;
    while inbox.arrived[1..]
        .iter()
        .any(|&n| n < streams::credits(order))
    {
        let ep = side.take(Queue::Recv)?.cookie as usize;
        inbox.arrival(side, ep)?;
        inbox.repost(side, ep)?;
    }
    let total = ended.unwrap_or_else(|| started.elapsed());
    let times = Times::single(total, dialogue.took);
    Ok(Outcome { times, bad: 0 })
}

/// The server: takes the streams, and answers on the first endpoint. Returns how many messages of the
/// streams were wrong. The first receive for the messages to and fro is posted.
///
/// # Errors
/// What the library says.
pub fn server(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    let mut left = order.count * (side.endpoints() as u64 - 1);
    let (mut unreaped, mut bad, mut over) = (0_u64, 0, false);
    while left > 0 || !over {
        check_interrupted()?;
        let arrived = side.take(Queue::Recv)?;
        if arrived.cookie as usize == FIRST {
            over = arrived.length == LAST;
            match over {
                true => side.expect_note()?,
                false => expect(side)?,
            }
            side.send(FIRST, side.map.ping_out(), PING, FIRST as u64)?;
        } else {
            let (ep, wrong) = run::received::<false>(side, order, inbox, true, arrived)?;
            (left, bad) = (left - 1, bad + wrong);
            inbox.repost(side, ep)?;
            if !inbox.arrived[ep].is_multiple_of(streams::credit(order)) {
                continue;
            }
            side.send(ep, side.map.source(), 1, ep as u64)?;
        }
        unreaped += 1;
        while unreaped > 0 && side.poll(Queue::Request)?.is_some() {
            unreaped -= 1;
        }
    }
    for _ in 0..unreaped {
        side.take(Queue::Request)?;
    }
    Ok(bad)
}

/// Posts the receive of the next message of the dialogue.
///
/// # Errors
/// What the library says.
pub fn expect(side: &Side) -> Result<()> {
    side.recv(FIRST, side.map.ping_in(), PING, FIRST as u64)
}
