//! The set-up of a connection through shared memory, by a peer that speaks the protocol by hand: its
//! messages and files are right, nearly right, or anything. The connection is set up or refused, no
//! descriptor is left behind, an honest connection of the device works, and what the peer writes in
//! its files afterwards changes no memory of ours.

use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::iwarp::mpa::{self, Kind, Parsed};
use dat_core::testing::device::soft::transport::shm::ring::Ring;
use dat_core::testing::device::*;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::input::Input;
use super::{completions, until};
use crate::iwarp::{OFFER, mpa_bytes};
use crate::shm_peer::{
    self, HELLO_LEN, Record, files_message, loopback, memory, name, number_in, sizes, word_at,
};
use crate::soft::PATIENCE;
use crate::victim::{Arena, Host, Region, Victim};

/// Sends a message with files. The other end may be closed, or full.
fn send(socket: &UnixStream, bytes: &[u8], files: &[OwnedFd]) {
    shm_peer::send(socket, bytes, files, SendFlags::DONTWAIT);
}

/// What has arrived; `None` if nothing has, and no bytes at the end of the stream.
fn receive(socket: &UnixStream) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    match shm_peer::receive(socket, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => None,
        arrived => Some(arrived.unwrap_or_default()),
    }
}

/// A file, mostly as it has to be.
fn file(input: &mut Input<'_>, len: u64) -> OwnedFd {
    // Odd ones are frequent: there are several files in a message.
    let (kind, contents) = (input.byte(), input.byte());
    let odd = if kind >= 0xe0 { kind % 16 } else { 16 };
    if odd == 15 {
        return std::fs::File::open("/dev/null").unwrap().into();
    }
    if odd == 14 {
        return UnixStream::pair().unwrap().0.into();
    }
    let len = match odd {
        13 => 0,
        12 => len - 1,
        11 => len + 4096,
        10 => len / 2,
        _ => len,
    };
    let file = memory(len, SealFlags::empty());
    // The beginning is anything: keys, states, rings.
    let contents = input.take(usize::from(contents) % 32);
    if !contents.is_empty() {
        let _ = rustix::io::pwrite(&file, contents, 0);
    }
    let seals = match odd {
        9 => SealFlags::empty(),
        8 => SealFlags::SHRINK,
        7 => SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        6 => SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        _ => SealFlags::SHRINK | SealFlags::GROW,
    };
    let _ = rustix::fs::fcntl_add_seals(&file, seals);
    file
}

/// The files of a message, mostly as they have to be.
fn files(input: &mut Input<'_>, right: &[u64]) -> Vec<OwnedFd> {
    let count = match input.byte() {
        n @ 0xf0.. => usize::from(n % 9),
        _ => right.len(),
    };
    let len = |i: usize| right.get(i).copied().unwrap_or(4096);
    (0..count).map(|i| file(input, len(i))).collect()
}

/// A record to be read, and its address, mostly as they have to be.
fn record(input: &mut Input<'_>) -> (Box<Record>, u64) {
    static PROCESS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1 << 40);
    let number = input.field(0x5eed);
    // Another process each time, so that its files are new.
    let process = PROCESS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let reader = input.field32(std::process::id());
    let mut record = Box::new(Record::new(number, process, reader));
    if input.byte() == 0xff {
        record.magic[7] = input.byte();
    }
    let at = input.field(record.address());
    (record, at)
}

fn hello(input: &mut Input<'_>, at: u64, answer: u64, port: u32) -> Vec<u8> {
    let (answer, port, zero) = (input.field(answer), input.field32(port), input.field32(0));
    let mut addresses = [loopback(); 2];
    for address in &mut addresses {
        if input.byte() == 0xff {
            address[usize::from(input.byte() % 16)] = input.byte();
        }
    }
    resize(input, shm_peer::hello(at, answer, port, zero, addresses))
}

/// A message that is mostly of the right length.
fn resize(input: &mut Input<'_>, mut bytes: Vec<u8>) -> Vec<u8> {
    match input.byte() {
        0xff => bytes.truncate(usize::from(input.byte())),
        0xfe => bytes.extend(input.take(100)),
        0xfd => {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] = input.byte();
        }
        _ => {}
    }
    bytes
}

/// The number in a challenge of the library, which is in this process; 0 if there is none.
fn number_at(at: u64) -> u64 {
    number_in(std::process::id(), at).unwrap_or(0)
}

/// The next message of the library, or the end of its stream.
fn next(host: &Host, socket: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    until(host, "an answer", || receive(socket))
}

fn request() -> Vec<u8> {
    mpa_bytes(&OFFER.request(2, b""))
}

