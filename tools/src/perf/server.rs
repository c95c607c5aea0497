//! The end that serves.

use std::mem::MaybeUninit;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dat_core::abi::common::*;

use super::failure::{Result, error};
use super::fairness;
use super::ia::{EVENTS, Ia, private_data};
use super::idle::Idle;
use super::inbox::{Inbox, Slots};
use super::options::Options;
use super::order::{COUNT_LIMIT, Hello, Note, Op, Order, Test};
use super::run::{self, Pace};
use super::side::Side;
use super::streams;

/// How long the rest of a session's connections may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a client may take to disconnect after its last word.
const GOODBYE: Duration = Duration::from_secs(2);
/// What a session may take of memory.
const AREA_MAX: u64 = 2 << 30;

/// A request for a connection.
struct Request {
    handle: DAT_CR_HANDLE,
    hello: Option<Hello>,
}

/// Serves clients, one after the other.
pub struct Server {
    ia: Rc<Ia>,
    evd: DAT_EVD_HANDLE,
    /// Where it listens.
    pub qualifier: u64,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    ///
    /// If the qualifier is in use.
    pub fn new(ia: &Rc<Ia>, options: &Options) -> Result<Server> {
        let api = ia.api;
        let evd = ia.evd(EVENTS, DAT_EVD_CR_FLAG)?;
        let (mut qualifier, mut psp) = (options.qualifier, ptr::null_mut());
        if qualifier == 0 {
            let flag = DAT_PSP_CONSUMER_FLAG;
            // SAFETY: an IA and an EVD of ours, and locals to fill.
            let code =
                unsafe { (api.psp_create_any)(ia.handle, &mut qualifier, evd, flag, &mut psp) };
            api.check("dat_psp_create_any", code)?;
        } else {
            let flag = DAT_PSP_CONSUMER_FLAG;
            // SAFETY: as above.
            let code = unsafe { (api.psp_create)(ia.handle, qualifier, evd, flag, &mut psp) };
            match super::api::kind(code) {
                DAT_CONN_QUAL_IN_USE => {
                    return error(format!("qualifier {qualifier} is in use"));
                }
                _ => api.check("dat_psp_create", code)?,
            }
        }
        Ok(Server {
            ia: Rc::clone(ia),
            evd,
            qualifier,
        })
    }

    /// Serves the next client, to its end.
    ///
    /// # Errors
    ///
    /// What ended the session early.
    pub fn session(&self) -> Result<()> {
        let first = loop {
            if let Some(request) = self.request(None)? {
                break request;
            }
        };
        let Some(hello) = first.hello.filter(acceptable) else {
            self.reject(&first);
            return error("refused a client that is no dat-perf of this version, or asks too much");
        };
        let side = Side::new(&self.ia, &hello, false);
        let mut side = match side {
            Ok(side) => side,
            Err(why) => {
                self.reject(&first);
                return Err(why);
            }
        };
        side.peer.base = hello.base;
        side.peer.key = hello.key;
        side.expect_note()?;
        self.accept(&side, &first, 0, &hello)?;
        let deadline = Instant::now() + CONNECT;
        let mut accepted = 1;
        while accepted < hello.endpoints {
            let Some(request) = self.request(Some(deadline))? else {
                return error("the client has not made all its connections");
            };
            match request.hello {
                Some(next) if next.session == hello.session && next.index == accepted => {
                    self.accept(&side, &request, accepted.into(), &hello)?;
                    accepted += 1;
                }
                _ => self.reject(&request),
            }
        }
        serve(&mut side, &hello)?;
        // The client ends the connections.
        let _ = self
            .ia
            .wait(side.connect_evd, Some(Instant::now() + GOODBYE))?;
        Ok(())
    }

    /// Accepts the one connection that is asked for, by this process itself.
    pub fn take_in(&self, side: &Side, ep: usize, hello: &Hello) -> Result<()> {
        match self.request(Some(Instant::now() + CONNECT))? {
            Some(request) => self.accept(side, &request, ep, hello),
            None => error("no connection: it has not been asked for"),
        }
    }

