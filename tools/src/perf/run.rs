//! The loops that are timed and that both ends have.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::failure::{Result, check_interrupted};
use super::idle::Idle;
use super::inbox::{Inbox, Slots};
use super::order::{Data, Op, Order};
use super::pattern;
use super::samples::{Stopwatch, Times};
use super::side::{Completion, Queue, Side, fence};
use super::turns::Turns;

/// Looks at memory between two looks at an EVD.
const MEMORY_POLLS: u32 = 16;
/// RDMA writes whose completions may be outstanding when memory is polled.
const WRITES: u32 = 4;

/// What the measuring end knows beyond the order.
#[derive(Clone, Copy)]
pub struct Pace {
    /// Operations that are timed together.
    pub group: u64,
    /// A pause before each operation, which is not timed.
    pub pause: Duration,
    /// Operations that are posted at once.
    pub burst: u32,
    /// Whether the endpoints are used in a random order.
    pub random: bool,
}

impl Pace {
    /// Whether there is a pause before each operation.
    pub fn pauses(&self) -> bool {
        !self.pause.is_zero()
    }
}

/// The loop's times, and how many messages were wrong.
pub struct Outcome {
    /// When what ended.
    pub times: Times,
    /// Wrong messages.
    pub bad: u64,
}

/// Fills a message that is about to be posted.
#[inline(always)]
pub fn prepare<const PLAIN: bool>(
    side: &mut Side,
    order: &Order,
    slots: Slots,
    server: bool,
    ep: usize,
    number: u64,
) {
    if !PLAIN && order.data != Data::Left {
        write_message(side, order, slots, server, ep, number);
    }
}

#[inline(never)]
fn write_message(
    side: &mut Side,
    order: &Order,
    slots: Slots,
    server: bool,
    ep: usize,
    number: u64,
) {
    let at = side.map.source() + slots.offset(ep, number);
    let bytes = side.bytes(at, order.size as usize);
    match order.data {
        Data::Touched => pattern::write(bytes, number),
        _ => pattern::fill(bytes, pattern::seed(server, ep, number)),
    }
}

/// Reads a message, if that is ordered: whether it is wrong.
#[inline(always)]
pub fn wrong(side: &mut Side, order: &Order, at: usize, seed: u64) -> u64 {
    match order.data {
        Data::Left => 0,
        _ => read_message(side, order, at, seed),
    }
}

#[inline(never)]
fn read_message(side: &mut Side, order: &Order, at: usize, seed: u64) -> u64 {
    let bytes = side.bytes(at, order.size as usize);
    match order.data {
        Data::Touched => {
            pattern::read(bytes);
            0
        }
        _ => u64::from(!pattern::intact(bytes, seed)),
    }
}

/// Takes the next message; returns its endpoint and whether it is wrong.
#[inline(always)]
pub fn receive<const PLAIN: bool>(
    side: &mut Side,
    order: &Order,
    inbox: &mut Inbox,
    server: bool,
) -> Result<(usize, u64)> {
    let completion = side.take_as::<PLAIN>(Queue::Recv)?;
    received::<PLAIN>(side, order, inbox, server, completion)
}

/// A message has arrived; returns its endpoint and whether it is wrong.
#[inline(always)]
pub fn received<const PLAIN: bool>(
    side: &mut Side,
    order: &Order,
    inbox: &mut Inbox,
    server: bool,
    completion: Completion,
) -> Result<(usize, u64)> {
    let ep = completion.cookie as usize;
    let (at, number) = inbox.arrival_as::<PLAIN>(side, ep)?;
    let bad = u64::from(completion.length != order.size);
    if PLAIN {
        return Ok((ep, bad));
    }
    let wrong = wrong(side, order, at, pattern::seed(!server, ep, number));
    Ok((ep, bad | wrong))
}

