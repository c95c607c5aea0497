//! Datagrams between two ports of one host, through memory that both processes map.
//!
//! A channel has a segment and a local socket, as a connection through shared memory has
//! ([`shm`](crate::device::soft::transport::shm)), of which it uses the two rings, the doorbells and the
//! ready bits. All queue pairs of the two ports share it. A message of the ring is one datagram, behind
//! the numbers of both queue pairs ([`wire`](super::wire)).
//!
//! A full ring is that of a receiver which gets no processor: whoever has no receive for a datagram
//! drops it. A sender waits for a moment then, since the receiving process takes up to two milliseconds to
//! notice that its consumers do not poll any more. What has no room after that is lost, as it is in the
//! buffer of a socket; and the sender does not wait again before the receiver has taken something, so that
//! a receiver which has stopped costs one wait and not one for each datagram.
//!
//! The peer is not trusted: what it writes that is no message ends the channel, and so does its exit.
//! From then on datagrams go over UDP.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::port::Port;
use super::wire::{MAX_DATAGRAM, RING_HEADER_LEN, ROUTE_LEN, Route};
use crate::device::DeviceError;
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry, PollResult};
use crate::device::soft::engine::rounds::LastServed;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Timer, Watch};
use crate::device::soft::transport::shm::doorbell::WakeOn;
use crate::device::soft::transport::shm::notify::{Notified, PeerNotifier};
use crate::device::soft::transport::shm::peer::Peer;
use crate::device::soft::transport::shm::ring::{
    Assembly, CELLS, CellFlags, Consumer, Producer, Violation,
};
use crate::device::soft::transport::shm::{EndPhase, NO_CELL, SharedSegment};
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;
use crate::kernel::Instant;
use crate::lock::Mutex;
use crate::sync::relax;

/// Datagrams that are received before others have their turn.
const MAX_BATCH: usize = CELLS / 2;
/// Channels with the ports of one process. A process has a port for each open interface adapter with
/// endpoints for datagrams.
const MAX_PER_PROCESS: usize = 128;
/// How long a sender waits for room.
const WAIT_TIME: Duration = Duration::from_millis(5);
/// The most rounds in which it does, if they are short.
const WAIT_ROUNDS: u32 = 2048;
/// Where the header of a message is in a buffer in which the payload is behind [`ROUTE_LEN`] bytes.
const GAP: usize = ROUTE_LEN - RING_HEADER_LEN;

/// See the [module](self).
pub struct Channel {
    /// The port of this process.
    port: Weak<Port>,
    /// The address of the peer.
    from: IpAddr,
    /// The key of the peer's port.
    key: u64,
    segment: Arc<SharedSegment>,
    /// Holds the local socket; set when the channel is made. A byte on it wakes the peer, and its end
    /// is the end of the channel.
    watch: OnceLock<Watch>,
    notifier: PeerNotifier,
    tx: Mutex<Tx>,
    rx: Mutex<Rx>,
    /// The channel as the engine knows it.
    entry: Arc<Entry>,
}

/// The sending half.
#[derive(Default)]
struct Tx {
    producer: Producer,
    /// Number of cells that the receiver had consumed when a sender last waited in vain.
    stalled: Option<u64>,
}

/// The receiving half.
struct Rx {
    consumer: Consumer,
    assembly: Assembly,
    notified: Notified,
    /// Has what was left in the ring received; `None` if nothing was left.
    later: Option<Timer>,
}

/// What becomes of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It is in the ring.
    Yes,
    /// The ring is full: it is lost.
    Lost,
    /// The channel has ended, and the datagram is not in the ring.
    Ended,
}

