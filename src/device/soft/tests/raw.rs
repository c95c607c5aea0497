//! A peer made by hand, that can say what it likes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::device::soft::iwarp::acknowledge;
use crate::device::soft::iwarp::fpdu::{self, Control, Decoded, Header, Tagged, Untagged};
use crate::device::soft::iwarp::mpa::{self, Agreed, FRAME_MAX, Frame, Kind, Local, Parsed, Rtr};
use crate::device::soft::iwarp::rdmap::Segment;
use crate::device::soft::iwarp::terminate::Terminate;
use crate::device::soft::iwarp::wire::*;

pub const LOCAL: Local = Local {
    crc: true,
    ird: 4,
    ord: 4,
    rtr: Rtr::WRITE,
    acknowledge: false,
    extensions: false,
};

/// A peer made by hand.
pub struct Raw {
    pub socket: TcpStream,
    /// Bytes that are read and not yet parsed.
    bytes: Vec<u8>,
}

impl Raw {
    pub fn new(socket: TcpStream) -> Raw {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let bytes = Vec::new();
        Raw { socket, bytes }
    }

    pub fn connect(qual: u64) -> Raw {
        let port = u16::try_from(qual).unwrap();
        Raw::new(TcpStream::connect(("127.0.0.1", port)).unwrap())
    }

    /// Connects from another address of this host.
    pub fn connect_from(source: [u8; 4], qual: u64) -> Raw {
        let port = u16::try_from(qual).unwrap();
        let (family, kind) = (
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
        );
        let socket = rustix::net::socket(family, kind, None).unwrap();
        let address = |ip: [u8; 4], port| std::net::SocketAddrV4::new(ip.into(), port);
        rustix::net::bind(&socket, &address(source, 0)).unwrap();
        rustix::net::connect(&socket, &address([127, 0, 0, 1], port)).unwrap();
        Raw::new(socket.into())
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn frame(&mut self, frame: &Frame<'_>) {
        let mut bytes = [0; FRAME_MAX];
        let bytes = frame.encode(&mut bytes).unwrap();
        self.send(bytes);
    }

    /// Reads more; false at the end of the stream.
    pub fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(n) => {
                self.bytes.extend_from_slice(&buffer[..n]);
                n > 0
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => self.more(),
            Err(error) => panic!("{error}"),
        }
    }

