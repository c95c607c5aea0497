//! A target that is stopped while its memory moves: those who use that memory wait, and do not block.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::{Mr, Soft};
use dat_core::testing::device::*;
use rustix::process::{Pid, Signal, kill_process};

use super::alone;
use super::ends::*;
use super::itself::{self, Itself};
use super::soft::PATIENCE;

/// Set for the process that is the target.
const ROLE: &str = "LIBDAT_TEST_STOPPED_TARGET";
/// What moves, in bytes.
const LEN: usize = 64 << 20;
/// So many bytes at least are in front of what moves when the process is stopped, and behind it.
const FRONT: usize = 4 << 20;
/// How long requests are watched that are to wait.
const SHORTLY: Duration = Duration::from_millis(200);

/// Has two connections, and a region that moves when the process is told to register the memory once more.
#[test]
fn target() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let private = Soft::open("127.0.0.1 path=shm").unwrap();
    let eager = End::new(&device());
    let port = Port::new(&private);
    let memory = Memory::new(LEN);
    for at in (0..LEN).step_by(page()) {
        memory.put(at, &at.to_ne_bytes());
    }
    println!("\nqual {}", port.qual);
    let ends = [(); 2].map(|()| port.accept(&private));
    let mrs = ends.each_ref().map(|end| end.register(memory.addr(), LEN));
    println!(
        "memory {} {} {}",
        memory.addr(),
        mrs[0].rkey(),
        mrs[1].rkey()
    );
    let mut moved = None;
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "move" => moved = Some(eager.register(memory.addr(), LEN)),
            // All of it, in a message that its receiver copies.
            "send" => {
                let segment = Sge {
                    addr: memory.addr(),
                    len: LEN as u32,
                    lkey: mrs[0].lkey(),
                };
                assert!(ends[0].post(SendOp::Send, &[segment], 1));
            }
            line => panic!("{line}"),
        }
        assert_eq!(is_shared(memory.addr()), moved.is_some());
        println!("done");
    }
}

/// The process with the memory, and the ends of two connections to it.
struct Target {
    process: Itself,
    ends: [End; 2],
    addr: u64,
    rkeys: [u32; 2],
}

impl Target {
    fn start() -> Target {
        let mut command = itself::command("stopped::target");
        command.env(ROLE, "");
        let mut process = Itself::start(command).unwrap();
        let qual = process.numbers("qual ")[0];
        let device = Soft::open("127.0.0.1 path=shm").unwrap();
        let ends = [(); 2].map(|()| {
            let end = End::new(&device);
            end.connect(qual);
            end
        });
        let numbers = process.numbers::<u64>("memory ");
        let rkeys = [numbers[1] as u32, numbers[2] as u32];
        let addr = numbers[0];
        Target {
            process,
            ends,
            addr,
            rkeys,
        }
    }

    fn ask(&mut self, what: &str) {
        self.process.send(what);
        assert_eq!(self.process.line(), "done");
    }

    /// Where the byte at an offset is for one of the connections.
    fn at(&self, offset: usize, end: usize) -> Remote {
        Remote {
            addr: self.addr + offset as u64,
            rkey: self.rkeys[end],
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        let begun = Instant::now();
        let tasks = format!("/proc/{}/task", self.process.child.id());
        let runs = |task: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status"));
            !status.unwrap_or_default().contains("State:\tT")
        };
        while std::fs::read_dir(&tasks).unwrap().any(runs) {
            assert!(begun.elapsed() < PATIENCE);
            thread::yield_now();
        }
    }

    /// What the kernel says of some pages, the first of which is at this offset: 8 bytes of each.
    fn pagemap(&self, offset: usize, pages: usize) -> Vec<u8> {
        let pagemap = File::open(format!("/proc/{}/pagemap", self.process.child.id())).unwrap();
        let mut entries = vec![0u8; pages * 8];
        let from = (self.addr + offset as u64) / page() as u64 * 8;
        pagemap.read_exact_at(&mut entries, from).unwrap();
        entries
    }

    /// The offsets of pages that are neither where they were nor in the file.
    fn missing(&self) -> Option<Range<usize>> {
        let entries = self.pagemap(0, LEN / page());
        let missing: Vec<bool> = entries.chunks_exact(8).map(is_missing).collect();
        let first = missing.iter().position(|missing| *missing)?;
        let last = missing.iter().rposition(|missing| *missing)?;
        Some(first * page()..(last + 1) * page())
    }

