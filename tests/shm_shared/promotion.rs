//! Regions that move while peers use them, because they use them so much (`memory=shared`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::{Mr, Soft};
use dat_core::testing::device::*;

use super::ends::*;
use super::itself::{self, Itself};
use super::soft::PATIENCE;
use super::{alone, is_possible};

fn device() -> Arc<Soft> {
    Soft::open("127.0.0.1 path=shm memory=shared").unwrap()
}

/// So many writes of 8 bytes into a region that does not move go faster than the move of a small
/// region could pay.
const FEW: u64 = 1000;
/// Longer than a small region takes to move once that pays.
const SHORTLY: Duration = Duration::from_millis(200);

/// Where a region has the byte at an offset.
fn at(memory: &Memory, mr: &Mr, offset: usize) -> Remote {
    Remote {
        addr: memory.addr() + offset as u64,
        rkey: mr.rkey(),
    }
}

/// Writes words in turn into the memory from an offset on, and checks each of them there, until the byte
/// there has moved, or for as long as that takes elsewhere. Returns how often.
fn write_until_moved(a: &End, memory: &Memory, mr: &Mr, offset: usize) -> u64 {
    let (begun, patience) = match is_possible() {
        true => (Instant::now(), PATIENCE),
        false => (Instant::now(), SHORTLY),
    };
    let mut writes = 0u64;
    while !is_shared(memory.addr() + offset as u64) {
        if begun.elapsed() > patience {
            assert!(!is_possible(), "not moved after {writes} writes");
            break;
        }
        for _ in 0..100 {
            writes += 1;
            let place = offset + (writes % 64) as usize * 8;
            let bytes = writes.to_ne_bytes();
            assert_eq!(a.write(&bytes, at(memory, mr, place)), WcStatus::Success);
            assert_eq!(memory.get(place, 8), bytes);
        }
    }
    writes
}

/// A region does not move when it is registered, nor because of a few operations; it moves because of
/// many, and back when it is deregistered. Its contents are there all the time.
#[test]
fn a_region_that_is_used() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair_of(&device());
    let memory = Memory::new(16 * page());
    let bytes: Vec<u8> = (0..memory.len())
        .map(|i| (i * 7 + i / 4096) as u8)
        .collect();
    memory.put(0, &bytes);
    let mr = b.register(memory.addr() + 100, 8 * page());
    for _ in 0..FEW {
        a.write(&bytes[4096..4104], at(&memory, &mr, 4096));
    }
    thread::sleep(SHORTLY);
    assert!(!is_shared(memory.addr() + page() as u64));
    let writes = write_until_moved(&a, &memory, &mr, page());
    let moved: Vec<bool> = (0..10)
        .map(|n| is_shared(memory.addr() + (n * page()) as u64))
        .collect();
    let middle = is_possible();
    let mut expected = vec![middle; 10];
    (expected[0], expected[8], expected[9]) = (false, false, false);
    assert_eq!(moved, expected, "after {writes} writes");
    assert_eq!(
        a.read(at(&memory, &mr, 100), 3 * page()),
        memory.get(100, 3 * page())
    );
    drop(mr);
    assert!((0..10).all(|n| !is_shared(memory.addr() + (n * page()) as u64)));
    assert_eq!(file_size(), 0);
    assert_eq!(
        memory.get(2 * page(), page()),
        bytes[2 * page()..3 * page()]
    );
}

/// A region that is registered anew for each transfer never moves.
#[test]
fn regions_that_are_used_once() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair_of(&device());
    let memory = Memory::new(4 * page());
    for round in 0..4 * FEW {
        let mr = b.register(memory.addr(), memory.len());
        let bytes = round.to_ne_bytes();
        assert_eq!(a.write(&bytes, at(&memory, &mr, 4096)), WcStatus::Success);
        assert_eq!(memory.get(4096, 8), bytes);
        if round % 64 == 0 {
            assert!(!is_shared(memory.addr() + page() as u64));
        }
    }
}

/// What cannot move stays, and is written all the same.
#[test]
fn a_region_that_cannot_move() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair_of(&device());
    let file = Memory::with(4 * page(), libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let small = Memory::new(4 * page());
    for (memory, len) in [(&file, file.len()), (&small, page() / 2)] {
        let mr = b.register(memory.addr(), len);
        for round in 0..8 * FEW {
            let bytes = round.to_ne_bytes();
            assert_eq!(a.write(&bytes, at(memory, &mr, 8)), WcStatus::Success);
            assert_eq!(memory.get(8, 8), bytes);
        }
        thread::sleep(SHORTLY);
        assert!(!is_shared(memory.addr()));
    }
}

/// The program stores all over a region that moves because of a peer's writes, and loses no store; nor
/// does the peer.
#[test]
fn a_region_that_the_program_uses() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair_of(&device());
    // The peer has the first page.
    let memory = Memory::new(1024 * page());
    let mr = b.register(memory.addr(), memory.len());
    let words = (page() / 8)..(memory.len() / 8);
    let word = |index: usize| {
        // SAFETY: inside the mapping, which lives longer, and aligned.
        unsafe { AtomicU64::from_ptr(memory.at(index * 8).cast()) }
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let program = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(Ordering::Acquire) {
                for index in words.clone() {
                    assert_eq!(word(index).load(Ordering::Relaxed), count);
                    word(index).store(count + 1, Ordering::Relaxed);
                }
                count += 1;
            }
            count
        });
        write_until_moved(&a, &memory, &mr, 0);
        stop.store(true, Ordering::Release);
        let count = program.join().unwrap();
        assert!(
            words
                .clone()
                .all(|i| word(i).load(Ordering::Relaxed) == count)
        );
    });
}

