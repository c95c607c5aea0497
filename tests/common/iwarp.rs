//! An iWARP peer made by hand over TCP: it builds each frame from its fields, so that any of them
//! can be wrong.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

use dat_core::testing::device::soft::iwarp::fpdu::{self, Control, Decoded, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::mpa::{
    self, FRAME_MAX, Frame, Kind, Local, Parsed, Rtr,
};
use dat_core::testing::device::soft::iwarp::rdmap::ReadRequest;
use dat_core::testing::device::soft::iwarp::wire::*;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::soft::PATIENCE;

/// What the peer offers unless a test wants something else.
pub const OFFER: Local = Local {
    crc: true,
    ird: 4,
    ord: 4,
    rtr: Rtr::WRITE,
    acknowledge: false,
    extensions: false,
};

/// A socket of this process to a port of the loopback address, from an address that no other peer
/// of the process has had: the device counts wrong keys by address.
pub fn dial(port: u64) -> TcpStream {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 0x00f0_0000;
    // Processes that test at the same time have other addresses mostly; it would not matter.
    let first = 0x7f01_0000 + std::process::id() % 0xff * 0x100;
    let source = Ipv4Addr::from_bits(0x7f00_0000 | first.wrapping_add(number) & 0x00ff_ffff);
    let (family, kind) = (
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
    );
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
    // The port is chosen when the connection is made, so that ports are not used up.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(source, 0)).unwrap();
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, u16::try_from(port).unwrap());
    let mut connected = rustix::net::connect(&socket, &to);
    // The kernel goes on after a signal, such as the one of libFuzzer's clock.
    while connected == Err(Errno::INTR) {
        let mut writable = [PollFd::new(&socket, PollFlags::OUT)];
        connected = rustix::event::poll(&mut writable, None)
            .and_then(|_| rustix::net::sockopt::socket_error(&socket)?);
    }
    connected.unwrap();
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// The bytes of an MPA frame.
pub fn mpa_bytes(frame: &Frame<'_>) -> Vec<u8> {
    frame.encode(&mut [0; FRAME_MAX]).unwrap().to_vec()
}

/// Receives the next MPA frame of a kind into `bytes`, and gives its length; `None` at the end of
/// the stream.
pub fn receive_frame(socket: &mut TcpStream, kind: Kind, bytes: &mut Vec<u8>) -> Option<usize> {
    loop {
        match mpa::parse(kind, bytes).unwrap() {
            Parsed::Frame(_, used) => return Some(used),
            Parsed::NeedMore(n) => {
                let before = bytes.len();
                bytes.resize(before + n, 0);
                let read = loop {
                    match socket.read(&mut bytes[before..]) {
                        // A read with a time limit is not restarted after a signal.
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        read => break read.unwrap_or(0),
                    }
                };
                bytes.truncate(before + read);
                if read == 0 {
                    return None;
                }
            }
        }
    }
}

/// Receives a Read Request, and returns the steering tag of the sink.
pub fn receive_read_request(socket: &mut TcpStream) -> u32 {
    let mut request = [0; READ_REQUEST_HDR + FPDU_CRC];
    socket.read_exact(&mut request).unwrap();
    u32::from_be_bytes(request[20..24].try_into().unwrap())
}

/// Writes, unless the other end is gone.
pub fn write_all(socket: &mut TcpStream, bytes: &[u8]) {
    let _ = socket.write_all(bytes);
}

/// Everything up to the end of the stream, and whether the end was a reset.
pub fn read_to_end(socket: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    match socket.read_to_end(&mut all) {
        Ok(_) => (all, false),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (all, true),
        Err(error) => panic!("the stream does not end: {error}"),
    }
}

/// Cuts a stream into its FPDUs.
pub fn fpdus(mut bytes: &[u8], crc: bool) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let Decoded::Fpdu(fpdu) = fpdu::decode(bytes, crc).unwrap() else {
            panic!("a torn FPDU: {bytes:02x?}");
        };
        let (this, rest) = bytes.split_at(fpdu.consumed);
        found.push(this);
        bytes = rest;
    }
    found
}

/// A whole FPDU.
pub fn sealed(crc: bool, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut trailer = [0; FPDU_TRAILER_MAX];
    let trailer = fpdu::seal(crc, header, [payload], &mut trailer);
    [header, payload, trailer].concat()
}

/// The first message of the peer.
pub fn ready_to_receive() -> Vec<u8> {
    tagged(OP_WRITE, 0, 0, &[])
}

/// A tagged segment, the last of its message.
pub fn tagged(opcode: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let control = Control::new(opcode, true);
    tagged_as(Tagged { control, stag, to }, payload)
}

/// A tagged segment with any header.
pub fn tagged_as(header: Tagged, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0; TAGGED_HDR];
    header.encode(payload.len(), &mut bytes).unwrap();
    sealed(true, &bytes, payload)
}

/// The header of a Send, the last of its message.
pub fn send(msn: u32) -> Untagged {
    Untagged {
        control: Control::new(OP_SEND, true),
        invalidate: 0,
        qn: QN_SEND,
        msn,
        mo: 0,
    }
}

/// An untagged segment with any header.
pub fn untagged(header: Untagged, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0; UNTAGGED_HDR];
    header.encode(payload.len(), &mut bytes).unwrap();
    sealed(true, &bytes, payload)
}

/// A Read Request for `size` bytes at `to`.
pub fn read(msn: u32, stag: u32, to: u64, size: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 0x5151,
        sink_to: 0x6161,
        size,
        source_stag: stag,
        source_to: to,
    };
    let mut bytes = [0; READ_REQUEST_HDR];
    request.encode(msn, &mut bytes);
    sealed(true, &bytes, &[])
}

/// The Terminate that is expected, built without the library's encoder: `copied` is the header
/// that it repeats, and `bits` the flags M, D and R.
pub fn terminate((layer, etype, code): (u8, u8, u8), bits: u8, copied: &[u8]) -> Vec<u8> {
    let length = (18 + 4 + copied.len()) as u16;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend([0x41, 0x47, 0, 0, 0, 0]);
    for word in [2u32, 1, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend([layer << 4 | etype, code, bits, 0]);
    bytes.extend(copied);
    sealed(true, &bytes, &[])
}
