//! Which system calls fail, when, and with what.

use rustix::io::Errno;

use super::rng::Rng;

/// A system call that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Socket,
    Bind,
    Listen,
    Accept,
    Connect,
    SockName,
    PeerName,
    SetOption,
    Share,
    TcpInfo,
    Unacknowledged,
    Send,
    Recv,
    Shutdown,
    Thread,
    EpollCreate,
    EpollAdd,
    EpollChange,
    EpollWait,
    Eventfd,
    Timerfd,
    /// A message of the handshake, with files or without, over a local socket.
    SendMessage,
    /// A request or a reply over a local socket.
    SendLocal,
    /// The byte that wakes the peer.
    Ring,
    /// A read of a local socket.
    RecvLocal,
    /// The files of a message are given to the process that receives it; fewer arrive.
    ReceiveFiles,
    /// `SO_PEERCRED`.
    Credentials,
    /// `SO_PEERPIDFD`.
    PeerProcess,
    /// A check whether a process has exited.
    HasExited,
    /// A thread that reads in another process.
    Verifier,
    MemoryFile,
    Allocate,
    /// `ftruncate`, or seals that are added.
    ChangeFile,
    QueryFile,
    /// A memory file is opened again.
    Reopen,
    Duplicate,
    Map,
    /// `process_vm_readv` or `process_vm_writev`.
    Copy,
}

impl Call {
    /// Errors that change nothing in the end: the library tries again.
    fn passing(self) -> &'static [Errno] {
        match self {
            Call::Send => &[Errno::AGAIN, Errno::INTR, Errno::NOBUFS, Errno::NOMEM],
            Call::Recv | Call::RecvLocal | Call::EpollWait | Call::Allocate => &[Errno::INTR],
            Call::SendLocal | Call::Ring | Call::SendMessage => {
                &[Errno::INTR, Errno::NOBUFS, Errno::NOMEM]
            }
            Call::HasExited => &[Errno::INTR, Errno::NOMEM],
            Call::Reopen => &[Errno::NOENT, Errno::ACCESS, Errno::MFILE, Errno::NFILE],
            Call::Accept => &[
                Errno::INTR,
                Errno::AGAIN,
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOBUFS,
                Errno::NOMEM,
                Errno::CONNABORTED,
                Errno::PROTO,
                Errno::NETDOWN,
            ],
            Call::SetOption => &[Errno::NOPROTOOPT, Errno::NOMEM, Errno::NOBUFS],
            Call::TcpInfo | Call::Unacknowledged => &[Errno::NOPROTOOPT, Errno::NOMEM],
            _ => &[],
        }
    }

    /// Errors after which a connection, or what is to be made, cannot be.
    fn lasting(self) -> &'static [Errno] {
        match self {
            Call::Socket => &[
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOBUFS,
                Errno::NOMEM,
                Errno::AFNOSUPPORT,
                Errno::ACCESS,
            ],
            Call::Bind => &[
                Errno::ADDRINUSE,
                Errno::ADDRNOTAVAIL,
                Errno::ACCESS,
                Errno::NOMEM,
            ],
            Call::Listen => &[Errno::ADDRINUSE, Errno::NOMEM],
            Call::Accept => &[],
            Call::Connect => &[
                Errno::CONNREFUSED,
                Errno::HOSTUNREACH,
                Errno::NETUNREACH,
                Errno::TIMEDOUT,
                Errno::ADDRINUSE,
                Errno::ADDRNOTAVAIL,
                Errno::ACCESS,
                Errno::PERM,
                Errno::NOBUFS,
                Errno::NOMEM,
                Errno::AGAIN,
                Errno::INTR,
                Errno::CONNRESET,
            ],
            Call::SockName => &[Errno::NOBUFS],
            Call::PeerName => &[Errno::NOTCONN, Errno::NOBUFS],
            Call::Send => &[
                Errno::CONNRESET,
                Errno::PIPE,
                Errno::TIMEDOUT,
                Errno::HOSTUNREACH,
                Errno::NETUNREACH,
                Errno::NETDOWN,
                Errno::PERM,
                Errno::FAULT,
            ],
            Call::Recv => &[
                Errno::CONNRESET,
                Errno::TIMEDOUT,
                Errno::HOSTUNREACH,
                Errno::NOMEM,
                Errno::NOBUFS,
                Errno::IO,
            ],
            Call::Share => &[Errno::NOBUFS, Errno::NOPROTOOPT],
            Call::Shutdown => &[Errno::NOTCONN, Errno::NOBUFS],
            Call::Thread => &[Errno::AGAIN, Errno::NOMEM],
            Call::EpollCreate => &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
            Call::EpollAdd => &[Errno::NOMEM, Errno::NOSPC],
            Call::EpollChange => &[Errno::NOMEM],
            Call::Eventfd | Call::Timerfd => &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
            Call::SendMessage => &[
                Errno::PIPE,
                Errno::CONNRESET,
                Errno::TOOMANYREFS,
                Errno::MFILE,
                Errno::PERM,
            ],
            Call::SendLocal | Call::Ring => &[Errno::PIPE, Errno::CONNRESET, Errno::PERM],
            Call::RecvLocal => &[Errno::CONNRESET, Errno::NOMEM, Errno::IO],
            Call::ReceiveFiles => &[Errno::MFILE],
            Call::Credentials => &[Errno::NOPROTOOPT, Errno::OPNOTSUPP],
            Call::PeerProcess => &[
                Errno::MFILE,
                Errno::NFILE,
                Errno::SRCH,
                Errno::NOMEM,
                Errno::NODATA,
            ],
            Call::Verifier => &[Errno::AGAIN, Errno::NOMEM],
            Call::MemoryFile => &[
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOMEM,
                Errno::INVAL,
                Errno::ACCESS,
            ],
            Call::Allocate => &[Errno::NOSPC, Errno::NOMEM, Errno::FBIG],
            Call::ChangeFile => &[Errno::PERM, Errno::FBIG, Errno::NOMEM],
            Call::QueryFile => &[Errno::PERM, Errno::NOMEM],
            Call::Duplicate => &[Errno::MFILE],
            Call::Map => &[Errno::NOMEM, Errno::NODEV, Errno::PERM, Errno::AGAIN],
            Call::Copy => &[Errno::SRCH, Errno::PERM, Errno::NOMEM, Errno::FAULT],
            Call::SetOption
            | Call::TcpInfo
            | Call::Unacknowledged
            | Call::EpollWait
            | Call::HasExited
            | Call::Reopen => &[],
        }
    }
}

