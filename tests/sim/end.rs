//! One end of a connection of the program, and what it may see: each request completes once and in
//! order, each byte is the one that was sent, and the events follow each other as documented.

mod completions;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use dat_core::testing::device::soft::{Cq, Mr, Mw, Pd, Qp, Soft};
use dat_core::testing::device::*;

use super::memory::Memory;
use super::plan::{EndPlan, Kind, Op, Receive};

/// Collects the events of a queue pair.
#[derive(Default)]
pub struct Handler(Mutex<VecDeque<CmEvent>>);

impl QpHandler for Handler {
    fn connection(&self, event: CmEvent) {
        self.0.lock().unwrap().push_back(event);
    }

    fn soft_watermark(&self) {}
}

/// Is not interested in notifications: the program polls.
struct Quiet;

impl CqHandler for Quiet {
    fn notify(&self) {}

    fn overflow(&self) {
        panic!("a completion queue that is large enough has overflowed");
    }
}

/// What may happen to an end.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Any failure: an error was injected into the connection, or something has happened to it.
    pub failure: bool,
    /// Whether an end has disconnected, and then whether only gracefully.
    pub ended: Option<bool>,
    /// A send that succeeds before the peer has a receive for it: through shared memory a short
    /// message is sent when it is in the ring.
    pub early_send: bool,
    /// A long message is received if and only if it is sent, however the connection ends: through
    /// shared memory.
    pub exact_ends: bool,
}

/// The key and the address of a window.
pub struct Window {
    pub key: u32,
    /// Whether the bind has completed.
    pub bound: bool,
}

/// See the module.
pub struct End {
    pub process: usize,
    pub qp: Option<Arc<Qp>>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    mr: Option<Mr>,
    mw: Option<Arc<Mw>>,
    _pd: Arc<Pd>,
    handler: Arc<Handler>,
    pub memory: Memory,
    pub ops: Vec<Op>,
    pub receives: Vec<Receive>,
    pub early: usize,
    /// Number of steps before receives beyond the early ones are posted.
    pub lag: u64,
    pub window: Option<Window>,
    /// Number of requests and receives that were posted, or given up.
    pub next_op: usize,
    pub next_receive: usize,
    /// Requests that were posted and have not completed.
    posted: VecDeque<usize>,
    /// Receives that were posted and have not completed.
    waiting: VecDeque<usize>,
    /// Whether each request has succeeded, as far as is known.
    pub succeeded: Vec<bool>,
    /// Number of receives that have succeeded.
    pub received: usize,
    /// The private data with which the connection was established.
    pub established: Option<Box<[u8]>>,
    /// The event that has ended the connection or the attempt.
    pub over: Option<CmEvent>,
    /// How the program has disconnected this end; with the number of requests posted before.
    pub left: Option<(bool, usize)>,
    /// Number of steps of the program since the connection was established.
    pub steps: u64,
    /// Whether an attempt was begun that has to end with an event.
    pub begun: bool,
    /// Whether the other end has disconnected.
    pub peer_left: bool,
    /// Number of requests of the other end whose effect was checked.
    checked: usize,
    /// Whether a request with a bad key was posted.
    pub bad_posted: bool,
    /// For each request that is a read, the key of the contents.
    pub read_keys: Vec<u64>,
}

impl End {
    /// An end that is not connected.
    pub fn new(device: &Arc<Soft>, process: usize, plan: EndPlan) -> End {
        let EndPlan {
            mut memory,
            ops,
            receives,
            early,
            lag,
            ..
        } = plan;
        memory.fill();
        let pd = Arc::new(device.alloc_pd().unwrap());
        let send_cq = device.create_cq(256, Arc::new(Quiet)).unwrap();
        let recv_cq = device.create_cq(256, Arc::new(Quiet)).unwrap();
        let handler = Arc::new(Handler::default());
        let parts = QpParts {
            pd: &*pd,
            send_cq: Some(&send_cq),
            recv_cq: Some(&recv_cq),
            srq: None,
        };
        let attr = QpAttr {
            context: 1,
            max_send_wr: plan.queue,
            max_recv_wr: plan.queue,
            max_send_sge: 3,
            max_recv_sge: 3,
            max_message_size: 1 << 30,
            max_rdma_size: 1 << 30,
            max_rd_in: plan.rd_in,
            max_rd_out: plan.rd_out,
            recv_solicited_only: false,
            datagrams: false,
        };
        let qp = device.create_qp(&parts, &attr, handler.clone()).unwrap();
        let (at, len) = memory.region();
        let mr = device.reg_mr(&pd, at, len, Access::all()).unwrap();
        let mw = plan
            .has_window
            .then(|| device.alloc_mw(&pd, WindowScope::Domain).unwrap());
        End {
            process,
            qp: Some(qp),
            send_cq,
            recv_cq,
            mr: Some(mr),
            mw,
            _pd: pd,
            handler,
            memory,
            succeeded: vec![false; ops.len()],
            ops,
            receives,
            early,
            lag,
            window: None,
            next_op: 0,
            next_receive: 0,
            posted: VecDeque::new(),
            waiting: VecDeque::new(),
            received: 0,
            established: None,
            over: None,
            left: None,
            steps: 0,
            begun: false,
            peer_left: false,
            checked: 0,
            bad_posted: false,
            read_keys: Vec::new(),
        }
    }

