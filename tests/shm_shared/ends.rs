//! Connected ends, and memory for them.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::{ConnRequest, Cq, Listener, Mr, Pd, Qp, Soft};
use dat_core::testing::device::*;

use crate::poll::completion;
use crate::soft::{PATIENCE, Quiet, Requests, queue_pair};

pub fn page() -> usize {
    rustix::param::page_size()
}

/// A queue pair with memory for what it sends and reads, which stays private.
pub struct End {
    pub device: Arc<Soft>,
    pub pd: Pd,
    cq: Arc<Cq>,
    pub qp: Arc<Qp>,
    events: Mutex<Receiver<CmEvent>>,
    mr: Mr,
    pub buffer: Memory,
}

impl End {
    pub fn new(device: &Arc<Soft>) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(device, &pd, &cq, 1, 4);
        let buffer = Memory::new(1 << 20);
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let (at, len) = (buffer.addr(), buffer.len() as u64);
        let mr = device.reg_mr(&pd, at, len, access).unwrap();
        End {
            device: device.clone(),
            pd,
            cq,
            qp,
            events: Mutex::new(events),
            mr,
            buffer,
        }
    }

    pub fn event(&self) -> CmEvent {
        self.events.lock().unwrap().recv_timeout(PATIENCE).unwrap()
    }

    pub fn completion(&self) -> Completion {
        completion(&self.device, &self.cq)
    }

    /// Executes one operation on the first bytes of the buffer, cut in segments at `cuts`.
    pub fn run(&self, op: SendOp, len: usize, cuts: &[usize]) -> WcStatus {
        let mut sges = Vec::new();
        let mut from = 0;
        for &to in cuts.iter().filter(|to| **to < len).chain([&len]) {
            sges.push(self.segment(from..to));
            from = to;
        }
        match self.post(op, &sges, 2) {
            true => self.completion().status,
            false => WcStatus::Flushed,
        }
    }

    /// A part of the buffer.
    pub fn segment(&self, part: Range<usize>) -> Sge {
        Sge {
            addr: self.buffer.addr() + part.start as u64,
            len: part.len() as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// Posts a request, and does not wait for its completion. False if the queue pair is not connected.
    pub fn post(&self, op: SendOp, sges: &[Sge], wr_id: u64) -> bool {
        let flags = WrFlags::empty();
        let wr = SendWr {
            wr_id,
            op,
            sges,
            flags,
        };
        self.qp.post_send(&wr).is_ok()
    }

    /// The next completion, for which other threads make progress.
    pub fn completion_unpolled(&self) -> Completion {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = self.cq.poll() {
                return completion;
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next completion, if there is one now.
    pub fn poll(&self) -> Option<Completion> {
        self.device.progress();
        self.cq.poll()
    }

    pub fn write(&self, bytes: &[u8], remote: Remote) -> WcStatus {
        self.buffer.put(0, bytes);
        self.run(SendOp::RdmaWrite(remote), bytes.len(), &[])
    }

    pub fn read(&self, remote: Remote, len: usize) -> Vec<u8> {
        let op = SendOp::RdmaRead {
            remote,
            len: len as u32,
        };
        assert_eq!(self.run(op, len, &[]), WcStatus::Success);
        self.buffer.get(0, len)
    }

    /// Registers memory for peers.
    pub fn register(&self, addr: u64, len: usize) -> Mr {
        let mr = self
            .device
            .reg_mr(&self.pd, addr, len as u64, Access::all());
        mr.unwrap()
    }

    pub fn connect(&self, qual: u64) {
        let to: SocketAddr = "127.0.0.1:0".parse().unwrap();
        self.device
            .connect(&self.qp, to, qual, Some(PATIENCE), b"")
            .unwrap();
        assert!(matches!(self.event(), CmEvent::Established { .. }));
    }
}

/// Where ends are connected to.
pub struct Port {
    _listener: Listener,
    requests: Receiver<ConnRequest>,
    pub qual: u64,
}

impl Port {
    pub fn new(device: &Arc<Soft>) -> Port {
        let (tx, requests) = channel();
        let (_listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
        Port {
            _listener,
            requests,
            qual,
        }
    }

    pub fn accept(&self, device: &Arc<Soft>) -> End {
        let request = self.requests.recv_timeout(PATIENCE).unwrap();
        let end = End::new(device);
        end.device.accept(request, &end.qp, b"").unwrap();
        assert!(matches!(end.event(), CmEvent::Established { .. }));
        end
    }
}

/// An initiator and a target in this process, which do not know that.
pub fn pair() -> (End, End) {
    pair_of(&device())
}

/// The same on this device.
pub fn pair_of(device: &Arc<Soft>) -> (End, End) {
    let port = Port::new(device);
    let (a, b) = (End::new(device), End::new(device));
    let to: SocketAddr = "127.0.0.1:0".parse().unwrap();
    device
        .connect(&a.qp, to, port.qual, Some(PATIENCE), b"")
        .unwrap();
    let request = port.requests.recv_timeout(PATIENCE).unwrap();
    device.accept(request, &b.qp, b"").unwrap();
    for end in [&a, &b] {
        assert!(matches!(end.event(), CmEvent::Established { .. }));
    }
    (a, b)
}

pub fn device() -> Arc<Soft> {
    Soft::open("127.0.0.1 path=shm memory=eager").unwrap()
}

/// Pages of private memory.
pub struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: an address; the tests see to it who touches what.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(len: usize) -> Memory {
        Memory::with(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    pub fn with(len: usize, flags: i32) -> Memory {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Memory { at: at.cast(), len }
    }

    /// New private memory in place of what is there.
    pub fn renew(&self) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: over our own mapping.
        let at = unsafe { libc::mmap(self.at.cast(), self.len, protection, flags, -1, 0) };
        assert_eq!(at.cast(), self.at);
    }

    pub fn addr(&self) -> u64 {
        self.at as u64
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len);
        self.at.wrapping_add(offset)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: inside the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(offset), bytes.len()) };
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        // SAFETY: inside the mapping.
        unsafe { std::slice::from_raw_parts(self.at.add(offset), len) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, or where it was.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Whether the byte is in the file that peers map.
pub fn is_shared(addr: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let offset = rest.split_ascii_whitespace().nth(1).unwrap();
        (hex(start)..hex(end)).contains(&addr)
            && line.contains("memfd:libdat-memory")
            && hex(offset) == hex(start)
    })
}

/// Bytes that the file of this process uses.
pub fn file_size() -> u64 {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| {
        let path = fd.ok()?.path();
        let name = std::fs::read_link(&path).ok()?;
        let ours = name.to_string_lossy().contains("memfd:libdat-memory");
        let data = std::fs::metadata(path).ok().filter(|_| ours)?;
        Some(std::os::unix::fs::MetadataExt::blocks(&data) * 512)
    })
    .max()
    .unwrap_or(0)
}
