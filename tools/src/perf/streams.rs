//! Streams of operations, and the credits that the receiver of one gives.

use super::failure::{Result, check_interrupted};
use super::idle::Idle;
use super::inbox::{Inbox, Slots};
use super::order::{Op, Order};
use super::run::{Outcome, Pace, check_read, post_one_sided, prepare, receive, settle};
use super::samples::Stopwatch;
use super::side::{Queue, Side};

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
    match side.is_plain(order) {
        true => stream_as::<true>(side, order, inbox, pace),
        false => stream_as::<false>(side, order, inbox, pace),
    }
}

fn stream_as<const PLAIN: bool>(
    side: &mut Side,
    order: &Order,
    inbox: &mut Inbox,
    pace: Pace,
) -> Result<Outcome> {
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
        check_interrupted()?;
        for ep in 0..endpoints {
            let room = (done[ep] + window).min(granted[ep]).min(order.count) - posted[ep];
            if room < burst && posted[ep] + room < order.count {
                continue;
            }
            for number in posted[ep]..posted[ep] + room {
                if order.op != Op::Read {
                    prepare::<PLAIN>(side, order, slots, false, ep, number);
                }
                if order.op == Op::Send {
                    let at = side.map.source() + slots.offset_as::<PLAIN>(ep, number);
                    side.send_as::<PLAIN>(ep, at, order.size, ep as u64)?;
                } else {
                    post_one_sided::<PLAIN>(side, order, slots, ep, number)?;
                }
            }
            posted[ep] += room;
            outstanding += room;
        }
        // With a wait the first completion ends it; a credit comes only after completions.
        let mut completion = match !PLAIN && side.wait && outstanding > 0 {
            true => Some(side.take_as::<PLAIN>(Queue::Request)?),
            false => side.poll_as::<PLAIN>(Queue::Request)?,
        };
        let mut idled = completion.is_none();
        while let Some(ended) = completion {
            let ep = ended.cookie as usize;
            bad += check_read::<PLAIN>(side, order, slots, ep, done[ep]);
            done[ep] += 1;
            left -= 1;
            // Nothing comes where nothing is outstanding.
            outstanding -= 1;
            completion = match outstanding {
                0 => None,
                _ => side.poll_as::<PLAIN>(Queue::Request)?,
            };
        }
        if order.op == Op::Send {
            let mut credits = match !PLAIN && side.wait && left > 0 && outstanding == 0 {
                true => Some(side.take_as::<PLAIN>(Queue::Recv)?),
                false => side.poll_as::<PLAIN>(Queue::Recv)?,
            };
            while let Some(arrived) = credits {
                let ep = arrived.cookie as usize;
                inbox.arrival_as::<PLAIN>(side, ep)?;
                granted[ep] += credit(order);
                inbox.repost_as::<PLAIN>(side, ep)?;
                idled = false;
                credits = side.poll_as::<PLAIN>(Queue::Recv)?;
            }
        }
        match idled {
            true => idle.look_around(side)?,
            false => idle = Idle::default(),
        }
    }
    // The last credit says that all has arrived, if the count is a multiple of the window.
    while order.op == Op::Send && inbox.arrived.iter().any(|&n| n < credits(order)) {
        let ep = side.take_as::<PLAIN>(Queue::Recv)?.cookie as usize;
        inbox.arrival_as::<PLAIN>(side, ep)?;
        inbox.repost_as::<PLAIN>(side, ep)?;
    }
    settle(side, order)?;
    let times = watch.stop();
    Ok(Outcome { times, bad })
}

/// The receiver's side of a stream of sends.
pub fn absorb(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    match side.is_plain(order) {
        true => absorb_as::<true>(side, order, inbox),
        false => absorb_as::<false>(side, order, inbox),
    }
}

fn absorb_as<const PLAIN: bool>(side: &mut Side, order: &Order, inbox: &mut Inbox) -> Result<u64> {
    let at = side.map.source();
    let mut unreaped = 0;
    let mut bad = 0;
    for _ in 0..order.count * side.endpoints() as u64 {
        check_interrupted()?;
        let (ep, wrong) = receive::<PLAIN>(side, order, inbox, true)?;
        bad += wrong;
        inbox.repost_as::<PLAIN>(side, ep)?;
        if inbox.arrived[ep].is_multiple_of(credit(order)) {
            if unreaped > 0 {
                side.take_as::<PLAIN>(Queue::Request)?;
                unreaped -= 1;
            }
            side.send_as::<PLAIN>(ep, at, 1, ep as u64)?;
            unreaped += 1;
        }
    }
    for _ in 0..unreaped {
        side.take_as::<PLAIN>(Queue::Request)?;
    }
    Ok(bad)
}

/// Credits that the sender of a stream gets on each endpoint.
pub fn credits(order: &Order) -> u64 {
    order.count / credit(order)
}
