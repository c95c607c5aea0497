//! What the two ends tell each other: in the private data of a connection who they are, and in
//! messages what to measure. All numbers are big-endian.

use clap::ValueEnum;

/// Bytes of a [`Hello`].
pub const HELLO_LEN: usize = 41;
/// Bytes of a [`Note`].
pub const NOTE_LEN: usize = 40;
/// "DATP", the first word of both.
const MAGIC: u32 = 0x4441_5450;
/// Changes with the meaning of what follows.
const VERSION: u16 = 3;
/// The most operations of an endpoint that can be ordered: all that are counted of them, with those of
/// other endpoints, fits a number of 64 bits.
pub const COUNT_LIMIT: u64 = 1 << 40;
/// Bytes of a message of [`super::fairness`], but for the last one.
pub const PING: u32 = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Test {
    /// One operation at a time
    Latency = 1,
    /// A window of operations in flight
    Bandwidth = 2,
    /// The same with small messages
    Rate = 3,
    /// One message at a time on the first endpoint, while all others have a window in flight
    Fairness = 4,
}

/// How the data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u8)]
pub enum Op {
    /// Send and receive
    Send = 1,
    /// RDMA write; its completion ends it
    Write = 2,
    /// RDMA read
    Read = 3,
    /// RDMA writes to and fro, whose arrival is polled for in memory
    WritePoll = 4,
}

impl Test {
    /// As in the options.
    pub fn name(self) -> &'static str {
        ["latency", "bandwidth", "rate", "fairness"][self as usize - 1]
    }
}

impl Op {
    /// As in the options.
    pub fn name(self) -> &'static str {
        ["send", "write", "read", "write-poll"][self as usize - 1]
    }

    /// Whether the peer takes part.
    pub fn two_sided(self) -> bool {
        matches!(self, Op::Send | Op::WritePoll)
    }
}

/// What the programs do with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Data {
    /// Nothing: each message has the same bytes, which are read by nobody
    Left = 0,
    /// A message is written before it is posted, and read after it has arrived
    Touched = 1,
    /// The same with a pattern, which is checked
    Verified = 2,
}

impl Data {
    /// In reports.
    pub fn name(self) -> &'static str {
        ["left", "touched", "verified"][self as usize]
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What is measured.
    pub test: Test,
    /// How the data moves.
    pub op: Op,
    /// What is done with the data.
    pub data: Data,
    /// Whether the server makes no call while the client measures.
    pub passive: bool,
    /// Whether the ends wait for completions and do not poll.
    pub wait: bool,
    /// Bytes of an operation.
    pub size: u32,
    /// Operations in flight on an endpoint.
    pub window: u32,
    /// Operations of each endpoint.
    pub count: u64,
}

/// A message of the control dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// To the server: measure this.
    Order(Order),
    /// To the client: its receives are posted.
    Ready,
    /// To the server: the client has done its part.
    Finish,
    /// To the client: the server, too; so many messages were wrong.
    Done(u64),
    /// To the server: no more orders.
    Bye,
}

/// Who asks for a connection, or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of this connection in its session.
    pub index: u16,
    /// Connections of the session.
    pub endpoints: u16,
    /// The largest window of the session.
    pub window: u16,
    /// Tells sessions apart.
    pub session: u64,
    /// Bytes of each area of registered memory.
    pub area: u64,
    /// Address of the sender's registered memory.
    pub base: u64,
    /// Key to it.
    pub key: u32,
    /// Whether the memory of each operation is registered for that alone.
    pub registers: bool,
}

/// Appends numbers to a buffer of fixed size.
struct Writer<const N: usize>([u8; N], usize);

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Writer([0; N], 0)
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.0[self.1..][..bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }
}

/// Takes numbers from a buffer.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

impl Order {
    /// Whether all data is checked.
    pub fn verifies(&self) -> bool {
        self.data == Data::Verified
    }
}

