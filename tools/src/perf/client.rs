//! The end that measures, and the order of things that it has in common with the loopback.

use std::rc::Rc;
use std::time::{Duration, Instant};

use dat_core::abi::common::*;

use super::failure::{Result, error};
use super::fairness;
use super::ia::{Address, Ia};
use super::inbox::{Inbox, Slots};
use super::link::Link;
use super::options::{Options, Wait};
use super::order::{Hello, Note, Op, Order, Test};
use super::plan::{self, Item, Plan};
use super::progress::Progress;
use super::report::{Report, Row};
use super::run::{self, Outcome, Pace};
use super::samples;
use super::side::{Queue, Side};
use super::streams;

/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(10);

/// Carries an order out.
pub trait Runner {
    /// Measures once.
    fn run(&mut self, order: &Order, pace: Pace) -> Result<Outcome>;
}

/// Measures all of a plan.
pub fn measure(
    options: &Options,
    plan: &Plan,
    runner: &mut impl Runner,
    trips: fn(&Order) -> u32,
    report: &mut Report,
) -> Result<()> {
    let progress = Progress::new();
    for (index, item) in plan.items.iter().enumerate() {
        progress.begin(item, index + 1, plan.items.len());
        let row = measure_item(options, item, runner, trips, &progress)?;
        progress.end();
        report.add(row)?;
    }
    Ok(())
}

fn measure_item(
    options: &Options,
    item: &Item,
    runner: &mut impl Runner,
    trips: fn(&Order) -> u32,
    progress: &Progress,
) -> Result<Row> {
    let endpoints = plan::measured(options, item);
    let mut bad = 0;
    let each = probe(options, item, runner, &mut bad)?;
    let (short, warm_up) = plan::within_time(options, item, each);
    let window = match options.count {
        Some(_) => plan::window(options, item),
        None => short,
    };
    let warm_up = plan::order(options, item, short, warm_up);
    let begun = Instant::now();
    let warm = runner.run(&warm_up, plan::pace(options, 1))?;
    let warm_took = begun.elapsed();
    let warm_total = warm_up.count * endpoints;
    let each = match item.test {
        // One slow operation of a few says little about the next ones.
        Test::Latency => {
            let usual = Duration::from_secs_f64(warm.times.latency(warm_total, 1).p50 / 1e6);
            plan::lasting(options, usual, warm_took, warm_total)
        }
        _ => warm.times.total.div_f64(warm_total as f64),
    };
    let order = plan::order(options, item, window, plan::count(options, each));
    let total = order.count * endpoints;
    let pauses = Duration::from_micros(options.pause).mul_f64(match item.test {
        Test::Latency => total as f64,
        _ => 0.0,
    });
    progress.expect(each.mul_f64(total as f64) + pauses);
    let pace = plan::pace(options, samples::group(each));
    let Outcome { times, bad: wrong } = runner.run(&order, pace)?;
    bad += warm.bad + wrong;
    if bad > 0 {
        let (test, op) = (item.test.name(), item.op.name());
        return error(format!(
            "{bad} messages were wrong ({test}, {op}, {} bytes)",
            item.size
        ));
    }
    let seconds = times.total.as_secs_f64();
    let (group, samples) = (times.group, times.samples());
    let latency = match item.test {
        Test::Latency => Some(times.latency(total, trips(&order))),
        Test::Fairness => Some(times.latency(samples, trips(&order))),
        Test::Bandwidth | Test::Rate => None,
    };
    Ok(Row {
        item: *item,
        count: total,
        seconds,
        group: latency.is_some().then_some(group),
        latency,
    })
}

/// How long one more operation takes, when there are others at the time: not the delay of the link.
/// Adds messages that were wrong.
fn probe(
    options: &Options,
    item: &Item,
    runner: &mut impl Runner,
    bad: &mut u64,
) -> Result<Duration> {
    let mut time_of = |operations: u32| {
        let order = plan::order(options, item, operations, operations.into());
        let outcome = runner.run(&order, plan::pace(options, 1))?;
        *bad += outcome.bad;
        Ok(outcome.times.total)
    };
    let (few, more) = plan::PROBES;
    let few_take = time_of(few)?;
    let difference = time_of(more)?.saturating_sub(few_take);
    Ok(difference.div_f64(f64::from(more - few) * plan::measured(options, item) as f64))
}

/// The client of a server.
pub struct Client {
    side: Side,
    /// How long its connections took, one after the other.
    pub connecting: Duration,
}