/// Messages to and fro, seen by the client.
pub fn ping(side: &mut Side, order: &Order, inbox: &mut Inbox, pace: Pace) -> Result<Outcome> {
    match side.is_plain(order) {
        true => ping_as::<true>(side, order, inbox, pace),
        false => ping_as::<false>(side, order, inbox, pace),
    }
}

fn ping_as<const PLAIN: bool>(
    side: &mut Side,
    order: &Order,
    inbox: &mut Inbox,
    pace: Pace,
) -> Result<Outcome> {
    let slots = Slots::new(order);
    let endpoints = side.endpoints();
    let (mut bad, pauses) = (0, pace.pauses());
    let mut watch = Stopwatch::start(pace.group, order.count * endpoints as u64);
    let mut turns = Turns::new(endpoints, pace.random);
    for number in 0..order.count {
        for &ep in turns.next(&mut watch) {
            if pauses {
                watch.pause(pace.pause);
            }
            prepare::<PLAIN>(side, order, slots, false, ep, number);
            let at = side.map.source() + slots.offset_as::<PLAIN>(ep, number);
            side.send_as::<PLAIN>(ep, at, order.size, ep as u64)?;
            bad += receive::<PLAIN>(side, order, inbox, false)?.1;
            inbox.repost_as::<PLAIN>(side, ep)?;
            side.take_as::<PLAIN>(Queue::Request)?;
            if watch.lap() {
                check_interrupted()?;
            }
        }
    }
    let times = watch.stop();
    Ok(Outcome { times, bad })
}

/// Messages to and fro, seen by the server. Returns how many were wrong.
pub fn pong(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    match side.is_plain(order) {
        true => pong_as::<true>(side, order, inbox),
        false => pong_as::<false>(side, order, inbox),
    }
}

fn pong_as<const PLAIN: bool>(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    let slots = Slots::new(order);
    let mut bad = 0;
    for number in 0..order.count {
        for _ in 0..side.endpoints() {
            check_interrupted()?;
            let (ep, wrong) = receive::<PLAIN>(side, order, inbox, true)?;
            bad += wrong;
            prepare::<PLAIN>(side, order, slots, true, ep, number);
            let at = side.map.source() + slots.offset_as::<PLAIN>(ep, number);
            side.send_as::<PLAIN>(ep, at, order.size, ep as u64)?;
            inbox.repost_as::<PLAIN>(side, ep)?;
            side.take_as::<PLAIN>(Queue::Request)?;
        }
    }
    Ok(bad)
}

/// RDMA writes to and fro, polled in memory. The last word of each is its number.
pub fn write_poll(side: &mut Side, order: &Order, server: bool, pace: Pace) -> Result<Outcome> {
    match side.is_plain(order) && side.endpoints() == 1 && !pace.pauses() {
        true => write_poll_plainly(side, order, server, pace),
        false => write_poll_any(side, order, server, pace),
    }
}

/// [`write_poll`] in a plain order on one endpoint, with all that is known of that in local variables, as C programs
/// have it.
fn write_poll_plainly(side: &Side, order: &Order, server: bool, pace: Pace) -> Result<Outcome> {
    use std::sync::atomic::Ordering::Relaxed;
    let last = order.size as usize - 8;
    let (source, landing) = (side.map.source(), side.map.landing());
    let (stamp, arrived) = (side.word(source + last), side.word(landing + last));
    let write = side.writes(source, landing, order.size);
    let written = side.completions(Queue::Request);
    let mut outstanding = 0;
    let mut watch = Stopwatch::start(pace.group, order.count);
    for turn in 1..=order.count {
        if server {
            check_interrupted()?;
            await_value(side, arrived, turn, &mut outstanding)?;
        }
        stamp.store(turn, Relaxed);
        write.post()?;
        outstanding += 1;
        // Before the answer is waited for: that takes longer.
        while outstanding >= WRITES {
            written.take(side)?;
            outstanding -= 1;
        }
        if !server {
            await_value(side, arrived, turn, &mut outstanding)?;
        }
        if watch.lap() {
            check_interrupted()?;
        }
    }
    let times = watch.stop();
    for _ in 0..outstanding {
        side.take(Queue::Request)?;
    }
    Ok(Outcome { times, bad: 0 })
}

