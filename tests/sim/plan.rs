//! What the program of a run does.

mod ops;

use std::time::Duration;

use dat_core::testing::device::WrFlags;

use self::ops::{Size, ops};
use super::memory::Memory;
use super::rng::Rng;
use super::world::{MILLI, Nanos, Weather};

/// What a request does. Slots are of the memory of the end that posts, unless the name is of the
/// peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message for the receive with that number.
    Send { from: usize, number: usize },
    /// Writes to a slot of the peer.
    Write { from: usize, peer_slot: usize },
    /// Reads a slot of the peer.
    Read { to: usize, peer_slot: usize },
    /// Writes to a slot of the peer, with immediate data for the receive with that number.
    WriteImm {
        from: usize,
        peer_slot: usize,
        number: usize,
    },
    /// Adds 1 to the word in a slot of the peer, which is `before` then. No one else changes it.
    Atomic {
        to: usize,
        peer_slot: usize,
        before: u64,
        /// By a compare-and-swap.
        swaps: bool,
    },
    /// Binds the window of this end.
    Bind,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    pub len: usize,
    pub flags: WrFlags,
    /// Number of segments.
    pub parts: usize,
    /// Whether the peer's memory is reached through the peer's window.
    pub window: bool,
    /// Whether the key is one that is not valid.
    pub bad_key: bool,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub slot: usize,
    pub parts: usize,
    /// The key and the length of the message that the receive is for.
    pub message: u64,
    pub len: usize,
    /// The immediate data of the write of that length that the receive is for; then it has no message.
    pub imm: Option<u32>,
}

impl Receive {
    /// Bytes that are placed in the slot.
    pub fn placed(&self) -> usize {
        match self.imm {
            Some(_) => 0,
            None => self.len,
        }
    }
}

/// How the two processes reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Over TCP, on two hosts.
    Tcp,
    /// Through shared memory, on one host.
    Shm,
}

/// What one end does.
#[derive(Default)]
pub struct EndPlan {
    pub memory: Memory,
    pub ops: Vec<Op>,
    pub receives: Vec<Receive>,
    /// Number of receives that are posted before the connection.
    pub early: usize,
    pub queue: u32,
    pub rd_in: u32,
    pub rd_out: u32,
    pub has_window: bool,
    /// Number of steps of the end before it posts receives beyond the early ones.
    pub lag: u64,
}

/// What becomes of the request of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Accept,
    Reject,
    Drop,
    /// None within the time of the connecting end.
    Late,
    /// There is no listener.
    NoListener,
}

/// When and how the program ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// The end that disconnects.
    pub end: usize,
    pub graceful: bool,
    /// Number of steps of that end before; `None` for when all is done on both ends.
    pub after: Option<u64>,
    /// Whether the other end disconnects as well when it is done.
    pub both: bool,
}

/// What happens to a connection, at a step of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disaster {
    /// Both ends are reset.
    Reset,
    /// Nothing arrives any more.
    Silence,
    /// A process is killed between two steps.
    Kill(usize),
    /// A process is killed in a system call, after so many others.
    KillInCall(usize, u64),
    /// A process is stopped for a while.
    Stop(usize, Nanos),
}

/// What happens on a connection.
pub struct ConnectionPlan {
    /// The process that connects.
    pub active: usize,
    pub answer: Answer,
    pub ends: [EndPlan; 2],
    pub ending: Ending,
    /// When the listener listens.
    pub listens_at: Nanos,
    /// When the active end connects.
    pub connects_at: Nanos,
    /// Until when both ends post no requests and do not disconnect.
    pub idle_until: Nanos,
    /// How long the attempt may take.
    pub timeout: Option<Duration>,
    /// Length of the private data of the request and of the answer.
    pub private_data: [usize; 2],
    pub disaster: Option<(u64, Disaster)>,
    /// A qualifier that is no port.
    pub wide: bool,
}

