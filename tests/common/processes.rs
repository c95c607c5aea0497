//! A server of the soft device in a process of its own, and connections to it. The test program
//! starts itself again as the server: each that uses this has a test `server` that calls
//! [`serve`].

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

use dat_core::testing::device::soft::{Cq, Mr, Pd, Qp, Soft};
use dat_core::testing::device::*;

use crate::itself::{self, Itself};
use crate::poll::completion;
use crate::soft::{PATIENCE, Quiet, Requests, queue_pair};

const ROLE: &str = "LIBDAT_TEST_SERVER";
/// How many more regions the server registers once it is connected.
pub const KEYS: &str = "LIBDAT_TEST_KEYS";

/// A queue pair with a buffer.
pub struct End {
    pub device: Arc<Soft>,
    pub pd: Pd,
    cq: Arc<Cq>,
    pub qp: Arc<Qp>,
    pub events: Receiver<CmEvent>,
    pub mr: Mr,
    pub buffer: &'static mut [u8],
}

impl End {
    pub fn new(device: &Arc<Soft>) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(device, &pd, &cq, 1, 1);
        let buffer = vec![0u8; 1 << 20].leak();
        let (addr, len) = (buffer.as_ptr() as u64, buffer.len() as u64);
        let mr = device.reg_mr(&pd, addr, len, Access::all()).unwrap();
        End {
            device: device.clone(),
            pd,
            cq,
            qp,
            events,
            mr,
            buffer,
        }
    }

    pub fn sge(&self, len: u32) -> Sge {
        Sge {
            addr: self.buffer.as_ptr() as u64,
            len,
            lkey: self.mr.lkey(),
        }
    }

    pub fn recv(&self, len: u32) {
        let (sges, flags) = (&[self.sge(len)][..], WrFlags::empty());
        let wr_id = 1;
        self.qp.post_recv(&RecvWr { wr_id, sges, flags }).unwrap();
    }

    pub fn post(&self, op: SendOp, len: u32) {
        let (sges, flags) = (&[self.sge(len)][..], WrFlags::empty());
        let wr_id = 2;
        self.qp
            .post_send(&SendWr {
                wr_id,
                op,
                sges,
                flags,
            })
            .unwrap();
    }

    pub fn completion(&self) -> Completion {
        completion(&self.device, &self.cq)
    }

    pub fn event(&self) -> CmEvent {
        self.events.recv_timeout(PATIENCE).unwrap()
    }
}

/// How many connections of this process go through shared memory.
pub fn shared_memories() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|l| l.contains("memfd:libdat-wire"))
        .count()
}

/// The server: prints its qualifier, its address and its key, echoes one message, and lives until
/// its standard input ends.
pub fn serve() {
    let Ok(params) = std::env::var(ROLE) else {
        return;
    };
    let device = Soft::open(&params).unwrap();
    let (tx, requests) = channel();
    let (_listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
    let end = End::new(&device);
    println!(
        "\nqual {qual} {} {}",
        end.buffer.as_ptr() as u64,
        end.mr.rkey()
    );
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(request.private_data(), b"hello");
    end.recv(100);
    device.accept(request, &end.qp, b"welcome").unwrap();
    assert!(matches!(end.event(), CmEvent::Established { .. }));
    let got = end.completion();
    assert_eq!(got.status, WcStatus::Success);
    end.post(SendOp::Send, got.byte_len);
    assert_eq!(end.completion().status, WcStatus::Success);
    let keys = std::env::var(KEYS).map_or(0, |keys| keys.parse().unwrap());
    let (addr, len) = (end.buffer.as_ptr() as u64, end.buffer.len() as u64);
    let register = |_| device.reg_mr(&end.pd, addr, len, Access::all()).unwrap();
    let regions: Vec<Mr> = (0..keys).map(register).collect();
    if let Some(last) = regions.last() {
        println!("\nlast {}", last.rkey());
    }
    let word = AtomicU32::new(0);
    std::thread::scope(|s| {
        // A consumer that blocks until the end.
        s.spawn(|| while device.block(&word, 0, None) != Some(Wake::Woken) {});
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        word.store(1, Ordering::SeqCst);
        device.unblock(&word);
    });
}

/// A server that was started, with its qualifier and the memory that it lets others reach.
pub struct Server {
    pub process: Itself,
    pub qual: u64,
    pub remote: Remote,
}

impl Server {
    /// `prepare` is for its command.
    pub fn start(params: &str, prepare: impl FnOnce(&mut Command)) -> Server {
        let mut command = itself::command("server");
        command.env(ROLE, params);
        prepare(&mut command);
        let mut process = Itself::start(command).unwrap();
        let numbers = process.numbers::<u64>("qual ");
        Server {
            process,
            qual: numbers[0],
            remote: Remote {
                addr: numbers[1],
                rkey: numbers[2] as u32,
            },
        }
    }

    /// Connects, and tries all that is to be had.
    pub fn connect(&self, device: &Arc<Soft>) -> End {
        let end = End::new(device);
        end.buffer[..5].copy_from_slice(b"there");
        end.recv(100);
        let to: SocketAddr = "127.0.0.1:0".parse().unwrap();
        device
            .connect(&end.qp, to, self.qual, Some(PATIENCE), b"hello")
            .unwrap();
        let private_data = b"welcome"[..].into();
        assert_eq!(end.event(), CmEvent::Established { private_data });
        end.post(SendOp::Send, 5);
        for _ in 0..2 {
            assert_eq!(end.completion().status, WcStatus::Success);
        }
        // The target does nothing for this one.
        let remote = self.remote;
        end.buffer[..5].fill(0);
        end.post(SendOp::RdmaRead { remote, len: 5 }, 5);
        assert_eq!(end.completion().status, WcStatus::Success);
        assert_eq!(&end.buffer[..5], b"there");
        end
    }
}
