//! Pages that the kernel has given to somebody who does not look at the page tables, as it does
//! for direct I/O: here it copies for a process into two pages, the second of which does not
//! come for as long as the test likes, so that it has the first.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::ioctl::{Opcode, Updater, opcode};

use super::alone;
use super::ends::*;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// A range, and what differs.
#[repr(C)]
struct Order {
    start: u64,
    len: u64,
    mode: u64,
    result: u64,
}

const API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Order>(0xaa, 0x00);
const ZEROPAGE: Opcode = opcode::read_write::<Order>(0xaa, 0x04);

/// Lets whoever touches missing memory wait, in the kernel as well.
pub struct Gate(OwnedFd);

impl Gate {
    /// `None` if that is not permitted, or the kernel is older than what the library needs.
    pub fn open() -> Option<Gate> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: makes a descriptor, by itself or by its device.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, flags) as i32;
            if fd < 0 {
                let device = libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR);
                let fd = libc::ioctl(device, 0xaa00, flags);
                libc::close(device);
                fd
            } else {
                fd
            }
        };
        if fd < 0 {
            return None;
        }
        // SAFETY: it was just made.
        let gate = Gate(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut api = Api {
            api: 0xaa,
            features: 0x1_1001,
            ioctls: 0,
        };
        // SAFETY: the structure of that operation.
        unsafe { rustix::ioctl::ioctl(&gate.0, Updater::<API, _>::new(&mut api)) }.ok()?;
        Some(gate)
    }

    fn call<const OPCODE: Opcode>(&self, addr: u64, mode: u64) {
        let mut order = Order {
            start: addr,
            len: page() as u64,
            mode,
            result: 0,
        };
        // SAFETY: the structure of that operation, and a page that the test has for this.
        unsafe { rustix::ioctl::ioctl(&self.0, Updater::<OPCODE, _>::new(&mut order)) }.unwrap();
    }

    /// Shuts it for a page that is missing.
    fn shut(&self, addr: u64) {
        self.call::<REGISTER>(addr, 1);
    }

    /// Waits until somebody waits.
    fn wait(&self) {
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!(fds[0].revents(), PollFlags::IN);
    }

    /// Gives them zeros.
    fn open_for(&self, addr: u64) {
        self.call::<ZEROPAGE>(addr, 0);
    }
}

/// Has the kernel write sevens to both pages.
fn write_both(memory: &Memory) {
    let bytes = vec![7u8; 2 * page()];
    let part = |at: *const u8| libc::iovec {
        iov_base: at.cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let (from, to) = (part(bytes.as_ptr()), part(memory.at(0)));
    // SAFETY: both are memory of ours of that length.
    let n = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) };
    assert_eq!(n, bytes.len() as isize);
}

/// A page that the kernel has given away stays where it is, so that nothing is lost.
#[test]
fn a_page_that_is_held_does_not_move() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let p = page();
    let memory = Memory::new(3 * p);
    memory.put(0, &vec![1; p]);
    let gate = Gate::open().unwrap();
    gate.shut(memory.addr() + p as u64);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_both(&memory));
        gate.wait();
        let mr = b.register(memory.addr(), p);
        assert!(!is_shared(memory.addr()));
        assert_eq!(memory.get(0, p), vec![1; p]);
        gate.open_for(memory.addr() + p as u64);
        writer.join().unwrap();
        assert_eq!(memory.get(0, 2 * p), vec![7; 2 * p]);
        let remote = dat_core::testing::device::Remote {
            addr: memory.addr(),
            rkey: dat_core::testing::device::MemoryRegion::rkey(&mr),
        };
        assert_eq!(a.read(remote, p), vec![7; p]);
    });
    // Nobody holds it any more.
    let mr = b.register(memory.addr(), p);
    assert!(is_shared(memory.addr()));
    drop(mr);
    assert_eq!(memory.get(0, 2 * p), vec![7; 2 * p]);
}

/// Of pages in the file the kernel does not tell. This is what dat.conf(5) warns of, and a
/// reason why memory is not shared unasked.
#[test]
fn a_page_of_the_file_that_is_held_moves() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let p = page();
    let memory = Memory::new(3 * p);
    memory.put(0, &vec![1; p]);
    let mr = b.register(memory.addr(), p);
    let gate = Gate::open().unwrap();
    gate.shut(memory.addr() + p as u64);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_both(&memory));
        gate.wait();
        drop(mr);
        gate.open_for(memory.addr() + p as u64);
        writer.join().unwrap();
    });
    // The first page was written to where it had been.
    assert_eq!(memory.get(0, p), vec![1; p]);
    assert_eq!(memory.get(p, p), vec![7; p]);
}