    /// Notes what is read from `peer`.
    pub fn find_read_keys(&mut self, peer: &End) {
        let key = |op: &Op| match op.kind {
            Kind::Read { peer_slot, .. } => peer.memory.slots[peer_slot].source,
            _ => None,
        };
        self.read_keys = self
            .ops
            .iter()
            .map(|op| key(op).unwrap_or_default())
            .collect();
    }

    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        self.qp.as_ref().expect("the run goes on")
    }

    /// The key of the region.
    pub fn key(&self) -> u32 {
        self.mr.as_ref().expect("the run goes on").lkey()
    }

    /// Whether the end is connected and may be used.
    pub fn is_up(&self) -> bool {
        self.established.is_some() && self.over.is_none()
    }

    /// Whether all that this end was to do is done.
    pub fn is_done(&self) -> bool {
        self.next_op == self.ops.len()
            && self.posted.is_empty()
            && self.received == self.receives.len()
    }

    fn segments(&self, slot: usize, len: usize, parts: usize) -> Vec<Sge> {
        let (mut at, lkey) = (self.memory.address(slot), self.key());
        let mut left = len;
        let mut all = Vec::new();
        for part in 0..parts {
            let n = match part + 1 == parts {
                true => left,
                false => left / (parts - part).min(2),
            };
            let len = n as u32;
            all.push(Sge {
                addr: at,
                len,
                lkey,
            });
            at += n as u64;
            left -= n;
        }
        all
    }

    /// Posts the next receive, if there is one and it has room.
    pub fn post_receive(&mut self) -> Result<bool, String> {
        let Some(receive) = self.receives.get(self.next_receive) else {
            return Ok(false);
        };
        let number = self.next_receive;
        let len = self.memory.slots[receive.slot].len;
        let sges = self.segments(receive.slot, len, receive.parts);
        let wr = RecvWr {
            wr_id: number as u64,
            sges: &sges,
            flags: WrFlags::empty(),
        };
        match self.qp().post_recv(&wr) {
            Ok(()) => {
                self.next_receive += 1;
                self.waiting.push_back(number);
                Ok(true)
            }
            Err(PostError::QueueFull) => Ok(false),
            Err(error) => Err(format!("a receive was refused: {error:?}")),
        }
    }

    /// Posts the next request, if there is one and it has room. `peer` is the other end.
    pub fn post_request(&mut self, peer: &End) -> Result<bool, String> {
        let Some(op) = self.ops.get(self.next_op).copied() else {
            return Ok(false);
        };
        let number = self.next_op;
        let remote = |slot: usize| {
            let key = match (&peer.window, op.window) {
                (Some(window), true) => window.key,
                _ => peer.key(),
            };
            Remote {
                addr: peer.memory.address(slot),
                rkey: if op.bad_key { key ^ 0x100 } else { key },
            }
        };
        let reaches = !matches!(op.kind, Kind::Send { .. } | Kind::Bind);
        let bound = peer.window.as_ref().is_some_and(|window| window.bound);
        if reaches && op.window && !bound && peer.is_up() {
            return Ok(false);
        }
        let (send, slot) = match op.kind {
            Kind::Bind => return self.post_bind(number),
            Kind::Send { from, .. } => (SendOp::Send, from),
            Kind::Write { from, peer_slot } => (SendOp::RdmaWrite(remote(peer_slot)), from),
            Kind::Read { to, peer_slot } => {
                let len = op.len as u32;
                let remote = remote(peer_slot);
                (SendOp::RdmaRead { remote, len }, to)
            }
            Kind::WriteImm {
                from,
                peer_slot,
                number,
            } => {
                let remote = remote(peer_slot);
                let imm = peer.receives[number].imm.unwrap_or_default();
                (SendOp::RdmaWriteImm { remote, imm }, from)
            }
            Kind::Atomic {
                to,
                peer_slot,
                before,
                swaps,
            } => {
                let remote = remote(peer_slot);
                let op = match swaps {
                    false => AtomicOp::FetchAdd { add: 1 },
                    true => AtomicOp::CompareSwap {
                        compare: before,
                        swap: before.wrapping_add(1),
                    },
                };
                (SendOp::Atomic { remote, op }, to)
            }
        };
        let sges = self.segments(slot, op.len, op.parts);
        let wr = SendWr {
            wr_id: number as u64,
            op: send,
            sges: &sges,
            flags: op.flags,
        };
        self.posted(number, self.qp().post_send(&wr))
    }

    fn post_bind(&mut self, number: usize) -> Result<bool, String> {
        let Some(mw) = &self.mw else {
            return Err("a bind without a window".into());
        };
        let (addr, len) = self.memory.region();
        let wr = BindWr {
            wr_id: number as u64,
            context: 77,
            window: mw,
            region: self.mr.as_ref(),
            addr,
            len,
            addressing: Addressing::Virtual,
            access: Access::REMOTE,
            flags: WrFlags::empty(),
        };
        let key = Soft::post_bind(self.qp(), &wr);
        if let Ok(key) = key {
            self.window = Some(Window { key, bound: false });
        }
        self.posted(number, key.map(|_| ()))
    }

    fn posted(&mut self, number: usize, result: Result<(), PostError>) -> Result<bool, String> {
        match result {
            Ok(()) => {
                self.next_op += 1;
                self.bad_posted |= self.ops[number].bad_key;
                self.posted.push_back(number);
                Ok(true)
            }
            Err(PostError::QueueFull) => Ok(false),
            Err(error) => Err(format!("request {number} was refused: {error:?}")),
        }
    }

    /// Ends the use of the library.
    pub fn release(&mut self) {
        if let Some(qp) = self.qp.take() {
            qp.destroy();
        }
        self.mr = None;
        self.mw = None;
    }
}