    fn request(&self, deadline: Option<Instant>) -> Result<Option<Request>> {
        let Some(event) = self.ia.wait(self.evd, deadline)? else {
            return Ok(None);
        };
        if event.event_number != DAT_CONNECTION_REQUEST_EVENT {
            return error(format!("event {:#x} on a CR EVD", event.event_number));
        }
        // SAFETY: the event says that this is its payload.
        let handle = unsafe { event.event_data.cr_arrival_event_data }.cr_handle;
        let mut param = MaybeUninit::<DAT_CR_PARAM>::zeroed();
        let api = self.ia.api;
        // SAFETY: the handle of a new request, and a local to fill.
        let code = unsafe { (api.cr_query)(handle, DAT_CR_FIELD_ALL, param.as_mut_ptr()) };
        api.check("dat_cr_query", code)?;
        // SAFETY: zeros are a value of the type; filled by the call.
        let param = unsafe { param.assume_init() };
        let hello = Hello::decode(&private_data(param.private_data, param.private_data_size));
        Ok(Some(Request { handle, hello }))
    }

    fn accept(&self, side: &Side, request: &Request, ep: usize, hello: &Hello) -> Result<()> {
        let mut private = side.introduce(hello).encode();
        let (length, data) = (private.len() as DAT_COUNT, private.as_mut_ptr().cast());
        let api = self.ia.api;
        // SAFETY: a request that nobody has answered, an endpoint of ours, private data that
        // outlives the call.
        let code = unsafe { (api.cr_accept)(request.handle, side.ep(ep), length, data) };
        api.check("dat_cr_accept", code)?;
        self.ia.connected(side.connect_evd, CONNECT).map(drop)
    }

    fn reject(&self, request: &Request) {
        // SAFETY: a request that nobody has answered.
        unsafe { (self.ia.api.cr_reject)(request.handle, 0, ptr::null_mut()) };
    }
}

/// Whether a session can be what a client asks for. The parts of the memory behind the areas hold whole words.
fn acceptable(hello: &Hello) -> bool {
    hello.index == 0
        && hello.endpoints > 0
        && hello.window > 0
        && (1..=AREA_MAX).contains(&hello.area)
        && hello.area.is_multiple_of(8)
}

/// Whether an order is one for a session: what the client has asked for at its beginning is there, and no more.
fn makes_sense(order: &Order, hello: &Hello) -> bool {
    let words = order.op != Op::WritePoll || order.size.is_multiple_of(8);
    words
        && (1..=hello.area).contains(&order.size.into())
        && (1..=hello.window.into()).contains(&order.window)
        && order.count <= COUNT_LIMIT
}

/// Carries out the orders of a client.
fn serve(side: &mut Side, hello: &Hello) -> Result<()> {
    loop {
        match side.receive_note()? {
            Note::Order(order) if makes_sense(&order, hello) => carry_out(side, &order)?,
            Note::Order(_) => return error("an order that makes no sense"),
            Note::Bye => return Ok(()),
            other => return error(format!("the client is out of turn: {other:?}")),
        }
    }
}

fn carry_out(side: &mut Side, order: &Order) -> Result<()> {
    let expected = match (order.op, order.test) {
        (Op::Send, _) => order.count,
        _ => 0,
    };
    side.wait = order.wait;
    let slots = Slots::new(order);
    let open = match order.test {
        Test::Fairness => Inbox::beside,
        _ => Inbox::open,
    };
    let mut inbox = open(side, slots, order.size, expected, streams::depth(order))?;
    if order.test == Test::Fairness {
        fairness::expect(side)?;
    }
    run::furnish(side, order, true);
    side.send_note(&Note::Ready)?;
    let pace = Pace {
        group: u64::MAX,
        pause: Duration::ZERO,
        burst: 1,
        random: false,
    };
    let mut bad = match (order.test, order.op) {
        (Test::Latency, Op::Send) => run::pong(side, order, &mut inbox)?,
        (Test::Fairness, _) => fairness::server(side, order, &mut inbox)?,
        (_, Op::Send) => streams::absorb(side, order, &mut inbox)?,
        (Test::Latency, Op::WritePoll) => run::write_poll(side, order, true, pace)?.bad,
        _ => 0,
    };
    if order.passive {
        await_bell(side)?;
    }
    match side.receive_note()? {
        Note::Finish => {}
        other => return error(format!("the client is out of turn: {other:?}")),
    }
    if order.op == Op::Write {
        bad += run::check_written(side, order);
    }
    side.expect_note()?;
    side.send_note(&Note::Done(bad))
}

/// Does nothing until the client rings: no call, so the library has no thread of ours to work
/// in.
fn await_bell(side: &Side) -> Result<()> {
    let bell = side.map.bell();
    let (mut idle, mut polls) = (Idle::default(), 0_u32);
    while side.word(bell).load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
        super::failure::check_interrupted()?;
        polls += 1;
        if polls.is_multiple_of(1000) {
            idle.check(side)?;
        }
    }
    Ok(())
}
