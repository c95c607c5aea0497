//! Copies, within a process and between two.

use std::env;
use std::process::Command;

use super::buffer::Buffer;
use super::{Figures, pin, timed};

/// A copy of warm memory.
pub fn copy(a: usize, size: usize) -> Option<Figures> {
    pin(a)?;
    let from = Buffer::new(1, size);
    let mut to = Buffer::new(2, size);
    timed(|| {
        std::hint::black_box(&mut *to).copy_from_slice(std::hint::black_box(&from));
        true
    })
}

/// Holds memory for [`vmread`] of another process.
pub fn hold(size: usize) -> Option<Figures> {
    let memory = Buffer::new(1, size);
    println!("{}", memory.as_ptr() as usize);
    let mut end = String::new();
    std::io::stdin().read_line(&mut end).ok()?;
    std::hint::black_box(memory);
    // The figure is the other process's to print.
    std::process::exit(0)
}

/// The kernel's copy from the memory of another process.
pub fn vmread(a: usize, size: usize) -> Option<Figures> {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    pin(a)?;
    let mut holder = Command::new(env::current_exe().ok()?)
        .args(["hold", &size.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut said = String::new();
    BufReader::new(holder.stdout.take()?)
        .read_line(&mut said)
        .ok()?;
    let address: usize = said.trim().parse().ok()?;
    let mut to = Buffer::new(2, size);
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: size,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: size,
    };
    let id = holder.id() as libc::pid_t;
    let figure = timed(|| {
        // SAFETY: writes to `to`, within its length; the other process keeps its memory.
        let copied = unsafe { libc::process_vm_readv(id, &local, 1, &remote, 1, 0) };
        copied == size as isize
    });
    drop(holder.stdin.take());
    let _ = holder.wait();
    figure
}
