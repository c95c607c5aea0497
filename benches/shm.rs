//! What a message through shared memory costs in instructions of ours: both ends in one thread,
//! so that no cache line travels. Two processes are measured by `dat-perf`.

#[path = "../tests/common/soft.rs"]
mod soft;

use std::sync::Arc;
use std::sync::mpsc::channel;

use dat_core::testing::device::soft::{Cq, Mr, Pd, Qp, Soft};
use dat_core::testing::device::*;
use divan::Bencher;
use soft::{PATIENCE, Quiet, Requests, queue_pair};

fn main() {
    divan::main();
}

struct End {
    pd: Pd,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    mr: Mr,
    buffer: &'static [u8],
    events: std::sync::mpsc::Receiver<CmEvent>,
}

impl End {
    fn new(device: &Arc<Soft>) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(device, &pd, &cq, 1, 1);
        let buffer: &[u8] = vec![0u8; 1 << 20].leak();
        let (addr, len) = (buffer.as_ptr() as u64, buffer.len() as u64);
        let mr = device.reg_mr(&pd, addr, len, Access::all()).unwrap();
        End {
            pd,
            cq,
            qp,
            mr,
            buffer,
            events,
        }
    }

    fn sge(&self, len: u32) -> Sge {
        Sge {
            addr: self.buffer.as_ptr() as u64,
            len,
            lkey: self.mr.lkey(),
        }
    }

    fn post(&self, op: SendOp, len: u32) {
        let (sges, flags) = (&[self.sge(len)][..], WrFlags::empty());
        let wr_id = 2;
        let wr = SendWr {
            wr_id,
            op,
            sges,
            flags,
        };
        self.qp.post_send(&wr).unwrap();
    }

    fn completion(&self, device: &Soft) {
        while self.cq.poll().is_none() {
            device.progress();
        }
    }
}

fn pair() -> (Arc<Soft>, End, End) {
    pair_with("path=shm")
}

fn pair_with(params: &str) -> (Arc<Soft>, End, End) {
    let device = Soft::open(&format!("127.0.0.1 {params}")).unwrap();
    let (tx, requests) = channel();
    let (_listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
    let (a, b) = (End::new(&device), End::new(&device));
    let to = device.address();
    device.connect(&a.qp, to, qual, None, b"").unwrap();
    device
        .accept(requests.recv_timeout(PATIENCE).unwrap(), &b.qp, b"")
        .unwrap();
    for end in [&a, &b] {
        let event = end.events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(event, CmEvent::Established { .. }));
    }
    (device, a, b)
}

#[divan::bench(args = [8, 64, 4096, 65536])]
fn send_receive_and_both_completions(bencher: Bencher, len: u32) {
    let (device, a, b) = pair();
    bencher.bench_local(|| {
        let (sges, flags) = (&[b.sge(len)][..], WrFlags::empty());
        let wr_id = 1;
        b.qp.post_recv(&RecvWr { wr_id, sges, flags }).unwrap();
        a.post(SendOp::Send, len);
        a.completion(&device);
        b.completion(&device);
    });
}

#[divan::bench(args = [8, 4096, 1 << 20])]
fn write(bencher: Bencher, len: u32) {
    let (device, a, b) = pair();
    let (addr, rkey) = (b.buffer.as_ptr() as u64, b.mr.rkey());
    bencher.bench_local(|| {
        a.post(SendOp::RdmaWrite(Remote { addr, rkey }), len);
        a.completion(&device);
    });
}

/// Into whole pages of a peer that lets its memory be mapped.
#[divan::bench(args = [8, 4096, 1 << 19])]
fn write_to_shared_memory(bencher: Bencher, len: u32) {
    let (device, a, b) = pair_with("path=shm memory=eager");
    let (addr, rkey) = (
        (b.buffer.as_ptr() as u64).next_multiple_of(4096),
        b.mr.rkey(),
    );
    bencher.bench_local(|| {
        a.post(SendOp::RdmaWrite(Remote { addr, rkey }), len);
        a.completion(&device);
    });
}

fn register(bencher: Bencher, params: &str, len: usize) {
    let device = Soft::open(&format!("127.0.0.1 {params}")).unwrap();
    let pd = device.alloc_pd().unwrap();
    let buffer = vec![1u8; len + 4096];
    let addr = (buffer.as_ptr() as u64).next_multiple_of(4096);
    bencher.bench_local(|| device.reg_mr(&pd, addr, len as u64, Access::all()).unwrap());
}

/// To and fro: the drop of the region is part of it.
#[divan::bench(args = [4096, 1 << 20, 64 << 20])]
fn registration(bencher: Bencher, len: usize) {
    register(bencher, "path=shm", len);
}

/// The same with the memory moving.
#[divan::bench(args = [4096, 1 << 20, 64 << 20])]
fn registration_of_shared_memory(bencher: Bencher, len: usize) {
    register(bencher, "path=shm memory=eager", len);
}

/// A region is registered, written by the peer and deregistered, as message-passing libraries do that
/// keep no registrations.
#[divan::bench(args = ["private", "shared", "eager"])]
fn a_region_for_one_write(bencher: Bencher, memory: &str) {
    const LEN: usize = 1 << 20;
    let (device, a, b) = pair_with(&format!("path=shm memory={memory}"));
    let target = vec![1u8; LEN + 4096];
    let addr = (target.as_ptr() as u64).next_multiple_of(4096);
    bencher.bench_local(|| {
        let mr = device
            .reg_mr(&b.pd, addr, LEN as u64, Access::all())
            .unwrap();
        let rkey = mr.rkey();
        a.post(SendOp::RdmaWrite(Remote { addr, rkey }), LEN as u32);
        a.completion(&device);
    });
}

#[divan::bench]
fn a_look_at_two_idle_ends(bencher: Bencher) {
    let (device, _a, _b) = pair();
    bencher.bench_local(|| device.progress());
}