/// Who serves the device of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// The thread of the engine, and a program that polls or blocks now and then.
    Any,
    /// The thread of the engine alone, so that only what the kernel reports is noticed.
    Thread,
}

/// The plan of a run.
pub struct Plan {
    pub weather: Weather,
    pub params: [String; 2],
    /// For each process who serves its device.
    pub service: [Service; 2],
    pub connections: Vec<ConnectionPlan>,
    /// Whether no connection is ended before all is done on each of them.
    pub ends_together: bool,
    /// Whether calls that open the device may fail.
    pub open_fails: bool,
}

fn weather(rng: &mut Rng) -> Weather {
    let slow = rng.pick(&[MILLI / 50, MILLI / 50, MILLI, 8 * MILLI]);
    Weather {
        delay: (1000, slow),
        send_buffer: rng.pick(&[300, 2000, 16_000, 100_000, 1 << 20]),
        receive_buffer: rng.pick(&[200, 3000, 20_000, 1 << 20]),
        short_writes: rng.pick(&[0, 0, 2, 5, 20]),
        short_reads: rng.pick(&[0, 0, 2, 5, 20]),
        segment: rng.pick(&[1 << 20, 1448, 1448, 100]),
        spurious: rng.pick(&[0, 0, 20]),
        descriptors: rng.pick(&[1024, 1 << 20]),
        one_host: false,
        falls_back: false,
        local_buffer: 212_992,
    }
}

impl ConnectionPlan {
    fn random(rng: &mut Rng, size: &Size) -> ConnectionPlan {
        let mut ends: [EndPlan; 2] = Default::default();
        for end in &mut ends {
            end.queue = rng.pick(&[2, 4, 16, 64]);
            end.rd_in = rng.pick(&[0, 1, 2, 4]);
            end.rd_out = rng.pick(&[0, 1, 2, 4]);
            end.has_window = rng.percent(15);
        }
        let answer = match rng.below(100) {
            0..88 => Answer::Accept,
            88..92 => Answer::Reject,
            92..95 => Answer::Drop,
            95..97 => Answer::Late,
            _ => Answer::NoListener,
        };
        let faulty = rng.percent(4);
        if answer == Answer::Accept {
            ops(rng, &mut ends, 0, faulty, size);
            ops(rng, &mut ends, 1, faulty, size);
        }
        for end in &mut ends {
            let most = end.receives.len() as u64;
            end.early = match rng.below(3) {
                0 => 0,
                1 => most as usize,
                _ => rng.below(most + 1) as usize,
            };
        }
        let disaster = rng.percent(20).then(|| {
            let what = match rng.below(3) {
                0 => Disaster::Reset,
                1 => Disaster::Silence,
                _ => Disaster::Kill(rng.below(2) as usize),
            };
            let bound = rng.pick(&[20, 60, 200]);
            (rng.below(bound), what)
        });
        ConnectionPlan {
            active: rng.below(2) as usize,
            answer,
            ends,
            ending: Ending {
                end: rng.below(2) as usize,
                graceful: rng.percent(60),
                after: rng.percent(40).then(|| rng.below(30)),
                both: rng.percent(20),
            },
            listens_at: if rng.percent(10) && answer != Answer::Late {
                rng.below(60 * MILLI)
            } else {
                0
            },
            connects_at: rng.pick(&[0, 0, MILLI]),
            idle_until: 0,
            timeout: match answer {
                Answer::Late => Some(Duration::from_millis(rng.range(1, 900))),
                _ if rng.percent(50) => Some(Duration::from_secs(40)),
                _ => None,
            },
            private_data: [rng.pick(&[0, 3, 64, 492]), rng.pick(&[0, 5, 64, 492])],
            disaster,
            wide: rng.percent(8),
        }
    }
}

impl ConnectionPlan {
    /// Whether the connection may fail because of what happens to it.
    pub fn fails(&self) -> bool {
        let disaster = self.disaster.map(|(_, what)| what);
        matches!(disaster, Some(Disaster::Reset | Disaster::Silence))
    }