impl Call {
    /// Whether the call is one of the handshake of two processes of a host, at the end that connects
    /// (`active`) or at the other one. If it fails they share no memory, and may be connected over
    /// TCP. What the end that connects does with the files of the other one does not count: that end
    /// has sent its request before, and may send it again over TCP.
    pub fn is_of_handshake(self, active: bool) -> bool {
        match self {
            Call::SendMessage
            | Call::Credentials
            | Call::PeerProcess
            | Call::Verifier
            | Call::MemoryFile
            | Call::Allocate
            | Call::ChangeFile
            | Call::Duplicate => true,
            Call::ReceiveFiles | Call::QueryFile | Call::Map => !active,
            _ => false,
        }
    }
}

/// How a fault concerns the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The library has to get over the error.
    Passing(Errno),
    /// The connection may end, or the call may fail.
    Lasting(Errno),
}

/// The faults of a run.
#[derive(Clone, Debug)]
pub struct Faults {
    /// One in so many calls fails in passing; 0 for none.
    pub passing: u64,
    /// Number of calls on the connection `victim` before the one that fails for good.
    pub countdown: Option<u64>,
    /// The connection that a lasting fault may concern, and calls that concern no connection.
    pub victim: usize,
}

impl Faults {
    /// Random faults, often none.
    pub fn of(rng: &mut Rng, connections: usize) -> Faults {
        let passing = match rng.below(4) {
            0 | 1 => 0,
            2 => rng.range(10, 60),
            _ => rng.range(2, 8),
        };
        let bound = rng.pick(&[6, 20, 60, 150]);
        Faults {
            passing,
            countdown: rng.percent(30).then(|| rng.below(bound)),
            victim: rng.below(connections as u64) as usize,
        }
    }

    /// Whether a call fails. `connection` is the one that the call is about, if that is known.
    pub fn strike(
        &mut self,
        rng: &mut Rng,
        call: Call,
        connection: Option<usize>,
    ) -> Option<Fault> {
        let passing = call.passing();
        if !passing.is_empty() && rng.one_in(self.passing) {
            return Some(Fault::Passing(rng.pick(passing)));
        }
        let lasting = call.lasting();
        if lasting.is_empty() || connection != Some(self.victim) {
            return None;
        }
        let left = self.countdown?;
        self.countdown = left.checked_sub(1);
        (left == 0).then(|| Fault::Lasting(rng.pick(lasting)))
    }
}
