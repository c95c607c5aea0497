//! The figures that processes with a DAT library offer: where their sockets are, and what is read there.
//! How the library offers them is in the module of the same name there.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde_json::Value;

/// What the name of a socket begins with, in `/proc/net/unix`.
const NAME: &str = "@libdat-figures/";
/// The form of the figures that is understood here.
const FORMAT: u64 = 1;
/// The bit of a socket's flags in `/proc/net/unix` that says that it listens.
const LISTENS: u64 = 1 << 16;

/// A socket on which a process offers its figures.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The name in the abstract name space, without the byte in front.
    name: String,
}

impl Place {
    /// The identifier of the process, in the PID namespace of that process.
    pub fn pid(&self) -> Option<u32> {
        self.name.split('/').nth(1)?.parse().ok()
    }
}

/// All such sockets in this network namespace, of all users.
///
/// # Errors
/// `/proc` cannot be read.
pub fn places() -> io::Result<Vec<Place>> {
    // A name may have any bytes.
    let text = fs::read("/proc/net/unix")?;
    let mut places = places_in(&String::from_utf8_lossy(&text));
    places.sort();
    places.dedup();
    Ok(places)
}

fn places_in(text: &str) -> Vec<Place> {
    let place = |line: &str| {
        let mut words = line.split_whitespace();
        let flags = u64::from_str_radix(words.nth(3)?, 16).ok()?;
        let name = words.last()?;
        let name = name
            .strip_prefix('@')
            .filter(|_| name.starts_with(NAME) && flags & LISTENS != 0)?;
        Some(Place {
            name: name.to_owned(),
        })
    };
    text.lines().filter_map(place).collect()
}

/// A connection to a process whose figures are being read.
pub struct Reader {
    socket: UnixStream,
    /// The process, in our PID namespace.
    pub pid: u32,
    /// The effective user of the process.
    user: u32,
    text: Vec<u8>,
}

impl Reader {
    /// Connects, without waiting.
    ///
    /// # Errors
    /// The process is gone, or has too many readers that it has not accepted.
    pub fn connect(place: &Place) -> io::Result<Reader> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: numbers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which is ours.
        let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
        // SAFETY: zeros are a value of the type.
        let mut address: libc::sockaddr_un = unsafe { zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let room = &mut address.sun_path[1..];
        if place.name.len() > room.len() {
            return Err(ErrorKind::InvalidInput.into());
        }
        for (to, from) in room.iter_mut().zip(place.name.bytes()) {
            *to = from as libc::c_char;
        }
        let len = size_of::<libc::sa_family_t>() + 1 + place.name.len();
        let to = (&raw const address).cast();
        // SAFETY: an address of this length.
        if unsafe { libc::connect(socket.as_raw_fd(), to, len as libc::socklen_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let peer = peer(&socket)?;
        Ok(Reader {
            socket,
            pid: u32::try_from(peer.pid).unwrap_or(0),
            user: peer.uid,
            text: Vec::new(),
        })
    }

    /// Whether the process is one of this user. What others show need not be true.
    pub fn is_own(&self) -> bool {
        // SAFETY: no preconditions.
        self.user == unsafe { libc::geteuid() }
    }

    /// The figures, if they are there as a whole; `None` if this is to be called again when there is
    /// more to be read.
    ///
    /// # Errors
    /// The process has refused, is gone, or its figures are of another version.
    pub fn advance(&mut self) -> io::Result<Option<Value>> {
        match self.socket.read_to_end(&mut self.text) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            result => result?,
        };
        let figures: Value = serde_json::from_slice(&self.text)?;
        match figures["format"].as_u64() {
            Some(FORMAT) => Ok(Some(figures)),
            _ => Err(io::Error::other(
                "figures of another version of the library",
            )),
        }
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The process and the user at the other end of a local socket.
fn peer(socket: &UnixStream) -> io::Result<libc::ucred> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = found.as_mut_ptr().cast();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: room for the answer, which consists of numbers.
    unsafe {
        if libc::getsockopt(socket.as_raw_fd(), level, option, to, &mut len) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(found.assume_init())
    }
}

/// Waits until one of the readers can advance, or the time is over.
pub fn wait<'a>(readers: impl Iterator<Item = &'a Reader>, milliseconds: u64) {
    let mut polled: Vec<libc::pollfd> = readers
        .map(|reader| libc::pollfd {
            fd: reader.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let count = polled.len() as libc::nfds_t;
    let timeout = libc::c_int::try_from(milliseconds).unwrap_or(libc::c_int::MAX);
    // SAFETY: so many entries.
    unsafe { libc::poll(polled.as_mut_ptr(), count, timeout) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_found() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 @libdat-figures/17/ab\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 2 @libdat-figures/17/ab\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 3 /run/libdat-figures/18/cd\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 5 @libdat-figures/x\n";
        let found = places_in(text);
        let pids: Vec<_> = found.iter().map(Place::pid).collect();
        assert_eq!(pids, [Some(17), None]);
        assert_eq!(found[0].name, "libdat-figures/17/ab");
    }
}