    /// Starts processes, and has their memory move, until one is stopped in the middle. Returns the offsets of the
    /// bytes that move. `before` is done to each process before.
    fn stopped_in_move(before: impl Fn(&mut Target)) -> (Target, Range<usize>) {
        for _ in 0..200 {
            let mut target = Target::start();
            before(&mut target);
            target.process.send("move");
            let begun = Instant::now();
            let inside = |moving: &Range<usize>| moving.start >= FRONT && moving.end < LEN - FRONT;
            // One page is looked at, of those that move next: to look at all takes longer than their move.
            let mut next = FRONT;
            while next < LEN - FRONT && begun.elapsed() < SHORTLY {
                let entry = target.pagemap(next, 1);
                if is_missing(&entry) {
                    target.stop();
                    if let Some(moving) = target.missing().filter(inside) {
                        return (target, moving);
                    }
                    // The process had come further before it was stopped.
                    target.signal(Signal::CONT);
                }
                if is_missing(&entry) || is_in_file(&entry) {
                    next += FRONT;
                }
            }
        }
        panic!("no process was stopped in the middle of a move");
    }

    /// Runs what must not block, while the process is stopped.
    fn unblocked<R: Send>(&self, what: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| {
            let (begun, worker) = (Instant::now(), scope.spawn(what));
            while !worker.is_finished() && begun.elapsed() < PATIENCE / 3 {
                thread::sleep(Duration::from_millis(1));
            }
            let is_blocked = !worker.is_finished();
            if is_blocked {
                self.signal(Signal::CONT);
            }
            let result = worker.join();
            assert!(!is_blocked, "blocked by a process that is stopped");
            result.unwrap()
        })
    }
}

/// Whether a page is neither present nor swapped out, by its entry in the page map.
fn is_missing(entry: &[u8]) -> bool {
    entry[7] & 0xc0 == 0
}

/// Whether a page is one of a file.
fn is_in_file(entry: &[u8]) -> bool {
    entry[7] & 0x20 != 0
}

/// Whether an end has no completion for a while.
fn waits(end: &End) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < SHORTLY {
        if end.poll().is_some() {
            return false;
        }
    }
    true
}

/// The completion is that of this request.
fn succeeds(completion: Completion, wr_id: u64) {
    let found = (completion.wr_id, completion.status);
    assert_eq!(found, (wr_id, WcStatus::Success));
}

/// Registers all of the memory for an end.
fn segment(end: &End, memory: &Memory) -> (Mr, Sge) {
    let (addr, len) = (memory.addr(), memory.len());
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let mr = end.device.reg_mr(&end.pd, addr, len as u64, access);
    let mr = mr.unwrap();
    let (len, lkey) = (len as u32, mr.lkey());
    (mr, Sge { addr, len, lkey })
}