/// The peer connects to the library. Returns the socket if the request was accepted.
fn ask(
    host: &Host,
    input: &mut Input<'_>,
    segment: &mut Option<OwnedFd>,
) -> Option<(UnixStream, Victim)> {
    let socket = UnixStream::connect_addr(&name(host.port)).unwrap();
    let (_record, at) = record(input);
    let message = hello(input, at, 0, host.port as u32);
    let with = files(input, &[]);
    send(&socket, &message, &with);
    if message.len() < HELLO_LEN {
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
    let (theirs, _) = next(host, &socket);
    if theirs.len() != HELLO_LEN {
        assert!(theirs.is_empty(), "{theirs:02x?}");
        return None;
    }
    let answer = input.field(number_at(word_at(&theirs, 8)));
    let message = resize(input, files_message(answer));
    let with = files(input, &sizes());
    *segment = with.first().map(|file| file.try_clone().unwrap());
    // The request may follow at once.
    send(&socket, &message, &with);
    if message.len() < 16 {
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
    // What is behind the message of the files is the beginning of the request.
    let mut stream = message.get(16..).unwrap_or_default().to_vec();
    let (theirs, files) = next(host, &socket);
    if theirs.is_empty() {
        return None;
    }
    assert!(theirs.len() == 16 && files.len() >= 3, "{theirs:02x?}");
    let message = resize(input, request());
    send(&socket, &message, &[]);
    stream.extend(message);
    if !matches!(mpa::parse(Kind::Request, &stream), Ok(Parsed::Frame(..))) {
        let _ = socket.shutdown(std::net::Shutdown::Write);
        assert!(next(host, &socket).0.is_empty());
        return None;
    }
    let request = until(host, "the request", || host.requests.try_recv().ok());
    let victim = host.victim();
    host.device.accept(request, &victim.qp, b"").unwrap();
    Some((socket, victim))
}

/// The library connects to the peer.
fn answer(
    host: &Host,
    input: &mut Input<'_>,
    segment: &mut Option<OwnedFd>,
) -> Option<(UnixStream, Victim)> {
    thread_local! {
        static PORT: Cell<u64> = const { Cell::new(0) };
    }
    // A port that no one listens on, so that the library connects to the socket of that name.
    let (listener, port) = (0..1000).find_map(|_| {
        let port = PORT.get() % 1000 + 1;
        PORT.set(port);
        let port = 2000 + u64::from(std::process::id() % 40) * 1000 + port;
        Some((UnixListener::bind_addr(&name(port)).ok()?, port))
    })?;
    let victim = host.victim();
    let to = host.device.address();
    let connected = host
        .device
        .connect(&victim.qp, to, port, Some(PATIENCE), b"");
    connected.unwrap();
    let socket = listener.accept().unwrap().0;
    drop(listener);
    let (theirs, _) = next(host, &socket);
    assert_eq!(theirs.len(), HELLO_LEN);
    let (_record, at) = record(input);
    let number = number_at(word_at(&theirs, 8));
    let message = hello(input, at, number, 0);
    let with = files(input, &[]);
    send(&socket, &message, &with);
    if message.len() < HELLO_LEN {
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
    let (theirs, files_of_library) = next(host, &socket);
    if theirs.len() < 16 {
        drop(socket);
        over(host, &victim);
        return None;
    }
    *segment = files_of_library.into_iter().next();
    let message = files_message(input.field(0));
    let message = resize(input, message);
    let with = files(input, &sizes()[1..]);
    send(&socket, &message, &with);
    let reply = mpa::parse(Kind::Request, &request())
        .ok()
        .and_then(|parsed| match parsed {
            Parsed::Frame(frame, _) => frame
                .answer(&OFFER, b"")
                .ok()
                .map(|(reply, _)| mpa_bytes(&reply)),
            Parsed::NeedMore(_) => None,
        });
    let reply = resize(input, reply.unwrap());
    send(&socket, &reply, &[]);
    Some((socket, victim))
}

/// Waits until the attempt or the connection has ended.
fn over(host: &Host, victim: &Victim) {
    until(host, "the end", || {
        let event = victim.events.try_recv().ok()?;
        (!matches!(event, CmEvent::Established { .. })).then_some(())
    });
}

/// The program posts what it may, while the peer changes the segment.
fn exchange(
    host: &Host,
    input: &mut Input<'_>,
    segment: Option<OwnedFd>,
    socket: &UnixStream,
    victim: &Victim,
) {
    let flags = WrFlags::empty();
    for wr_id in 0..4 {
        let wr = RecvWr {
            wr_id,
            sges: &[host.arena.sge(Region::Local, 32 * wr_id as usize, 32)],
            flags,
        };
        let _ = victim.qp.post_recv(&wr);
    }
    send(socket, b"!", &[]);
    for step in 0..32u64 {
        let Some(action) = input.next() else {
            break;
        };
        match (action % 8, &segment) {
            (0..=3, Some(segment)) => {
                let at = match action >> 4 {
                    n @ 0..=5 => u64::from(n) * 128,
                    n @ 6..=7 => OFFERS + u64::from(n % 2) * 128,
                    n => 768 + u64::from(n % 4) * 64,
                };
                let at = at + u64::from(input.byte() % 16) * 8;
                let word = match action % 8 {
                    0 => input.word(),
                    1 => 1,
                    _ => {
                        1 | u64::from(input.byte()) << 32
                            | u64::from(input.byte() % 8) << 48
                            | u64::from(input.byte() % 4) << 56
                    }
                };
                let _ = rustix::io::pwrite(segment, &word.to_ne_bytes(), at);
            }
            (4, _) => send(socket, b"!!", &[]),
            (5, _) => {
                let wr = SendWr {
                    wr_id: step,
                    op: SendOp::Send,
                    sges: &[host.arena.sge(Region::All, 0, usize::from(input.byte()))],
                    flags,
                };
                let _ = victim.qp.post_send(&wr);
            }
            // A read of memory that nothing else uses, by a key of the peer that may be anything.
            (6, _) => {
                let remote = Remote {
                    addr: host.arena.at(Region::Foreign),
                    rkey: input.field32(1),
                };
                let wr = SendWr {
                    wr_id: step,
                    op: SendOp::RdmaRead { remote, len: 8 },
                    sges: &[host.arena.sge(Region::Local, 200, 8)],
                    flags,
                };
                let _ = victim.qp.post_send(&wr);
            }
            _ => host.device.progress(),
        }
        host.device.progress();
    }
    let _ = completions(victim);
    // A section that does not end has a test of its own.
    if let Some(segment) = segment {
        end_sections(&segment);
    }
}

/// Offset of the copy guard in the state of an end, and bytes of such a state.
const COPY_GUARD: u64 = 256;
const END_STATE: u64 = 384;
/// Offset of the offers of long messages, which follow the states and the rings.
const OFFERS: u64 = 2 * END_STATE + 2 * size_of::<Ring>() as u64;

/// No end copies.
fn end_sections(segment: &OwnedFd) {
    for end in 0..2 {
        let _ = rustix::io::pwrite(segment, &[0; 8], end * END_STATE + COPY_GUARD);
    }
}

/// Connects, begins a copy that never ends, and closes the connection.
#[allow(dead_code, reason = "one program uses it")]
pub fn endless_copy(host: &Host) {
    let mut segment = None;
    let (socket, victim) = ask(host, &mut Input(&[]), &mut segment).unwrap();
    let segment = segment.unwrap();
    send(&socket, b"!", &[]);
    until(host, "established", || victim.events.try_recv().ok());
    rustix::io::pwrite(&segment, &[1; 8], COPY_GUARD).unwrap();
    drop(socket);
    over(host, &victim);
}

/// Descriptors of the process that a connection may have, by what they are.
fn descriptors() -> Vec<String> {
    let folder = std::fs::read_dir("/proc/self/fd").unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let link = std::fs::read_link(entry.ok()?.path()).ok()?;
        Some(link.display().to_string())
    };
    let kinds = ["socket:", "/memfd:", "anon_inode:", "/dev/null"];
    let counts = |name: &String| kinds.iter().any(|kind| name.starts_with(kind));
    folder.filter_map(name).filter(counts).collect()
}

/// The memory is as it was but for the receives and the sinks.
fn check_guards(host: &Host) {
    let (mut found, mut expected) = (host.arena.contents(), Arena::pattern());
    let at = Arena::offset(Region::Local);
    found[at..at + 208].fill(0);
    expected[at..at + 208].fill(0);
    assert!(
        found == expected,
        "memory outside of the receives has changed"
    );
}

/// One end of a set-up.
type Run = fn(&Host, &mut Input<'_>, &mut Option<OwnedFd>) -> Option<(UnixStream, Victim)>;

/// A connection without a fault.
fn connect_once(host: &Host, run: Run) {
    let mut segment = None;
    if let Some((socket, victim)) = run(host, &mut Input(&[]), &mut segment) {
        drop(socket);
        over(host, &victim);
    }
}

thread_local! {
    static HOST: OnceCell<(Host, Vec<String>)> = const { OnceCell::new() };
}

/// Runs an input.
pub fn shm_handshake(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.byte();
    HOST.with(|host| {
        let (host, before) = host.get_or_init(|| {
            let host = Host::new("127.0.0.1 path=shm");
            // What the process makes once: engines, files, threads.
            connect_once(&host, ask);
            connect_once(&host, answer);
            pause();
            let before = descriptors();
            (host, before)
        });
        host.arena.fill();
        let mut segment = None;
        let run: Run = if mode & 1 == 0 { ask } else { answer };
        if let Some((socket, victim)) = run(host, &mut input, &mut segment) {
            exchange(host, &mut input, segment.take(), &socket, &victim);
            drop(socket);
            over(host, &victim);
        }
        drop(segment);
        check_guards(host);
        host.check_honest();
        if descriptors().len() > before.len() {
            // A connection that has ended in a copy section is forgotten when there is another one.
            connect_once(host, ask);
        }
        // What is released last is released by a thread of the library.
        let end = Instant::now() + PATIENCE / 4;
        while descriptors().len() > before.len() {
            host.device.progress();
            assert!(
                Instant::now() < end,
                "{:?}, and before {before:?}",
                descriptors()
            );
        }
    });
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
