//! Two processes. The test program starts itself again as the target.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use dat_core::testing::device::*;

use super::ends::*;
use super::itself::{self, Itself};
use super::places::random;
use super::{PRIVATE, alone, is_possible};

const ROLE: &str = "LIBDAT_TEST_TARGET";
const LEN: usize = 1_000_000;
const AT: usize = 1000;

/// The target: says where it is, and then does nothing but what it is told over its standard
/// input: to tell its bytes, or how large its file is, to take its key away. It has registered the memory twice, so that it
/// stays where it is then.
#[test]
fn target() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let device = device();
    let port = Port::new(&device);
    let memory = Memory::new(1 << 20);
    println!("\nqual {}", port.qual);
    let end = port.accept(&device);
    let _other = end.register(memory.addr() + AT as u64, LEN);
    let mut mr = Some(end.register(memory.addr() + AT as u64, LEN));
    let rkey = mr.as_ref().unwrap().rkey();
    assert!(is_shared(memory.addr() + (1 << 19)));
    println!("memory {} {rkey}", memory.addr() + AT as u64);
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "sum" => println!("{}", sum(&memory.get(0, memory.len()))),
            "blocks" => println!("{}", blocks()),
            "shut" => {
                drop(mr.take());
                // Where a copy that goes on would come to last.
                memory.put(AT + LEN - 8, &[2; 8]);
                std::thread::sleep(std::time::Duration::from_millis(5));
                println!("{:?}", memory.get(AT + LEN - 8, 8));
            }
            other => panic!("{other}"),
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1, |sum, b| {
        (sum ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What the memory file of this process takes, in blocks of 512 bytes.
fn blocks() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = files.map(|file| file.unwrap().path()).filter(|path| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.to_string_lossy().starts_with("/memfd:libdat-memory")
    });
    let blocks = files.map(|path| std::fs::metadata(path).unwrap().blocks());
    blocks.max().unwrap_or(0)
}

/// A process that has memory, and does nothing else.
pub struct Target {
    process: Itself,
    pub remote: Remote,
}

impl Target {
    pub fn start() -> (Target, End) {
        let mut command = itself::command("two::target");
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
        (Target { process, remote }, end)
    }

    pub fn ask(&mut self, what: &str) -> String {
        self.process.send(what);
        self.process.line()
    }

    /// What its memory file takes, in blocks of 512 bytes.
    pub fn blocks(&mut self) -> u64 {
        self.ask("blocks").parse().unwrap()
    }

    pub fn end(self) {
        self.process.end();
    }
}

#[test]
fn a_passive_target() {
    let Some(_alone) = alone() else {
        return;
    };
    let (mut target, end) = Target::start();
    let mut model = vec![0u8; 1 << 20];
    let mut state = 5;
    // What is only read is not writable by accident.
    let (before, mut inside) = (views(), target.remote);
    inside.addr += 8192;
    assert_eq!(end.read(inside, 100), [0; 100]);
    assert_eq!(
        views(),
        before.clone() + if is_possible() { "r--s" } else { "" }
    );
    assert_eq!(end.write(&[0], inside), WcStatus::Success);
    assert_eq!(views(), before + if is_possible() { "rw-s" } else { "" });
    for round in 0..500 {
        let size = 1 + random(&mut state) % if round % 10 == 0 { LEN } else { 9000 };
        let offset = random(&mut state) % (LEN - size + 1);
        let bytes: Vec<u8> = (0..size).map(|i| (i * 13 + round) as u8).collect();
        let mut remote = target.remote;
        remote.addr += offset as u64;
        assert_eq!(end.write(&bytes, remote), WcStatus::Success);
        model[AT + offset..AT + offset + size].copy_from_slice(&bytes);
        assert!(end.read(remote, size) == bytes);
        if round % 50 == 0 {
            assert_eq!(target.ask("sum"), sum(&model).to_string());
        }
    }
    assert_eq!(target.ask("sum"), sum(&model).to_string());
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert_eq!(mapped.contains("memfd:libdat-memory"), is_possible());
    // It takes the key away, and keeps the data.
    assert_eq!(target.ask("shut"), format!("{:?}", [2; 8]));
    model[AT + LEN - 8..AT + LEN].fill(2);
    assert_eq!(end.write(&[1], target.remote), WcStatus::RemoteAccess);
    assert_eq!(target.ask("sum"), sum(&model).to_string());
    target.process.end();
}

/// The rights of the windows of 4 GiB in which this process has memory of others.
pub fn views() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rights = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let is_view = line.contains("memfd:libdat-memory") && hex(end) - hex(start) >= 1 << 32;
        is_view.then(|| rest[..4].to_string())
    });
    rights.collect()
}

/// Once a region is gone, nobody writes to it, however fast he was.
#[test]
fn a_key_that_is_gone() {
    let Some(_alone) = alone() else {
        return;
    };
    for round in 0..10 {
        let (mut target, end) = Target::start();
        let remote = target.remote;
        let writes = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let initiator = scope.spawn(|| {
                let bytes = vec![1; LEN];
                while end.write(&bytes, remote) == WcStatus::Success {
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
            while writes.load(Ordering::Relaxed) <= round {
                assert!(!initiator.is_finished());
                std::thread::yield_now();
            }
            assert_eq!(target.ask("shut"), format!("{:?}", [2; 8]));
        });
        target.process.end();
    }
}

/// It is killed while we write to it: we learn that, and nothing else happens to us.
#[test]
fn a_target_that_is_killed() {
    let Some(_alone) = alone() else {
        return;
    };
    for round in 0..5 {
        let (mut target, end) = Target::start();
        assert_eq!(end.write(&vec![7; LEN], target.remote), WcStatus::Success);
        let remote = target.remote;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(round));
            target.process.kill();
        });
        let bytes = vec![8; LEN];
        while end.write(&bytes, remote) == WcStatus::Success {}
        killer.join().unwrap();
        assert!(matches!(
            end.event(),
            CmEvent::Disconnected | CmEvent::Broken
        ));
        end.qp.destroy();
    }
}

/// Runs tests of this program in a process in which memory may stay private.
fn again(tests: &str, prepare: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([tests, "--test-threads=1"])
        .env(PRIVATE, "")
        .stdin(Stdio::null());
    prepare(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("ok. ") && !text.contains("ok. 0 passed"),
        "{text}"
    );
}

/// Without the right to let threads wait inside of the kernel nothing moves, and all works.
#[test]
fn an_ordinary_user() {
    again("places::", |command| {
        // SAFETY: always works.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65534).gid(65534);
        }
    });
}

/// A limit on the size of files must not end the process.
#[test]
fn limited_files() {
    again("two::opens_an_adapter", |command| {
        // SAFETY: a system call that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit {
                    rlim_cur: 1 << 30,
                    rlim_max: 1 << 30,
                };
                match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            })
        };
    });
}

/// Whether no file of this process may be as large as its address space.
pub fn has_small_files() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current.is_some_and(|bytes| bytes < 1 << 47)
}

#[test]
fn opens_an_adapter() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let memory = Memory::new(8 * page());
    let mr = b.register(memory.addr(), memory.len());
    let (addr, rkey) = (memory.addr(), mr.rkey());
    assert_eq!(is_shared(addr), is_possible());
    assert_eq!(a.write(&[1; 99], Remote { addr, rkey }), WcStatus::Success);
    assert_eq!(memory.get(0, 100), [[1; 99].as_slice(), &[0]].concat());
}
