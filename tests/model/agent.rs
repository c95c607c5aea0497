//! The processes that make the calls: tests-c/model_agent.c.

use std::fmt;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Numbers in a request, and in an answer.
const WORDS: usize = 16;

/// A call that has not returned after this time never will.
const HANGS: Duration = Duration::from_secs(60);

/// A call of the library, or of the agent. The order is that of `enum call` in the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Open,
    Close,
    EvdCreate,
    EvdFree,
    EvdDequeue,
    EvdWait,
    EvdPostSe,
    EvdQuery,
    EvdResize,
    EvdSetUnwaitable,
    EvdClearUnwaitable,
    SrqCreate,
    SrqFree,
    SrqPostRecv,
    SrqQuery,
    SrqSetLw,
    PspCreate,
    PspFree,
    CrAccept,
    CrReject,
    EpCreate,
    EpFree,
    EpReset,
    EpConnect,
    EpDisconnect,
    EpGetStatus,
    EpPostRecv,
    EpPostSend,
    EpPostRdmaWrite,
    EpPostRdmaRead,
    MemoryWrite,
    MemoryRead,
}

/// What a call returned: the type of its code, without class and subtype.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const SUCCESS: Code = Code(0);
    pub const INSUFFICIENT_RESOURCES: Code = Code(0x0003_0000);
    pub const INVALID_PARAMETER: Code = Code(0x0006_0000);
    pub const INVALID_STATE: Code = Code(0x0007_0000);
    pub const QUEUE_EMPTY: Code = Code(0x000d_0000);
    pub const QUEUE_FULL: Code = Code(0x000e_0000);
    pub const TIMEOUT_EXPIRED: Code = Code(0x000f_0000);
    /// The part of a `DAT_RETURN` that is the type.
    const TYPE: u32 = 0x3fff_0000;
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Code::SUCCESS => "DAT_SUCCESS",
            Code::INSUFFICIENT_RESOURCES => "DAT_INSUFFICIENT_RESOURCES",
            Code::INVALID_PARAMETER => "DAT_INVALID_PARAMETER",
            Code::INVALID_STATE => "DAT_INVALID_STATE",
            Code::QUEUE_EMPTY => "DAT_QUEUE_EMPTY",
            Code::QUEUE_FULL => "DAT_QUEUE_FULL",
            Code::TIMEOUT_EXPIRED => "DAT_TIMEOUT_EXPIRED",
            Code(other) => return write!(f, "{other:#x}"),
        };
        f.write_str(name)
    }
}

/// What an agent answered.
#[derive(Clone, Copy, Debug)]
pub struct Answer([i64; WORDS]);

impl Answer {
    pub fn code(&self) -> Code {
        Code(self.0[0] as u32 & Code::TYPE)
    }

    /// The number at this place behind the code, from 1.
    pub fn word(&self, place: usize) -> i64 {
        self.0[place]
    }

    /// The first bytes behind the code.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let bytes = self.0[1..].iter().flat_map(|word| word.to_ne_bytes());
        bytes.take(len).collect()
    }
}

/// Most bytes that one request or answer carries.
pub const CHUNK: usize = (WORDS - 4) * 8;

/// A running agent.
pub struct Agent {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Agent {
    /// Starts `program` on an interface adapter of tests-c/dat.conf.
    pub fn start(program: &Path, ia: &str) -> std::io::Result<Agent> {
        let mut child = Command::new(program)
            .arg(ia)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().expect("standard input is a pipe");
        let output = child.stdout.take().expect("standard output is a pipe");
        Ok(Agent {
            child,
            input,
            output,
        })
    }

    /// Makes a call for a party.
    ///
    /// # Errors
    /// What became of the process, if the call did not return.
    pub fn call(&mut self, call: Call, party: usize, args: &[i64]) -> Result<Answer, String> {
        let mut request = [0; WORDS];
        request[0] = call as i64;
        request[1] = party as i64;
        request[2..2 + args.len()].copy_from_slice(args);
        let mut bytes = [0; WORDS * 8];
        for (to, word) in bytes.chunks_exact_mut(8).zip(request) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        if self.input.write_all(&bytes).is_err() {
            return Err(self.end());
        }
        self.wait_for_answer(call)?;
        if self.output.read_exact(&mut bytes).is_err() {
            return Err(self.end());
        }
        let mut answer = [0; WORDS];
        for (word, from) in answer.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = i64::from_ne_bytes(from.try_into().expect("8 bytes"));
        }
        Ok(Answer(answer))
    }

    fn wait_for_answer(&self, call: Call) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let left = HANGS.saturating_sub(start.elapsed());
            let timeout = Timespec::try_from(left).expect("a minute");
            let mut fds = [PollFd::new(&self.output, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(format!("{call:?} does not return")),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(format!("poll: {error}")),
            }
        }
    }

    /// How the process ended.
    fn end(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => format!("the process ended: {status}"),
            Err(error) => format!("the process cannot be waited for: {error}"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // One that hangs, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