/// Long reads and writes while a region of many parts moves, from before its first part to behind its last
/// one.
#[test]
fn a_large_region_under_long_transfers() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair_of(&device());
    let len = 40 << 20;
    let memory = Memory::new(len);
    for offset in (0..len).step_by(page()) {
        memory.put(offset, &(offset as u64).to_ne_bytes());
    }
    let mr = b.register(memory.addr(), len);
    let chunk = a.buffer.len();
    let last = memory.addr() + (len - page()) as u64;
    let begun = Instant::now();
    let mut round = 0u8;
    while !is_shared(last) && is_possible() || round < 2 {
        assert!(begun.elapsed() < 4 * PATIENCE, "not moved");
        round = round.wrapping_add(1);
        for offset in (0..len).step_by(chunk) {
            let mut bytes = a.read(at(&memory, &mr, offset), chunk);
            for at in (0..chunk).step_by(page()) {
                let expected = ((offset + at) as u64).to_ne_bytes();
                assert_eq!(bytes[at..at + 8], expected);
                bytes[at + 8] = round;
            }
            assert_eq!(a.write(&bytes, at(&memory, &mr, offset)), WcStatus::Success);
            assert_eq!(memory.get(offset + chunk - page() + 8, 1), [round]);
        }
    }
    drop(mr);
    assert!(!is_shared(last));
    assert_eq!(file_size(), 0);
    for offset in (0..len).step_by(page()) {
        assert_eq!(memory.get(offset, 8), (offset as u64).to_ne_bytes());
        assert_eq!(memory.get(offset + 8, 1), [round]);
    }
}

/// Regions that are deregistered about when they move: they are private when that returns, with all
/// that was written.
#[test]
fn deregistered_during_the_move() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair_of(&device());
    let memory = Memory::new(256 * page());
    let len = 64 << 10;
    // The move begins after the 3687th of these writes.
    for round in 0..40 {
        let mr = b.register(memory.addr(), memory.len());
        for n in 0..3680 + round {
            let place = n * 40 % (memory.len() - len);
            a.buffer.put(0, &(n as u64).to_ne_bytes());
            let op = SendOp::RdmaWrite(at(&memory, &mr, place));
            assert_eq!(a.run(op, len, &[]), WcStatus::Success);
            assert_eq!(memory.get(place, 8), (n as u64).to_ne_bytes());
        }
        drop(mr);
        assert!(!is_shared(memory.addr() + (128 * page()) as u64), "{round}");
        assert_eq!(file_size(), 0);
    }
}

/// Set for the process that is the target of the tests with two processes.
const ROLE: &str = "LIBDAT_TEST_PROMOTING_TARGET";

/// Says where a region is, and then makes no call: asked for anything, it says whether the region has moved.
#[test]
fn target() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let device = device();
    let port = Port::new(&device);
    let memory = Memory::new(4 * page());
    println!("\nqual {}", port.qual);
    let end = port.accept(&device);
    let mr = end.register(memory.addr(), memory.len());
    println!("memory {} {}", memory.addr(), mr.rkey());
    for line in std::io::stdin().lines() {
        line.unwrap();
        println!("{}", is_shared(memory.addr()));
    }
}

/// Starts the target, and connects to it.
fn start_target() -> (Itself, Remote, End) {
    let mut command = itself::command("promotion::target");
    command.env(ROLE, "");
    let mut process = Itself::start(command).unwrap();
    let qual = process.numbers("qual ")[0];
    let end = End::new(&device());
    end.connect(qual);
    let numbers = process.numbers::<u64>("memory ");
    let remote = Remote {
        addr: numbers[0],
        rkey: numbers[1] as u32,
    };
    (process, remote, end)
}

/// The program of the target makes no call, and its region moves all the same.
#[test]
fn a_passive_target() {
    let Some(_alone) = alone() else {
        return;
    };
    let (mut process, remote, end) = start_target();
    let begun = Instant::now();
    let has_moved = |process: &mut Itself| {
        process.send("");
        process.line() == "true"
    };
    assert!(!has_moved(&mut process));
    let mut number = 0u64;
    while begun.elapsed() < SHORTLY || is_possible() && !has_moved(&mut process) {
        assert!(
            begun.elapsed() < PATIENCE,
            "not moved after {number} writes"
        );
        for _ in 0..100 {
            number += 1;
            let bytes = number.to_ne_bytes();
            assert_eq!(end.write(&bytes, remote), WcStatus::Success);
            assert_eq!(end.read(remote, 8), bytes);
        }
    }
    assert_eq!(has_moved(&mut process), is_possible());
    process.end();
}

/// A target that is killed about when its region moves: each operation ends, and the process that used
/// the region goes on.
#[test]
fn a_target_that_is_killed() {
    let Some(_alone) = alone() else {
        return;
    };
    for round in 0..12 {
        let (mut process, remote, end) = start_target();
        let mut written = 0u64;
        // The move begins after the 2112th of these writes.
        while written < 2050 + round * 25 {
            written += 1;
            assert_eq!(end.write(&written.to_ne_bytes(), remote), WcStatus::Success);
        }
        process.kill();
        while end.write(&[1; 8], remote) == WcStatus::Success {}
        assert!(matches!(end.event(), CmEvent::Broken));
    }
}