    /// The next negotiation frame, for `look`; `None` at the end of the stream.
    pub fn receive_frame<R>(
        &mut self,
        kind: Kind,
        look: impl FnOnce(&Frame<'_>) -> R,
    ) -> Option<R> {
        loop {
            if let Parsed::Frame(frame, used) = mpa::parse(kind, &self.bytes).unwrap() {
                let result = look(&frame);
                self.bytes.drain(..used);
                return Some(result);
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// The next header and its payload; `None` at the end of the stream.
    pub fn header(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            if let Decoded::Fpdu(fpdu) = fpdu::decode(&self.bytes, true).unwrap() {
                let found = (fpdu.header.unwrap(), fpdu.payload.to_vec());
                let used = fpdu.consumed;
                self.bytes.drain(..used);
                return Some(found);
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// The next segment and its payload; `None` at the end of the stream.
    pub fn segment(&mut self) -> Option<(Segment, Vec<u8>)> {
        let (header, payload) = self.header()?;
        let segment = Segment::classify(&header, payload.len()).unwrap();
        Some((segment, payload))
    }

    /// The same of an end with all that two ends of ours agree on, but for acknowledgements.
    pub fn any(&mut self) -> Option<(Segment, Vec<u8>)> {
        loop {
            let (header, payload) = self.header()?;
            match Segment::classify_all(&header, payload.len()).unwrap() {
                Segment::Acknowledge { .. } => {}
                segment => return Some((segment, payload)),
            }
        }
    }

    /// The next segment of an end with acknowledgements, its payload, and its count.
    pub fn extended(&mut self) -> (Segment, Vec<u8>, u32) {
        let (header, payload) = self.header().expect("the end");
        let segment = Segment::classify_extended(&header, payload.len()).unwrap();
        let count = acknowledge::count_in(&header).expect("no count");
        (segment, payload, count)
    }

    /// What the peer has to say before it ends.
    pub fn terminate(&mut self) -> Terminate {
        loop {
            match self.any().expect("no Terminate") {
                (Segment::Terminate { .. }, payload) => {
                    let found = Terminate::parse(&payload).unwrap();
                    assert!(!self.more());
                    return found;
                }
                _ => continue,
            }
        }
    }

    pub fn fpdu(&mut self, header: &[u8], payload: &[u8]) {
        let bytes = fpdu_bytes(header, payload);
        self.send(&bytes);
    }
}

pub fn fpdu_bytes(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut trailer = [0; FPDU_TRAILER_MAX];
    let trailer = fpdu::seal(true, header, [payload], &mut trailer);
    [header, payload, trailer].concat()
}

pub fn tagged(opcode: u8, stag: u32, to: u64, len: usize) -> [u8; TAGGED_HDR] {
    let mut bytes = [0; TAGGED_HDR];
    let control = Control::new(opcode, true);
    Tagged { control, stag, to }
        .encode(len, &mut bytes)
        .unwrap();
    bytes
}

pub fn send_header(msn: u32, mo: u32, last: bool, len: usize) -> [u8; UNTAGGED_HDR] {
    let mut bytes = [0; UNTAGGED_HDR];
    let header = Untagged {
        control: Control::new(OP_SEND, last),
        invalidate: 0,
        qn: QN_SEND,
        msn,
        mo,
    };
    header.encode(len, &mut bytes).unwrap();
    bytes
}

pub fn rtr() -> Vec<u8> {
    fpdu_bytes(&tagged(OP_WRITE, 0, 0, 0), b"")
}

pub fn device() -> Arc<Soft> {
    Soft::open("127.0.0.1 path=tcp").unwrap()
}

/// A hand-made initiator, and our end, which has accepted it.
pub fn initiator(revision: u8) -> (Raw, End) {
    let b = End::new(&device(), attr());
    let raw = initiate(&b, revision);
    (raw, b)
}

/// A hand-made initiator that `b` has accepted.
pub fn initiate(b: &End, revision: u8) -> Raw {
    initiate_as(&LOCAL, b, revision)
}

/// The same of one that offers `local`.
pub fn initiate_as(local: &Local, b: &End, revision: u8) -> Raw {
    let device = &b.device;
    let (server, qual) = Server::any(device);
    let mut raw = Raw::connect(qual);
    raw.frame(&local.request(revision, b"hello"));
    let request = server.next();
    assert_eq!(request.private_data(), b"hello");
    device.accept(request, &b.qp, b"welcome").unwrap();
    let agreed = raw.receive_frame(Kind::Reply, |reply| {
        assert_eq!(reply.private_data, b"welcome");
        local.conclude(revision, reply)
    });
    assert!(agreed.unwrap().is_ok());
    raw
}

/// A hand-made initiator that offers that, and our end, established.
pub fn initiator_of(local: &Local) -> (Raw, End) {
    let b = End::new(&device(), attr());
    let (server, qual) = Server::any(&b.device);
    let mut raw = Raw::connect(qual);
    raw.frame(&local.request(2, b"hello"));
    b.device.accept(server.next(), &b.qp, b"").unwrap();
    let agreed = raw.receive_frame(Kind::Reply, |reply| local.conclude(2, reply));
    let agreed = agreed.unwrap().unwrap();
    assert_eq!(agreed.rtr, Some(Rtr::WRITE));
    assert_eq!(agreed.acknowledge, local.acknowledge);
    assert_eq!(agreed.extensions, local.extensions);
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    (raw, b)
}

/// A hand-made initiator and our end, established.
pub fn connected() -> (Raw, End) {
    let (mut raw, b) = initiator(2);
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    (raw, b)
}

/// A hand-made responder, and our end, which is connected to it.
pub fn responder() -> (Raw, End) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = End::new(&device(), attr());
    let qual = u64::from(listener.local_addr().unwrap().port());
    a.connect(qual, b"hello").unwrap();
    let mut raw = Raw::new(listener.accept().unwrap().0);
    let mut bytes = [0; FRAME_MAX];
    let (reply, agreed) = raw
        .receive_frame(Kind::Request, |request| {
            assert_eq!(request.private_data, b"hello");
            assert_eq!(request.revision, 2);
            let (reply, agreed) = request.answer(&LOCAL, b"welcome").unwrap();
            (reply.encode(&mut bytes).unwrap().to_vec(), agreed)
        })
        .unwrap();
    raw.send(&reply);
    assert_eq!(a.event(), established(b"welcome"));
    let Agreed { crc, rtr, .. } = agreed;
    assert_eq!((crc, rtr), (true, Some(Rtr::WRITE)));
    let (first, payload) = raw.segment().unwrap();
    assert!(matches!(first, Segment::Write { last: true, .. }) && payload.is_empty());
    (raw, a)
}