/// [`write_poll`] in any order.
fn write_poll_any(side: &mut Side, order: &Order, server: bool, pace: Pace) -> Result<Outcome> {
    let size = order.size as usize;
    let stamp = side.map.source() + size - 8;
    let arrived = side.map.landing() + size - 8;
    let (mut outstanding, mut turn, pauses) = (0, 0, pace.pauses());
    let mut watch = Stopwatch::start(pace.group, order.count * side.endpoints() as u64);
    for _ in 0..order.count {
        for ep in 0..side.endpoints() {
            turn += 1;
            if server {
                check_interrupted()?;
                await_word(side, arrived, turn, &mut outstanding)?;
                read_arrived(side, order);
            } else if pauses {
                watch.pause(pace.pause);
            }
            write_source(side, order, turn);
            side.word(stamp)
                .store(turn, std::sync::atomic::Ordering::Relaxed);
            let (from, to) = (side.map.source(), side.map.landing());
            side.write(ep, from, to, order.size, ep as u64)?;
            outstanding += 1;
            // Before the answer is waited for: that takes longer.
            while outstanding >= WRITES {
                side.take(Queue::Request)?;
                outstanding -= 1;
            }
            if !server {
                await_word(side, arrived, turn, &mut outstanding)?;
                read_arrived(side, order);
            }
            if watch.lap() {
                check_interrupted()?;
            }
        }
    }
    let times = watch.stop();
    for _ in 0..outstanding {
        side.take(Queue::Request)?;
    }
    let mut bad = 0;
    if order.verifies() {
        let seed = pattern::seed(!server, 0, 0);
        let at = side.map.landing();
        bad = u64::from(!pattern::intact(side.bytes(at, size - 8), seed));
    }
    Ok(Outcome { times, bad })
}

/// Writes what is in front of the stamp, if that is ordered.
#[inline(always)]
fn write_source(side: &mut Side, order: &Order, turn: u64) {
    if order.data == Data::Touched {
        let from = side.map.source();
        pattern::write(side.bytes(from, order.size as usize - 8), turn);
    }
}

/// Reads what has arrived in front of the stamp, if that is ordered.
#[inline(always)]
fn read_arrived(side: &mut Side, order: &Order) {
    if order.data == Data::Touched {
        let to = side.map.landing();
        pattern::read(side.bytes(to, order.size as usize - 8));
    }
}

/// Polls for a word in memory, and now and then for the completions of our own writes.
#[inline(always)]
fn await_word(side: &Side, at: usize, value: u64, outstanding: &mut u32) -> Result<()> {
    await_value(side, side.word(at), value, outstanding)
}