/// Operations on what moves wait, and those behind them. Other memory of the process is reached meanwhile. When the
/// move goes on all are executed in their order.
#[test]
fn operations_on_what_moves() {
    let Some(_alone) = alone() else {
        return;
    };
    let (mut target, moving) = Target::stopped_in_move(|_| {});
    let (place, elsewhere) = (moving.start + page(), moving.end + page());
    let numbers = |number: u64| number.to_ne_bytes();
    let read = SendOp::RdmaRead {
        remote: target.at(place, 0),
        len: 8,
    };
    let write = |offset| SendOp::RdmaWrite(target.at(offset, 0));
    target.unblocked(|| {
        let [a, b] = &target.ends;
        (1..=4).for_each(|number| a.buffer.put(number * 8, &numbers(number as u64)));
        let requests = [
            (read, 0..8),
            (write(place), 8..16),
            (write(elsewhere), 16..24),
            (write(place), 24..32),
            (read, 32..40),
        ];
        for (number, (op, part)) in requests.into_iter().enumerate() {
            assert!(a.post(op, &[a.segment(part)], number as u64));
        }
        assert_eq!(b.read(target.at(elsewhere, 1), 8), elsewhere.to_ne_bytes());
        let status = b.write(&[5; 8], target.at(elsewhere + 64, 1));
        assert_eq!(status, WcStatus::Success);
        assert!(waits(a));
        assert_eq!(b.read(target.at(elsewhere, 1), 8), elsewhere.to_ne_bytes());
        // Those that one system call would make.
        b.buffer.put(0, &numbers(6));
        for number in 0..4 {
            let op = SendOp::RdmaWrite(target.at(place + 64 + number * 8, 1));
            assert!(b.post(op, &[b.segment(0..8)], number as u64));
        }
        assert!(waits(b));
    });
    target.signal(Signal::CONT);
    let [a, b] = &target.ends;
    (0..5).for_each(|number| succeeds(a.completion(), number));
    (0..4).for_each(|number| succeeds(b.completion(), number));
    assert_eq!(a.buffer.get(0, 8), place.to_ne_bytes());
    assert_eq!(a.buffer.get(32, 8), numbers(3));
    assert_eq!(target.process.line(), "done");
    assert_eq!(a.read(target.at(elsewhere, 0), 8), numbers(2));
    assert_eq!(a.read(target.at(elsewhere + 64, 0), 8), [5; 8]);
    assert_eq!(a.read(target.at(place, 0), 8), numbers(3));
    assert_eq!(
        a.read(target.at(place + 64, 0), 32),
        [numbers(6); 4].concat()
    );
    target.process.end();
}

/// A long write of which only a part moves. What is written in front of that is not written again. No consumer polls.
#[test]
fn a_long_write_into_what_moves() {
    let Some(_alone) = alone() else {
        return;
    };
    let (mut target, moving) = Target::stopped_in_move(|_| {});
    let (first, len) = (moving.start - FRONT, 2 * FRONT);
    let [a, _] = &target.ends;
    let memory = Memory::new(len);
    memory.put(0, &vec![7; len]);
    let (_mr, all) = segment(a, &memory);
    target.unblocked(|| {
        assert!(a.post(SendOp::RdmaWrite(target.at(first, 0)), &[all], 6));
        thread::sleep(SHORTLY);
        // As no program may.
        memory.put(0, &[8; 8]);
    });
    let begun = Instant::now();
    target.signal(Signal::CONT);
    succeeds(a.completion_unpolled(), 6);
    assert!(begun.elapsed() < PATIENCE / 6, "served by accident");
    assert_eq!(target.process.line(), "done");
    for offset in (first..first + len).step_by(page()) {
        assert_eq!(a.read(target.at(offset, 0), 8), [7; 8], "{offset}");
    }
    target.process.end();
}

/// The receiver of a message in what moves does other things meanwhile.
#[test]
fn a_message_in_what_moves() {
    let Some(_alone) = alone() else {
        return;
    };
    let (mut target, _) = Target::stopped_in_move(|target| target.ask("send"));
    let [a, b] = &target.ends;
    let memory = Memory::new(LEN);
    let (_mr, all) = segment(a, &memory);
    let receive = RecvWr {
        wr_id: 4,
        sges: &[all],
        flags: WrFlags::empty(),
    };
    target.unblocked(|| {
        a.qp.post_recv(&receive).unwrap();
        assert!(waits(a));
        assert!(waits(b));
    });
    target.signal(Signal::CONT);
    succeeds(a.completion(), 4);
    for at in (0..LEN).step_by(page()) {
        assert_eq!(memory.get(at, 8), at.to_ne_bytes());
    }
    assert_eq!(target.process.line(), "done");
    target.process.end();
}

/// A process that is killed in the middle ends the connections, and nothing waits.
#[test]
fn a_process_that_is_killed_in_the_middle() {
    let Some(_alone) = alone() else {
        return;
    };
    let (mut target, moving) = Target::stopped_in_move(|_| {});
    target.unblocked(|| {
        let [a, _] = &target.ends;
        let op = SendOp::RdmaWrite(target.at(moving.start, 0));
        assert!(a.post(op, &[a.segment(0..8)], 3));
        assert!(waits(a));
    });
    target.process.kill();
    for end in &target.ends {
        assert!(matches!(end.event(), CmEvent::Broken));
    }
    assert_eq!(target.ends[0].completion().status, WcStatus::Flushed);
}