impl Channel {
    /// A channel of a port with the one of a peer that has this address and key. The channel is that of the
    /// port once [`Channel::start`] was called.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn new(
        port: &Arc<Port>,
        (from, key): (IpAddr, u64),
        mut watch: Watch,
        segment: Arc<SharedSegment>,
    ) -> Result<Arc<Channel>, DeviceError> {
        let channel = Arc::new_cyclic(|weak: &Weak<Channel>| Channel {
            port: Arc::downgrade(port),
            from,
            key,
            watch: OnceLock::new(),
            notifier: PeerNotifier::default(),
            tx: Mutex::default(),
            rx: Mutex::new(Rx {
                consumer: Consumer::default(),
                assembly: Assembly::new(GAP, RING_HEADER_LEN + MAX_DATAGRAM),
                notified: Notified::new(&watch),
                later: None,
            }),
            entry: Arc::new(Entry {
                channel: weak.clone(),
                segment: segment.clone(),
                last_served: LastServed::default(),
            }),
            segment,
        });
        watch.redirect(channel.entry.clone());
        watch.set(EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)?;
        let _ = channel.watch.set(watch);
        Ok(channel)
    }

    /// Begins to receive. The channel is one of the port.
    pub fn start(&self, up: &mut Upcalls) {
        self.segment.ours().set_phase(EndPhase::Open);
        if let Some(watch) = self.watch.get() {
            let mut rx = self.rx.lock();
            let entry = self.entry.clone();
            rx.notified.join_poll_set(&self.segment, watch, entry);
        }
        self.receive(MAX_BATCH, up);
        // What the engine has found before the channel had its socket.
        self.ready(EventFlags::RDHUP, up);
    }

    /// Whether the port of the peer has the channel too.
    pub fn is_known_to_peer(&self) -> bool {
        self.segment.theirs().phase() == EndPhase::Open
    }

    /// Whether the channel is one with that port.
    fn is_with(&self, peer: &Arc<Peer>, key: u64) -> bool {
        self.key == key && Arc::ptr_eq(self.segment.peer(), peer)
    }

    /// Sends a datagram whose payload begins at [`ROUTE_LEN`] of the buffer.
    pub fn send(&self, route: &Route, datagram: &mut [u8]) -> Sent {
        datagram[GAP..ROUTE_LEN].copy_from_slice(&route.ring_header());
        let message = &datagram[GAP..];
        let mut flags = CellFlags::empty();
        flags.set(CellFlags::SOLICITED, route.solicited);
        let sent = self.tx.lock().push(&self.segment, flags, message);
        match (sent, self.watch.get()) {
            (Ok(true), Some(watch)) => {
                self.notifier.notify(&self.segment, watch, WakeOn::CELLS);
                Sent::Yes
            }
            (Ok(_), _) => Sent::Lost,
            (Err(Violation), _) => {
                self.end();
                Sent::Ended
            }
        }
    }

    /// Receives at most so many datagrams; none if consumers that poll are to do it.
    fn receive(&self, most: usize, up: &mut Upcalls) {
        // Dropped after the lock.
        let port = self.port.upgrade();
        let Some(port) = &port else {
            return;
        };
        let received = self.rx.lock().run(self, port, most, up);
        if received.is_err() {
            self.end();
        }
    }

    /// The socket is ready: the peer rang the doorbell, or has ended the channel.
    fn ready(&self, events: EventFlags, up: &mut Upcalls) {
        let Some(watch) = self.watch.get() else {
            return;
        };
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let read = self.rx.lock().notified.read_doorbells(watch, ends, true);
        if !read.ended {
            self.receive(0, up);
            return;
        }
        // What the peer has sent before its end is in the ring, which holds no more than this.
        for _ in 0..CELLS.div_ceil(MAX_BATCH) {
            self.receive(MAX_BATCH, up);
        }
        self.end();
    }

    /// The port has the channel no longer.
    fn end(&self) {
        if let Some(port) = self.port.upgrade() {
            drop(port.channels().remove(self));
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A thread that has found the channel in the poll set before finds nothing to do.
        self.segment.next_cell.store(NO_CELL, Ordering::Relaxed);
        if let Some(watch) = self.watch.get() {
            let entry: Arc<dyn PollEntry> = self.entry.clone();
            watch.poll_set().remove(&entry);
        }
    }
}

impl Tx {
    /// Puts a message into the ring; false if there is no room.
    fn push(
        &mut self,
        segment: &SharedSegment,
        flags: CellFlags,
        message: &[u8],
    ) -> Result<bool, Violation> {
        let ring = segment.tx_ring();
        let mut until = None;
        for round in 0..WAIT_ROUNDS {
            if self.producer.push_whole(ring, flags, message)? {
                self.stalled = None;
                return Ok(true);
            }
            if self.stalled == Some(self.producer.consumed_cells()) {
                return Ok(false);
            }
            let now = Instant::now();
            if now >= *until.get_or_insert(now + WAIT_TIME) {
                break;
            }
            relax(round);
        }
        self.stalled = Some(self.producer.consumed_cells());
        Ok(false)
    }
}