impl Hello {
    /// As private data.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        Writer::new()
            .put(&MAGIC.to_be_bytes())
            .put(&VERSION.to_be_bytes())
            .put(&self.index.to_be_bytes())
            .put(&self.endpoints.to_be_bytes())
            .put(&self.window.to_be_bytes())
            .put(&self.session.to_be_bytes())
            .put(&self.area.to_be_bytes())
            .put(&self.base.to_be_bytes())
            .put(&self.key.to_be_bytes())
            .put(&[u8::from(self.registers)])
            .0
    }

    /// From private data, which some transports pad. `None` if it is not of this program, or of
    /// another version of it.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let mut from = Reader(bytes);
        if (from.u32()?, from.u16()?) != (MAGIC, VERSION) {
            return None;
        }
        Some(Hello {
            index: from.u16()?,
            endpoints: from.u16()?,
            window: from.u16()?,
            session: from.u64()?,
            area: from.u64()?,
            base: from.u64()?,
            key: from.u32()?,
            registers: from.u8()? != 0,
        })
    }
}

const ORDER: u8 = 1;
const READY: u8 = 2;
const FINISH: u8 = 3;
const DONE: u8 = 4;
const BYE: u8 = 5;

impl Note {
    /// As a message.
    pub fn encode(&self) -> [u8; NOTE_LEN] {
        let kind = match self {
            Note::Order(_) => ORDER,
            Note::Ready => READY,
            Note::Finish => FINISH,
            Note::Done(_) => DONE,
            Note::Bye => BYE,
        };
        let note = Writer::new().put(&MAGIC.to_be_bytes()).put(&[kind]);
        match self {
            Note::Order(order) => note
                .put(&[order.test as u8, order.op as u8])
                .put(&[order.data as u8])
                .put(&[order.passive, order.wait].map(u8::from))
                .put(&order.size.to_be_bytes())
                .put(&order.window.to_be_bytes())
                .put(&order.count.to_be_bytes()),
            Note::Done(bad) => note.put(&bad.to_be_bytes()),
            _ => note,
        }
        .0
    }

    /// From a message. `None` if it makes no sense.
    pub fn decode(bytes: &[u8]) -> Option<Note> {
        let mut from = Reader(bytes);
        if from.u32()? != MAGIC {
            return None;
        }
        Some(match from.u8()? {
            ORDER => Note::Order(Order {
                test: match from.u8()? {
                    1 => Test::Latency,
                    2 => Test::Bandwidth,
                    3 => Test::Rate,
                    4 => Test::Fairness,
                    _ => return None,
                },
                op: match from.u8()? {
                    1 => Op::Send,
                    2 => Op::Write,
                    3 => Op::Read,
                    4 => Op::WritePoll,
                    _ => return None,
                },
                data: match from.u8()? {
                    0 => Data::Left,
                    1 => Data::Touched,
                    2 => Data::Verified,
                    _ => return None,
                },
                passive: from.u8()? != 0,
                wait: from.u8()? != 0,
                size: from.u32()?,
                window: from.u32()?,
                count: from.u64()?,
            }),
            READY => Note::Ready,
            FINISH => Note::Finish,
            DONE => Note::Done(from.u64()?),
            BYE => Note::Bye,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        index: 1,
        endpoints: 2,
        window: 3,
        session: 4 << 40,
        area: 5,
        base: 6 << 50,
        key: 7,
        registers: true,
    };

    #[test]
    fn private_data_there_and_back() {
        let mut padded = HELLO.encode().to_vec();
        padded.resize(56, 0);
        assert_eq!(Hello::decode(&padded), Some(HELLO));
        for length in 0..HELLO_LEN {
            assert_eq!(Hello::decode(&padded[..length]), None);
        }
        padded[5] ^= 1;
        assert_eq!(Hello::decode(&padded), None, "another version");
        assert_eq!(
            Hello::decode(b"something else entirely, of forty-one bytes"),
            None
        );
    }

    #[test]
    fn notes_there_and_back() {
        let order = Order {
            test: Test::Rate,
            op: Op::WritePoll,
            data: Data::Touched,
            passive: false,
            wait: true,
            size: 8,
            window: 64,
            count: 1 << 40,
        };
        let notes = [Note::Order(order), Note::Ready, Note::Finish, Note::Done(3)];
        for note in notes.into_iter().chain([Note::Bye]) {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        let mut wrong = Note::Order(order).encode();
        wrong[5] = 9;
        assert_eq!(Note::decode(&wrong), None);
        assert_eq!(Note::decode(&[]), None);
    }

    #[test]
    fn names_are_those_of_the_options() {
        for test in Test::value_variants() {
            assert_eq!(test.to_possible_value().unwrap().get_name(), test.name());
        }
        for op in Op::value_variants() {
            assert_eq!(op.to_possible_value().unwrap().get_name(), op.name());
        }
    }
}