/// [`await_word`] for a word that the caller has.
#[inline(always)]
fn await_value(side: &Side, word: &AtomicU64, value: u64, outstanding: &mut u32) -> Result<()> {
    use std::sync::atomic::Ordering::Acquire;
    let mut idle = Idle::default();
    loop {
        for _ in 0..MEMORY_POLLS {
            if word.load(Acquire) == value {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if side.poll(Queue::Request)?.is_some() {
            *outstanding -= 1;
        }
        idle.look_around(side)?;
    }
}

/// Makes the memory ready for an order: what is written from, what is written to.
pub fn furnish(side: &mut Side, order: &Order, server: bool) {
    let slots = Slots::new(order);
    let size = order.size as usize;
    if order.op == Op::WritePoll {
        let (source, landing) = (side.map.source(), side.map.landing());
        pattern::fill(side.bytes(source, size - 8), pattern::seed(server, 0, 0));
        side.bytes(landing, size).fill(0);
    } else if order.verifies() {
        for ep in 0..side.endpoints() {
            for number in 0..slots.per_ep() as u64 {
                prepare::<false>(side, order, slots, server, ep, number);
                let at = side.map.landing() + slots.offset(ep, number);
                side.bytes(at, size).fill(0);
            }
        }
    }
    let bell = side.map.bell();
    side.bytes(bell, 8).fill(0);
    fence();
}

/// Posts an operation that is not a send.
#[inline(always)]
pub fn post_one_sided<const PLAIN: bool>(
    side: &Side,
    order: &Order,
    slots: Slots,
    ep: usize,
    number: u64,
) -> Result<()> {
    let offset = slots.offset_as::<PLAIN>(ep, number);
    let (source, landing) = (side.map.source() + offset, side.map.landing() + offset);
    match order.op {
        Op::Read => side.read_as::<PLAIN>(ep, landing, source, order.size, ep as u64),
        _ => side.write_as::<PLAIN>(ep, source, landing, order.size, ep as u64),
    }
}

/// What a read has brought: whether it is wrong.
#[inline(always)]
pub fn check_read<const PLAIN: bool>(
    side: &mut Side,
    order: &Order,
    slots: Slots,
    ep: usize,
    number: u64,
) -> u64 {
    if PLAIN || order.op != Op::Read {
        return 0;
    }
    let at = side.map.landing() + slots.offset(ep, number);
    // The server has filled each place once.
    let place = number & (slots.per_ep() as u64 - 1);
    wrong(side, order, at, pattern::seed(true, ep, place))
}

/// Waits until what was written has arrived: a write completes here before it is there, but a
/// read behind it, on the same endpoint, does not.
pub fn settle(side: &Side, order: &Order) -> Result<()> {
    if order.op != Op::Write {
        return Ok(());
    }
    let at = side.map.scratch();
    for ep in 0..side.endpoints() {
        side.read(ep, at, at, 8, ep as u64)?;
        side.take(Queue::Request)?;
    }
    Ok(())
}

/// Reads or writes one at a time.
pub fn one_sided(side: &mut Side, order: &Order, pace: Pace) -> Result<Outcome> {
    match side.is_plain(order) {
        true => one_sided_as::<true>(side, order, pace),
        false => one_sided_as::<false>(side, order, pace),
    }
}

fn one_sided_as<const PLAIN: bool>(side: &mut Side, order: &Order, pace: Pace) -> Result<Outcome> {
    let slots = Slots::new(order);
    let endpoints = side.endpoints();
    let (mut bad, pauses) = (0, pace.pauses());
    let mut watch = Stopwatch::start(pace.group, order.count * endpoints as u64);
    let mut turns = Turns::new(endpoints, pace.random);
    for number in 0..order.count {
        for &ep in turns.next(&mut watch) {
            if pauses {
                watch.pause(pace.pause);
            }
            if order.op == Op::Write {
                prepare::<PLAIN>(side, order, slots, false, ep, number);
            }
            post_one_sided::<PLAIN>(side, order, slots, ep, number)?;
            side.take_as::<PLAIN>(Queue::Request)?;
            bad += check_read::<PLAIN>(side, order, slots, ep, number);
            if watch.lap() {
                check_interrupted()?;
            }
        }
    }
    let times = watch.stop();
    settle(side, order)?;
    Ok(Outcome { times, bad })
}

/// How many of the last writes of each endpoint are wrong: what the server finds in its memory.
pub fn check_written(side: &mut Side, order: &Order) -> u64 {
    let slots = Slots::new(order);
    let first = order.count.saturating_sub(slots.per_ep() as u64);
    let mut bad = 0;
    for ep in 0..side.endpoints() {
        for number in first..order.count {
            let at = side.map.landing() + slots.offset(ep, number);
            bad += wrong(side, order, at, pattern::seed(false, ep, number));
        }
    }
    bad
}
