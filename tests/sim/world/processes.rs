//! The two processes: how they end, stop and go on, their threads, and their access to each other's
//! memory.

use std::os::fd::RawFd;

use rustix::io::Errno;

use super::super::faults::Call;
use super::{Event, Nanos, Object, World, trace};

/// A process.
#[derive(Debug, Default)]
pub struct Process {
    /// Whether the process was killed: its calls have no effect any more.
    pub dead: bool,
    /// Whether the epoll instance of the process may have events.
    pub hot: bool,
    /// Number of system calls after which the process is killed, if it is to be killed in one.
    pub calls_left: Option<u64>,
    /// Until when the process is stopped.
    pub stopped_until: Nanos,
}

/// A thread that was started and has not run.
pub struct Thread {
    /// The number of the process.
    pub process: usize,
    /// What the thread does.
    pub body: Box<dyn FnOnce()>,
}

/// The identifier of the first process; the second one has the next.
const FIRST_ID: u32 = 100;

impl World {
    /// The identifier of a process.
    pub fn id_of(process: usize) -> u32 {
        FIRST_ID + process as u32
    }

    /// The identifier of the process whose calls are served.
    pub fn process_id(&self) -> u32 {
        World::id_of(self.process)
    }

    /// Kills a process: the kernel closes its descriptors, and nothing that the process still does in
    /// this simulation reaches memory that it shares with others.
    pub fn kill(&mut self, process: usize) {
        let before = std::mem::replace(&mut self.process, process);
        for fd in 0..self.files.len() {
            if self.files[fd].as_ref().is_some_and(|f| f.owner == process) {
                self.close_file(fd as RawFd);
            }
        }
        self.processes[process].dead = true;
        self.threads.retain(|thread| thread.process != process);
        self.separate(process);
        self.process = before;
    }

    /// Kills the process in a system call, if it is to be killed in this one.
    pub(super) fn count_call(&mut self) {
        let process = self.process;
        let Some(left) = self.processes[process].calls_left else {
            return;
        };
        self.processes[process].calls_left = left.checked_sub(1);
        if left == 0 && !self.processes[process].dead {
            trace!(self, "!! killed in a system call");
            self.kill(process);
        }
    }

    /// Stops a process for a while.
    pub fn stop(&mut self, process: usize, time: Nanos) {
        self.processes[process].stopped_until = self.now + time;
        self.after(time, Event::Continue(process));
    }

    /// Whether a process is neither dead nor stopped.
    pub fn runs(&self, process: usize) -> bool {
        let process = &self.processes[process];
        !process.dead && process.stopped_until <= self.now
    }

    /// A descriptor of a process.
    pub(super) fn open_process(&mut self, process: usize) -> Result<RawFd, Errno> {
        match self.processes[process].dead {
            true => Err(Errno::SRCH),
            false => Ok(self.open(Object::Process(process))),
        }
    }

    /// Whether the process of a descriptor has exited.
    pub(super) fn has_exited(&mut self, fd: RawFd) -> Result<bool, Errno> {
        // A process that was killed waits for nothing.
        if self.processes[self.process].dead {
            return Ok(true);
        }
        self.fails(Call::HasExited, None)?;
        match self.object(fd) {
            Some(Object::Process(process)) => Ok(self.processes[*process].dead),
            Some(_) => Ok(false),
            None => Err(Errno::BADF),
        }
    }

    /// Copies by the real kernel, which sees one process, as many bytes as the simulated one does.
    ///
    /// # Safety
    /// The local ranges are memory that may be read, or changed if this is no write.
    pub(super) unsafe fn process_vm(
        &mut self,
        write: bool,
        id: u32,
        local: &[libc::iovec],
        remote: &[libc::iovec],
    ) -> Result<usize, Errno> {
        let at = remote[0].iov_base.addr() as u64;
        let region = self.regions.iter().find(|(range, _)| range.contains(&at));
        let connection = region.map(|(_, connection)| *connection);
        // What is read in the set-up is no registered memory; it is known whose it is if there is
        // one connection.
        let only = (connection.is_none() && self.tainted.len() == 1).then_some(0);
        self.fails(Call::Copy, connection.or(only))?;
        let process = id.checked_sub(FIRST_ID).map(|process| process as usize);
        let process = process.and_then(|process| self.processes.get(process));
        if process.is_none_or(|process| process.dead) {
            return Err(Errno::SRCH);
        }
        let mut remote = remote.to_vec();
        let len: usize = remote.iter().map(|range| range.iov_len).sum();
        if len > 1 && connection.is_some() && self.rng.one_in(self.weather.short_reads) {
            let mut left = self.rng.range(1, len as u64) as usize;
            for range in &mut remote {
                range.iov_len = range.iov_len.min(left);
                left -= range.iov_len;
            }
        }
        let call = match write {
            true => libc::process_vm_writev,
            false => libc::process_vm_readv,
        };
        let own = std::process::id() as libc::pid_t;
        // SAFETY: the caller's promise; the kernel checks the remote ranges.
        let n = unsafe {
            let (locals, remotes) = (local.len() as _, remote.len() as _);
            call(own, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
        };
        let n = usize::try_from(n).map_err(|_| Errno::FAULT);
        trace!(
            self,
            "process_vm, write {write}, {} ranges, {len} bytes: {n:?}",
            remote.len()
        );
        n
    }
}