    /// Takes what happens on a network for what happens on a host, and has receives posted late.
    fn share_host(&mut self, rng: &mut Rng) {
        let process = rng.below(2) as usize;
        if let Some((_, what)) = &mut self.disaster {
            match what {
                Disaster::Reset => {
                    let bound = rng.pick(&[10, 60, 200, 1000]);
                    *what = Disaster::KillInCall(process, rng.below(bound));
                }
                Disaster::Silence => {
                    // A request over TCP that is silent for 50 milliseconds gives way when its
                    // listener is short of descriptors.
                    let time = rng.pick(&[MILLI / 2, 3 * MILLI, 30 * MILLI, 40 * MILLI]);
                    *what = Disaster::Stop(process, time);
                }
                _ => {}
            }
        }
        for end in &mut self.ends {
            end.lag = rng.pick(&[0, 0, 0, 10, 100]);
        }
    }

    /// Has the connection wait until the others of a crowd of `count` are established. Something
    /// happens to one of them at most as often as to a connection that is alone.
    fn join_crowd(&mut self, rng: &mut Rng, count: u64) {
        self.listens_at = 0;
        self.idle_until = 6 * MILLI + rng.below(3 * MILLI);
        self.disaster = self
            .disaster
            .filter(|_| rng.one_in(count))
            .map(|(at, what)| (at * count, what));
    }
}

impl Plan {
    /// The plan of a seed; `extended` says whether its connections have atomic operations, and writes
    /// with immediate data.
    pub fn random(rng: &mut Rng, transport: Transport, extended: bool) -> Plan {
        let one_host = transport == Transport::Shm;
        let count = match rng.below(10) {
            0..6 => 1,
            6..9 => 2,
            _ => 4,
        };
        let path = match transport {
            Transport::Tcp => "tcp",
            Transport::Shm => rng.pick(&["shm", "shm", "auto"]),
        };
        let params = [0, 1].map(|host| {
            let crc = rng.pick(&["on", "on", "off"]);
            let (linger, timeout) = (rng.pick(&[3, 300, 300]), rng.pick(&[2, 9, 60]));
            format!(
                "10.0.0.{} path={path} crc={crc} linger={linger} timeout={timeout}",
                host + 1
            )
        });
        let mut weather = weather(rng);
        // A long message through a small window takes too many steps.
        let narrow = path != "shm"
            && (weather.receive_buffer <= 3000
                || weather.send_buffer <= 2000
                || weather.segment < 1000);
        let most = if narrow { 3000 } else { 300_000 };
        let size = Size {
            most,
            bulk: 0,
            extended,
        };
        let (mut count, mut size, mut crowd) = (count, size, false);
        let mut service = [Service::Any; 2];
        if one_host {
            let each = [Service::Any, Service::Any, Service::Thread];
            service = [0, 1].map(|_| rng.pick(&each));
            weather.one_host = true;
            weather.falls_back = path == "auto";
            weather.local_buffer = rng.pick(&[212_992, 212_992, 4608]);
            // Longer than the ring for the data of a connection.
            size.most = most.min(100_000);
            size.bulk = 20;
            if rng.one_in(100) {
                // More than are polled one by one.
                count = rng.range(24, 44);
                size = Size {
                    most: 200,
                    bulk: 0,
                    extended,
                };
                crowd = true;
            }
        }
        let mut connections: Vec<_> = (0..count)
            .map(|_| ConnectionPlan::random(rng, &size))
            .collect();
        if one_host {
            let each = connections.iter_mut();
            each.for_each(|connection| connection.share_host(rng));
        }
        let ends_together = crowd && rng.percent(70);
        if crowd {
            for connection in &mut connections {
                connection.join_crowd(rng, count);
                let after = &mut connection.ending.after;
                *after = after.filter(|_| !ends_together);
            }
        }
        Plan {
            weather,
            params,
            service,
            connections,
            ends_together,
            open_fails: rng.one_in(100),
        }
    }
}