impl Rx {
    /// Receives at most so many datagrams, and arms the doorbell if no consumer polls and nothing is
    /// left.
    fn run(
        &mut self,
        channel: &Channel,
        port: &Port,
        most: usize,
        up: &mut Upcalls,
    ) -> Result<(), Violation> {
        let (segment, ring) = (&*channel.segment, channel.segment.rx_ring());
        let mut left = match self.notified.in_poll_set() {
            true => most,
            false => MAX_BATCH,
        };
        // With the last of a batch nobody else looks for what is left.
        let is_batch = left == MAX_BATCH;
        loop {
            while left > 0
                && let Some((buffer, flags)) = self.assembly.take(&mut self.consumer, ring)?
            {
                left -= 1;
                let solicited = flags.contains(CellFlags::SOLICITED);
                let route = Route::from_ring(&buffer[GAP..], port.key(), solicited);
                let route = route.ok_or(Violation)?;
                port.deliver(&route, channel.from, buffer, up);
            }
            self.consumer.publish(ring);
            segment.set_next(&self.consumer);
            if self.notified.mode() == NotifyMode::Polled {
                return Ok(());
            }
            let mut is_left = self.consumer.peek(ring)?.is_some();
            if !is_left && self.notified.mode() == NotifyMode::Doorbell {
                segment.ours().doorbell.arm(WakeOn::CELLS);
                is_left = self.consumer.peek(ring)?.is_some();
                if is_left && left > 0 {
                    continue;
                }
            }
            if is_left && is_batch {
                self.later = channel.later();
            }
            return Ok(());
        }
    }
}

impl Channel {
    /// Has what is left in the ring received once others have had their turn.
    fn later(&self) -> Option<Timer> {
        let channel = self.entry.channel.clone();
        let timer = self.watch.get()?.timer(Duration::ZERO, move |up| {
            if let Some(channel) = channel.upgrade() {
                channel.receive(MAX_BATCH, up);
            }
        });
        Some(timer)
    }
}

/// A channel as the engine knows it.
struct Entry {
    channel: Weak<Channel>,
    segment: Arc<SharedSegment>,
    last_served: LastServed,
}

impl Entry {
    #[inline(never)]
    fn receive(&self, most: usize, up: &mut Upcalls) {
        if let Some(channel) = self.channel.upgrade() {
            channel.receive(most, up);
        }
    }
}

impl Source for Entry {
    fn ready(self: Arc<Self>, events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        if let Some(channel) = self.channel.upgrade() {
            channel.ready(events, up);
        }
    }
}

impl PollEntry for Entry {
    #[inline]
    fn poll(&self, _guard: &Guard, up: &mut Upcalls) -> bool {
        let arrived = self.segment.has_arrival();
        if arrived {
            self.receive(MAX_BATCH, up);
        }
        arrived
    }

    #[inline]
    fn peek(&self) -> PollResult {
        match self.segment.has_arrival() {
            true => PollResult::Message,
            false => PollResult::Nothing,
        }
    }

    fn fetch(&self, _guard: &Guard) {}

    fn deliver(&self, _guard: &Guard, up: &mut Upcalls) -> bool {
        self.receive(1, up);
        true
    }

    fn progress(&self, _guard: &Guard, up: &mut Upcalls) {
        self.receive(0, up);
    }

    fn last_served(&self) -> &LastServed {
        &self.last_served
    }

    fn set_notify_mode(&self, notify_mode: NotifyMode, up: &mut Upcalls) {
        if let Some(channel) = self.channel.upgrade() {
            let mut rx = channel.rx.lock();
            rx.notified.set_mode(&channel.segment, notify_mode);
            drop(rx);
            channel.receive(0, up);
        }
    }
}

/// The channels of a port.
#[derive(Default)]
pub struct Channels(Mutex<BTreeMap<usize, Arc<Channel>>>);

impl Channels {
    /// A channel with the port of a process that has this key, and that is `wanted`.
    pub fn find(
        &self,
        peer: &Arc<Peer>,
        key: u64,
        wanted: impl Fn(&Channel) -> bool,
    ) -> Option<Arc<Channel>> {
        let channels = self.0.lock();
        let mut with = channels.values().filter(|c| c.is_with(peer, key));
        with.find(|channel| wanted(channel)).cloned()
    }

    /// Whether there may be one more with a process.
    pub fn has_room(&self, peer: &Arc<Peer>) -> bool {
        let channels = self.0.lock();
        let same = |c: &&Arc<Channel>| Arc::ptr_eq(c.segment.peer(), peer);
        channels.values().filter(same).count() < MAX_PER_PROCESS
    }

    /// Adds a channel.
    pub fn add(&self, channel: &Arc<Channel>) {
        let at = Arc::as_ptr(channel).addr();
        self.0.lock().insert(at, channel.clone());
    }

    /// Removes a channel, which is to be dropped without a lock.
    fn remove(&self, channel: &Channel) -> Option<Arc<Channel>> {
        let at = std::ptr::from_ref(channel).addr();
        self.0.lock().remove(&at)
    }

    /// Number of channels.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}