impl Client {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// If there is no server, or it refuses.
    pub fn connect(ia: &Rc<Ia>, options: &Options, plan: &Plan, host: &str) -> Result<Client> {
        let address = Address::resolve(host, ia)?;
        let hello = hello(options, plan);
        let mut side = Side::new(ia, &hello, options.wait == Some(Wait::Both))?;
        side.expect_note()?;
        let begun = Instant::now();
        for index in 0..hello.endpoints {
            let mut private = side.introduce(&Hello { index, ..hello }).encode();
            connect(
                &side,
                index.into(),
                &address,
                options.qualifier,
                &mut private,
            )?;
            let answer = side.ia.connected(side.connect_evd, CONNECT);
            let answer = match answer {
                Ok(answer) => answer,
                Err(super::failure::Failure::Error(why)) => {
                    return error(format!("{host}, qualifier {}: {why}", options.qualifier));
                }
                Err(other) => return Err(other),
            };
            match Hello::decode(&answer) {
                Some(server) => {
                    side.peer.base = server.base;
                    side.peer.key = server.key;
                }
                None => {
                    return error(format!(
                        "what listens on {host} is no dat-perf of this version"
                    ));
                }
            }
        }
        let connecting = begun.elapsed();
        Ok(Client { side, connecting })
    }

    /// What connects it to the server.
    pub fn link(&self) -> Link {
        self.side.link()
    }

    /// Ends the session.
    pub fn close(mut self) -> Result<()> {
        self.side.send_note(&Note::Bye)?;
        self.side.disconnect();
        Ok(())
    }

    fn expect(&mut self, wanted: fn(Note) -> Option<u64>) -> Result<u64> {
        let note = self.side.receive_note()?;
        match wanted(note) {
            Some(value) => Ok(value),
            None => error(format!("the server has answered out of turn: {note:?}")),
        }
    }
}

/// What the session needs.
pub fn hello(options: &Options, plan: &Plan) -> Hello {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Hello {
        index: 0,
        endpoints: options.endpoints,
        window: plan.window,
        session: (since_epoch.as_nanos() as u64) ^ u64::from(std::process::id()) << 48,
        area: plan.area as u64,
        base: 0,
        key: 0,
        registers: options.register,
    }
}

/// Asks for a connection of an endpoint.
pub fn connect(
    side: &Side,
    ep: usize,
    address: &Address,
    qualifier: u64,
    private: &mut [u8],
) -> Result<()> {
    // SAFETY: an endpoint of ours, an address and private data that outlive the call.
    let code = unsafe {
        (side.api.ep_connect)(
            side.ep(ep),
            address.as_ptr(),
            qualifier,
            CONNECT.as_micros() as DAT_TIMEOUT,
            private.len() as DAT_COUNT,
            private.as_mut_ptr().cast(),
            DAT_QOS_BEST_EFFORT,
            DAT_CONNECT_DEFAULT_FLAG,
        )
    };
    side.api.check("dat_ep_connect", code)
}

impl Runner for Client {
    fn run(&mut self, order: &Order, pace: Pace) -> Result<Outcome> {
        let expected = match (order.test, order.op) {
            (Test::Latency, Op::Send) => order.count,
            (_, Op::Send) => streams::credits(order),
            _ => 0,
        };
        // The receive of "ready" is posted already, so it goes first.
        run::furnish(&mut self.side, order, false);
        let slots = Slots::new(order);
        let open = match order.test {
            Test::Fairness => Inbox::beside,
            _ => Inbox::open,
        };
        let mut inbox = open(
            &self.side,
            slots,
            order.size,
            expected,
            streams::depth(order),
        )?;
        self.side.send_note(&Note::Order(*order))?;
        self.expect(|note| (note == Note::Ready).then_some(0))?;
        let side = &mut self.side;
        let mut outcome = match (order.test, order.op) {
            (Test::Latency, Op::Send) => run::ping(side, order, &mut inbox, pace)?,
            (Test::Latency, Op::WritePoll) => run::write_poll(side, order, false, pace)?,
            (Test::Latency, _) => run::one_sided(side, order, pace)?,
            (Test::Fairness, _) => fairness::client(side, order, &mut inbox, pace.burst)?,
            _ => streams::stream(side, order, &mut inbox, pace)?,
        };
        if order.passive {
            let bell = side.map.bell();
            side.bytes(bell, 8).fill(1);
            side.write(0, bell, bell, 8, 0)?;
            side.take(Queue::Request)?;
        }
        side.send_note(&Note::Finish)?;
        outcome.bad += self.expect(|note| match note {
            Note::Done(bad) => Some(bad),
            _ => None,
        })?;
        self.side.expect_note()?;
        Ok(outcome)
    }
}

/// How many times the latency an operation takes: half a round trip is what counts.
pub fn trips(order: &Order) -> u32 {
    match order.op.two_sided() {
        true => 2,
        false => 1,
    }
}
