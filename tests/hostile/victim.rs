//! The end that is attacked: a queue pair with registered memory of every kind, each region between
//! guard bytes, and an honest connection of the same device beside it.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use dat_core::testing::device::soft::iwarp::mpa::{Kind, Local};
use dat_core::testing::device::soft::{ConnRequest, Cq, Listener, Mr, Mw, Pd, Qp, Soft};
use dat_core::testing::device::*;

use crate::iwarp::{dial, mpa_bytes, ready_to_receive, receive_frame, write_all};
use crate::poll::completion;
use crate::soft::{PATIENCE, Quiet, Requests, queue_pair};

/// Bytes of a region, and of the memory between two regions, which is in none.
pub const REGION: usize = 256;
const GUARD: usize = 256;

/// The regions, by what they allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// Everything.
    All,
    /// Reads of peers.
    Readable,
    /// Writes of peers.
    Writable,
    /// Nothing to peers.
    Local,
    /// Everything, in another protection domain.
    Foreign,
    /// Nothing any longer: its key is revoked.
    Stale,
}

const REGIONS: usize = 6;

/// Memory with regions in it.
pub struct Arena {
    bytes: *mut u8,
    len: usize,
    keys: [u32; REGIONS],
    _regions: Vec<Mr>,
    _domains: [Pd; 2],
}

impl Arena {
    fn new(device: &Arc<Soft>) -> Arena {
        let len = GUARD + REGIONS * (REGION + GUARD);
        let bytes: &mut [u8] = Box::leak(vec![0; len].into_boxed_slice());
        let bytes = bytes.as_mut_ptr();
        let domains = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
        let mut arena = Arena {
            bytes,
            len,
            keys: [0; REGIONS],
            _regions: Vec::new(),
            _domains: domains,
        };
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        for (region, access) in [
            (Region::All, Access::all()),
            (Region::Readable, local | Access::REMOTE_READ),
            (Region::Writable, local | Access::REMOTE_WRITE),
            (Region::Local, local),
            (Region::Foreign, Access::all()),
            (Region::Stale, Access::all()),
        ] {
            let domain = usize::from(region == Region::Foreign);
            let domain = &arena._domains[domain];
            let at = arena.at(region);
            let mr = device.reg_mr(domain, at, REGION as u64, access).unwrap();
            arena.keys[region as usize] = mr.lkey();
            if region != Region::Stale {
                arena._regions.push(mr);
            }
        }
        arena.fill();
        arena
    }

    /// Where a region begins in the memory.
    pub const fn offset(region: Region) -> usize {
        GUARD + region as usize * (REGION + GUARD)
    }

    /// The address of a region.
    pub fn at(&self, region: Region) -> u64 {
        self.bytes as u64 + Self::offset(region) as u64
    }

    /// The key of a region.
    pub fn key(&self, region: Region) -> u32 {
        self.keys[region as usize]
    }

