//! Messages over a socket, as fast as a program gets that polls it: what a protocol on TCP can reach.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::{Figures, SAMPLES, figures, pin, together};

/// One end of a connection.
struct End {
    socket: TcpStream,
    /// The message, and behind it room for its checksum.
    buffer: Buffer,
    /// Whether there is a checksum, which takes a pass over the message at each end.
    crc: bool,
}

impl End {
    fn new(socket: TcpStream, size: usize, crc: bool) -> Option<End> {
        socket.set_nodelay(true).ok()?;
        socket.set_nonblocking(true).ok()?;
        let buffer = Buffer::new(1, size + if crc { 4 } else { 0 });
        Some(End {
            socket,
            buffer,
            crc,
        })
    }

    fn sum(&self) -> [u8; 4] {
        crc_fast::crc32_iscsi(&self.buffer[..self.buffer.len() - 4]).to_le_bytes()
    }

    fn send(&mut self) -> Option<()> {
        if self.crc {
            let (sum, at) = (self.sum(), self.buffer.len() - 4);
            self.buffer[at..].copy_from_slice(&sum);
        }
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            match self.socket.write(rest) {
                Ok(0) => return None,
                Ok(n) => rest = &rest[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(_) => return None,
            }
        }
        Some(())
    }

    fn receive(&mut self) -> Option<()> {
        let mut got = 0;
        while got < self.buffer.len() {
            match self.socket.read(&mut self.buffer[got..]) {
                Ok(0) => return None,
                Ok(n) => got += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(_) => return None,
            }
        }
        let wrong = self.crc && self.buffer[got - 4..] != self.sum();
        (!wrong).then_some(())
    }
}

/// Connects an end of ours with one on the other processor, where a thread runs `serve`.
fn connect(
    b: usize,
    size: usize,
    crc: bool,
    serve: impl FnOnce(End) -> Option<()> + Send + 'static,
) -> Option<(End, JoinHandle<Option<()>>)> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let address = listener.local_addr().ok()?;
    let other = thread::spawn(move || {
        pin(b)?;
        let socket = listener.accept().ok()?.0;
        serve(End::new(socket, size, crc)?)
    });
    let socket = TcpStream::connect(address).ok()?;
    Some((End::new(socket, size, crc)?, other))
}

/// Messages that are timed together: a guess of their time is 10 us and 0.3 ns a byte.
fn count(size: usize) -> usize {
    together(Duration::from_nanos(10_000 + size as u64 * 3 / 10)).max(10)
}

/// A message of so many bytes, one way.
pub fn latency(a: usize, b: usize, size: usize, crc: bool) -> Option<Figures> {
    let trips = count(size);
    let (mut end, other) = connect(b, size, crc, move |mut end| {
        for _ in 0..trips * (SAMPLES + 1) {
            end.receive()?;
            end.send()?;
        }
        Some(())
    })?;
    pin(a)?;
    sampled(2 * trips, other, || {
        for _ in 0..trips {
            end.send()?;
            end.receive()?;
        }
        Some(())
    })
}

/// One of many messages of so many bytes in one direction.
pub fn stream(a: usize, b: usize, size: usize, crc: bool) -> Option<Figures> {
    // So many that the way of the last one does not count.
    let messages = 8 * count(size);
    let (mut end, other) = connect(b, size, crc, move |mut end| {
        for _ in 0..=SAMPLES {
            for _ in 0..messages {
                end.receive()?;
            }
            // All of a sample has arrived.
            end.socket.write_all(&[1]).ok()?;
        }
        Some(())
    })?;
    pin(a)?;
    sampled(messages, other, || {
        for _ in 0..messages {
            end.send()?;
        }
        let mut arrived = [0];
        while let Err(error) = end.socket.read_exact(&mut arrived) {
            if error.kind() != ErrorKind::WouldBlock {
                return None;
            }
            std::hint::spin_loop();
        }
        Some(())
    })
}

/// Times of one message, out of `sample`, which has so many, in nanoseconds. `other` is the other
/// end, which ends by itself.
fn sampled(
    messages: usize,
    other: JoinHandle<Option<()>>,
    mut sample: impl FnMut() -> Option<()>,
) -> Option<Figures> {
    let mut values = Vec::new();
    for _ in 0..=SAMPLES {
        let start = Instant::now();
        sample()?;
        values.push(start.elapsed().as_nanos() as f64 / messages as f64);
    }
    other.join().ok()??;
    // The first sample has warmed all up.
    figures(values.split_off(1))
}

/// What the ends of a connection tell each other when it is made, in bytes.
const GREETING: usize = 64;

/// Connections, one after the other, that stay: each is accepted by a thread on the other processor, and
/// is there when both ends have told each other something.
pub fn connections(a: usize, b: usize, count: usize) -> Option<Figures> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let address = listener.local_addr().ok()?;
    let other = thread::spawn(move || {
        pin(b)?;
        let mut accepted = Vec::new();
        for _ in 0..count {
            let (mut socket, _) = listener.accept().ok()?;
            let mut greeting = [0; GREETING];
            socket.read_exact(&mut greeting).ok()?;
            socket.write_all(&greeting).ok()?;
            accepted.push(socket);
        }
        Some(accepted)
    });
    pin(a)?;
    let mut connected = Vec::new();
    let mut values = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let mut socket = TcpStream::connect(address).ok()?;
        let mut greeting = [1; GREETING];
        socket.write_all(&greeting).ok()?;
        socket.read_exact(&mut greeting).ok()?;
        values.push(begun.elapsed().as_nanos() as f64);
        connected.push(socket);
    }
    drop(other.join().ok()??);
    figures(values)
}
