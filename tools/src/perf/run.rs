//! The loops that are timed and that both ends have.

use std::time::Duration;

use super::failure::Result;
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

/// The loop's times, and how many messages were wrong.
pub struct Outcome {
    /// When what ended.
    pub times: Times,
    /// Wrong messages.
    pub bad: u64,
}

/// Fills a message that is about to be posted.
#[inline]
pub fn prepare(side: &mut Side, order: &Order, slots: Slots, server: bool, ep: usize, number: u64) {
    if order.data == Data::Left {
        return;
    }
    let at = side.map.source() + slots.offset(ep, number);
    let bytes = side.bytes(at, order.size as usize);
    match order.data {
        Data::Touched => pattern::write(bytes, number),
        _ => pattern::fill(bytes, pattern::seed(server, ep, number)),
    }
}

/// Reads a message, if that is ordered: whether it is wrong.
#[inline]
pub fn wrong(side: &mut Side, order: &Order, at: usize, seed: u64) -> u64 {
    if order.data == Data::Left {
        return 0;
    }
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
#[inline]
fn receive(
    side: &mut Side,
    order: &Order,
    inbox: &mut Inbox,
    server: bool,
) -> Result<(usize, u64)> {
    let completion = side.take(Queue::Recv)?;
    received(side, order, inbox, server, completion)
}

/// A message has arrived; returns its endpoint and whether it is wrong.
#[inline]
pub fn received(
    side: &mut Side,
    order: &Order,
    inbox: &mut Inbox,
    server: bool,
    completion: Completion,
) -> Result<(usize, u64)> {
    let ep = completion.cookie as usize;
    let (at, number) = inbox.arrival(side, ep)?;
    let bad = u64::from(completion.length != order.size);
    let wrong = wrong(side, order, at, pattern::seed(!server, ep, number));
    Ok((ep, bad | wrong))
}

/// Messages to and fro, seen by the client.
pub fn ping(side: &mut Side, order: &Order, inbox: &mut Inbox, pace: Pace) -> Result<Outcome> {
    let slots = Slots::new(order);
    let endpoints = side.endpoints();
    let mut bad = 0;
    let mut watch = Stopwatch::start(pace.group, order.count * endpoints as u64);
    let mut turns = Turns::new(endpoints, pace.random);
    for number in 0..order.count {
        for &ep in turns.next(&mut watch) {
            if !pace.pause.is_zero() {
                watch.without(|| std::thread::sleep(pace.pause));
            }
            prepare(side, order, slots, false, ep, number);
            let at = side.map.source() + slots.offset(ep, number);
            side.send(ep, at, order.size, ep as u64)?;
            bad += receive(side, order, inbox, false)?.1;
            inbox.repost(side, ep)?;
            side.take(Queue::Request)?;
            watch.lap();
        }
    }
    let times = watch.stop();
    Ok(Outcome { times, bad })
}

/// Messages to and fro, seen by the server. Returns how many were wrong.
pub fn pong(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    let slots = Slots::new(order);
    let mut bad = 0;
    for number in 0..order.count {
        for _ in 0..side.endpoints() {
            let (ep, wrong) = receive(side, order, inbox, true)?;
            bad += wrong;
            prepare(side, order, slots, true, ep, number);
            let at = side.map.source() + slots.offset(ep, number);
            side.send(ep, at, order.size, ep as u64)?;
            inbox.repost(side, ep)?;
            side.take(Queue::Request)?;
        }
    }
    Ok(bad)
}

/// RDMA writes to and fro, polled in memory. The last word of each is its number.
pub fn write_poll(side: &mut Side, order: &Order, server: bool, pace: Pace) -> Result<Outcome> {
    let size = order.size as usize;
    let stamp = side.map.source() + size - 8;
    let arrived = side.map.landing() + size - 8;
    let (mut outstanding, mut turn) = (0, 0);
    let mut watch = Stopwatch::start(pace.group, order.count * side.endpoints() as u64);
    for _ in 0..order.count {
        for ep in 0..side.endpoints() {
            turn += 1;
            if server {
                await_word(side, arrived, turn, &mut outstanding)?;
                read_arrived(side, order);
            } else if !pace.pause.is_zero() {
                watch.without(|| std::thread::sleep(pace.pause));
            }
            write_source(side, order, turn);
            side.word(stamp)
                .store(turn, std::sync::atomic::Ordering::Relaxed);
            let (from, to) = (side.map.source(), side.map.landing());
            side.write(ep, from, to, order.size, ep as u64)?;
            outstanding += 1;
            if !server {
                await_word(side, arrived, turn, &mut outstanding)?;
                read_arrived(side, order);
            }
            while outstanding >= WRITES {
                side.take(Queue::Request)?;
                outstanding -= 1;
            }
            watch.lap();
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
#[inline]
fn write_source(side: &mut Side, order: &Order, turn: u64) {
    if order.data == Data::Touched {
        let from = side.map.source();
        pattern::write(side.bytes(from, order.size as usize - 8), turn);
    }
}

/// Reads what has arrived in front of the stamp, if that is ordered.
#[inline]
fn read_arrived(side: &mut Side, order: &Order) {
    if order.data == Data::Touched {
        let to = side.map.landing();
        pattern::read(side.bytes(to, order.size as usize - 8));
    }
}

/// Polls for a word in memory, and now and then for the completions of our own writes.
#[inline]
fn await_word(side: &Side, at: usize, value: u64, outstanding: &mut u32) -> Result<()> {
    use std::sync::atomic::Ordering::Acquire;
    let mut idle = Idle::default();
    loop {
        for _ in 0..MEMORY_POLLS {
            if side.word(at).load(Acquire) == value {
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
                prepare(side, order, slots, server, ep, number);
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
#[inline]
pub fn post_one_sided(
    side: &Side,
    order: &Order,
    slots: Slots,
    ep: usize,
    number: u64,
) -> Result<()> {
    let offset = slots.offset(ep, number);
    let (source, landing) = (side.map.source() + offset, side.map.landing() + offset);
    match order.op {
        Op::Read => side.read(ep, landing, source, order.size, ep as u64),
        _ => side.write(ep, source, landing, order.size, ep as u64),
    }
}

/// What a read has brought: whether it is wrong.
#[inline]
pub fn check_read(side: &mut Side, order: &Order, slots: Slots, ep: usize, number: u64) -> u64 {
    if order.op != Op::Read {
        return 0;
    }
    let at = side.map.landing() + slots.offset(ep, number);
    // The server has filled each place once.
    let place = number & (slots.per_ep() as u64 - 1);
    wrong(side, order, at, pattern::seed(true, ep, place))
}

/// Waits until what was written has arrived: a write completes here before it is there, but a
/// read behind it, on the same endpoint, does not.
fn settle(side: &Side, order: &Order) -> Result<()> {
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
    let slots = Slots::new(order);
    let endpoints = side.endpoints();
    let mut bad = 0;
    let mut watch = Stopwatch::start(pace.group, order.count * endpoints as u64);
    let mut turns = Turns::new(endpoints, pace.random);
    for number in 0..order.count {
        for &ep in turns.next(&mut watch) {
            if !pace.pause.is_zero() {
                watch.without(|| std::thread::sleep(pace.pause));
            }
            if order.op == Op::Write {
                prepare(side, order, slots, false, ep, number);
            }
            post_one_sided(side, order, slots, ep, number)?;
            side.take(Queue::Request)?;
            bad += check_read(side, order, slots, ep, number);
            watch.lap();
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

/// Receives that are posted ahead on an endpoint: enough for the sender's window while an
/// acknowledgement is on its way.
pub fn depth(order: &Order) -> u64 {
    2 * u64::from(order.window)
}

/// Each so many messages the receiver of a stream tells that it has posted as many new
/// receives.
pub fn credit(order: &Order) -> u64 {
    u64::from(order.window)
}

/// A stream of operations, seen by the client. `inbox` is for the receiver's credits.
pub fn stream(side: &mut Side, order: &Order, inbox: &mut Inbox, pace: Pace) -> Result<Outcome> {
    let slots = Slots::new(order);
    let endpoints = side.endpoints();
    let window = u64::from(order.window);
    let burst = u64::from(pace.burst).clamp(1, window);
    let mut granted = match order.op {
        Op::Send => vec![depth(order); endpoints],
        _ => vec![u64::MAX; endpoints],
    };
    let (mut posted, mut done) = (vec![0; endpoints], vec![0; endpoints]);
    let (mut left, mut outstanding, mut bad) = (order.count * endpoints as u64, 0, 0);
    let mut idle = Idle::default();
    let watch = Stopwatch::start(u64::MAX, 0);
    while left > 0 {
        for ep in 0..endpoints {
            let room = (done[ep] + window).min(granted[ep]).min(order.count) - posted[ep];
            if room < burst && posted[ep] + room < order.count {
                continue;
            }
            for number in posted[ep]..posted[ep] + room {
                if order.op != Op::Read {
                    prepare(side, order, slots, false, ep, number);
                }
                if order.op == Op::Send {
                    let at = side.map.source() + slots.offset(ep, number);
                    side.send(ep, at, order.size, ep as u64)?;
                } else {
                    post_one_sided(side, order, slots, ep, number)?;
                }
            }
            posted[ep] += room;
            outstanding += room;
        }
        // With a wait the first completion ends it; a credit comes only after completions.
        let mut completion = match side.wait && outstanding > 0 {
            true => Some(side.take(Queue::Request)?),
            false => side.poll(Queue::Request)?,
        };
        let mut idled = completion.is_none();
        while let Some(ended) = completion {
            let ep = ended.cookie as usize;
            bad += check_read(side, order, slots, ep, done[ep]);
            done[ep] += 1;
            left -= 1;
            // Nothing comes where nothing is outstanding.
            outstanding -= 1;
            completion = match outstanding {
                0 => None,
                _ => side.poll(Queue::Request)?,
            };
        }
        if order.op == Op::Send {
            let mut credits = match side.wait && left > 0 && outstanding == 0 {
                true => Some(side.take(Queue::Recv)?),
                false => side.poll(Queue::Recv)?,
            };
            while let Some(arrived) = credits {
                let ep = arrived.cookie as usize;
                inbox.arrival(side, ep)?;
                granted[ep] += credit(order);
                inbox.repost(side, ep)?;
                idled = false;
                credits = side.poll(Queue::Recv)?;
            }
        }
        match idled {
            true => idle.look_around(side)?,
            false => idle = Idle::default(),
        }
    }
    // The last credit says that all has arrived, if the count is a multiple of the window.
    while order.op == Op::Send && inbox.arrived.iter().any(|&n| n < credits(order)) {
        let ep = side.take(Queue::Recv)?.cookie as usize;
        inbox.arrival(side, ep)?;
        inbox.repost(side, ep)?;
    }
    settle(side, order)?;
    let times = watch.stop();
    Ok(Outcome { times, bad })
}

/// The receiver's side of a stream of sends.
pub fn absorb(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    let at = side.map.source();
    let mut unreaped = 0;
    let mut bad = 0;
    for _ in 0..order.count * side.endpoints() as u64 {
        let (ep, wrong) = receive(side, order, inbox, true)?;
        bad += wrong;
        inbox.repost(side, ep)?;
        if inbox.arrived[ep].is_multiple_of(credit(order)) {
            if unreaped > 0 {
                side.take(Queue::Request)?;
                unreaped -= 1;
            }
            side.send(ep, at, 1, ep as u64)?;
            unreaped += 1;
        }
    }
    for _ in 0..unreaped {
        side.take(Queue::Request)?;
    }
    Ok(bad)
}

/// Credits that the sender of a stream gets on each endpoint.
pub fn credits(order: &Order) -> u64 {
    order.count / credit(order)
}