    /// A local segment in a region.
    pub fn sge(&self, region: Region, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.at(region) + offset as u64,
            len: len as u32,
            lkey: self.key(region),
        }
    }

    /// What the memory holds before anything has happened.
    pub fn pattern() -> Vec<u8> {
        let len = GUARD + REGIONS * (REGION + GUARD);
        (0..len).map(|i| (i * 31 + i / 251) as u8 | 1).collect()
    }

    /// Gives the memory its first contents.
    pub fn fill(&self) {
        let pattern = Self::pattern();
        // SAFETY: as long as the memory.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), self.bytes, self.len) };
    }

    /// What the memory holds.
    pub fn contents(&self) -> Vec<u8> {
        // SAFETY: the memory is there, and no transfer is under way when a test reads it.
        unsafe { std::slice::from_raw_parts(self.bytes, self.len) }.to_vec()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self._regions.clear();
        let slice = std::ptr::slice_from_raw_parts_mut(self.bytes, self.len);
        // SAFETY: leaked in `new`, and no key opens the memory any longer.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// A device with a listener, memory, and an honest connection.
pub struct Host {
    pub device: Arc<Soft>,
    pub arena: Arena,
    pub port: u64,
    pub requests: Receiver<ConnRequest>,
    _listener: Listener,
    honest: Honest,
}

/// An honest connection of the device, to another device.
struct Honest {
    ours: (Arc<Qp>, Arc<Cq>),
    theirs: (Arc<Qp>, Arc<Cq>),
    events: [Receiver<CmEvent>; 2],
    peer: Arc<Soft>,
    arena: Arena,
}

/// A queue pair of the host that a peer made by hand is connected to.
pub struct Victim {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub events: Receiver<CmEvent>,
}

impl Victim {
    /// Posts a receive of some bytes of the local region.
    pub fn receive(&self, arena: &Arena, wr_id: u64, offset: usize, len: usize) {
        let wr = RecvWr {
            wr_id,
            sges: &[arena.sge(Region::Local, offset, len)],
            flags: WrFlags::empty(),
        };
        self.qp.post_recv(&wr).unwrap();
    }

    /// Posts a read of 8 bytes into the local region, from memory that only the peer has to know.
    pub fn read(&self, arena: &Arena, wr_id: u64, offset: usize) {
        let remote = Remote { addr: 1, rkey: 1 };
        let wr = SendWr {
            wr_id,
            op: SendOp::RdmaRead { remote, len: 8 },
            sges: &[arena.sge(Region::Local, offset, 8)],
            flags: WrFlags::empty(),
        };
        self.qp.post_send(&wr).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.qp.destroy();
    }
}

impl Host {
    pub fn new(params: &str) -> Host {
        let device = Soft::open(params).unwrap();
        let (tx, requests) = channel();
        let (listener, port) = device.listen_any(Arc::new(Requests(tx))).unwrap();
        let arena = Arena::new(&device);
        let peer = Soft::open(params).unwrap();
        let peer_arena = Arena::new(&peer);
        let end = |device: &Arc<Soft>, arena: &Arena| {
            let cq = device.create_cq(64, Arc::new(Quiet)).unwrap();
            let (qp, events) = queue_pair(device, &arena._domains[0], &cq, 1, 1);
            ((qp, cq), events)
        };
        let (ours, our_events) = end(&device, &arena);
        let (theirs, their_events) = end(&peer, &peer_arena);
        let to = device.address();
        peer.connect(&theirs.0, to, port, Some(PATIENCE), b"honest")
            .unwrap();
        let request = requests.recv_timeout(PATIENCE).unwrap();
        device.accept(request, &ours.0, b"").unwrap();
        for events in [&our_events, &their_events] {
            let event = events.recv_timeout(PATIENCE).unwrap();
            assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        }
        let honest = Honest {
            ours,
            theirs,
            events: [our_events, their_events],
            peer,
            arena: peer_arena,
        };
        Host {
            device,
            arena,
            port,
            requests,
            _listener: listener,
            honest,
        }
    }

    /// A queue pair that nothing is connected to.
    pub fn victim(&self) -> Victim {
        let cq = self.device.create_cq(64, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(&self.device, &self.arena._domains[0], &cq, 7, 1);
        Victim { qp, cq, events }
    }

    /// Registers memory for everything.
    pub fn register(&self, at: u64, len: u64) -> Mr {
        let domain = &self.arena._domains[0];
        self.device.reg_mr(domain, at, len, Access::all()).unwrap()
    }

    /// A window on registered memory, open for everything, and its key.
    pub fn window(&self, region: &Mr, at: u64, len: u64) -> (Arc<Mw>, u32) {
        let domain = &self.arena._domains[0];
        let window = self.device.alloc_mw(domain, WindowScope::Domain).unwrap();
        let wr = BindWr {
            wr_id: 3,
            context: 0,
            window: &window,
            region: Some(region),
            addr: at,
            len,
            addressing: Addressing::Virtual,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            flags: WrFlags::empty(),
        };
        let (qp, cq) = &self.honest.ours;
        let key = Soft::post_bind(qp, &wr).unwrap();
        assert_eq!(completion(&self.device, cq).status, WcStatus::Success);
        (window, key)
    }

    /// A peer made by hand whose connection was accepted, and which has sent no FPDU yet.
    pub fn accepted(&self, offer: &Local) -> (TcpStream, Victim) {
        let victim = self.victim();
        let mut peer = dial(self.port);
        write_all(&mut peer, &mpa_bytes(&offer.request(2, b"")));
        let request = self.requests.recv_timeout(PATIENCE).unwrap();
        self.device.accept(request, &victim.qp, b"").unwrap();
        receive_frame(&mut peer, Kind::Reply, &mut Vec::new()).unwrap();
        (peer, victim)
    }

    /// The same, established.
    pub fn connected(&self, offer: &Local) -> (TcpStream, Victim) {
        let (mut peer, victim) = self.accepted(offer);
        write_all(&mut peer, &ready_to_receive());
        let event = victim.events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        (peer, victim)
    }

    /// The honest connection moves data in every way.
    pub fn check_honest(&self) {
        let Honest {
            ours,
            theirs,
            events,
            peer,
            arena,
        } = &self.honest;
        let region = Region::All;
        let remote = |arena: &Arena| Remote {
            addr: arena.at(region) + 64,
            rkey: arena.key(region),
        };
        let sges = [arena.sge(region, 0, 8)];
        ours.0
            .post_recv(&RecvWr {
                wr_id: 1,
                sges: &[self.arena.sge(region, 0, 8)],
                flags: WrFlags::empty(),
            })
            .unwrap();
        for op in [
            SendOp::Send,
            SendOp::RdmaWrite(remote(&self.arena)),
            SendOp::RdmaRead {
                remote: remote(&self.arena),
                len: 8,
            },
        ] {
            let flags = WrFlags::empty();
            let wr = SendWr {
                wr_id: 2,
                op,
                sges: &sges,
                flags,
            };
            theirs.0.post_send(&wr).unwrap();
            assert_eq!(completion(peer, &theirs.1).status, WcStatus::Success);
        }
        let received = completion(&self.device, &ours.1);
        assert_eq!((received.status, received.byte_len), (WcStatus::Success, 8));
        for events in events {
            assert!(events.try_recv().is_err());
        }
        self.arena.fill();
        arena.fill();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.honest.ours.0.destroy();
        self.honest.theirs.0.destroy();
    }
}
