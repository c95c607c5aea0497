//! Clients of `dat-perf --server` that ask for what makes no sense: they are refused, and the next client is
//! served.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../../tests/common/libs.rs"]
mod libs;
#[path = "../../tests/common/soft.rs"]
mod soft;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use dat_core::testing::device::soft::Soft;
use dat_core::testing::device::*;

use soft::{PATIENCE, Quiet, queue_pair};

const MAGIC: u32 = 0x4441_5450;
const LATENCY: u8 = 1;
const BANDWIDTH: u8 = 2;
const SEND: u8 = 1;
const WRITE: u8 = 2;
const WRITE_POLL: u8 = 4;
const LEFT: u8 = 0;

/// The first words of a client, and its first order.
#[derive(Clone, Copy)]
struct Asked {
    window_of_session: u16,
    area: u64,
    test: u8,
    op: u8,
    passive: bool,
    size: u32,
    window: u32,
    count: u64,
}

/// What can be measured.
const USUAL: Asked = Asked {
    window_of_session: 8,
    area: 4096,
    test: LATENCY,
    op: SEND,
    passive: false,
    size: 8,
    window: 1,
    count: 1,
};

impl Asked {
    /// The private data of the connection.
    fn hello(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        // The version, the number of this connection, how many there are.
        for number in [3u16, 0, 1, self.window_of_session] {
            bytes.extend(number.to_be_bytes());
        }
        // The session, the size of an area, the address of memory that nobody needs.
        for number in [7, self.area, 0] {
            bytes.extend(number.to_be_bytes());
        }
        // The key to it, and that memory is not registered each time.
        bytes.extend([0; 5]);
        bytes
    }

    /// The first message.
    fn order(&self) -> [u8; 40] {
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        bytes.extend([1, self.test, self.op, LEFT, u8::from(self.passive), 0]);
        bytes.extend(self.size.to_be_bytes());
        bytes.extend(self.window.to_be_bytes());
        bytes.extend(self.count.to_be_bytes());
        bytes.resize(40, 0);
        bytes.try_into().unwrap()
    }
}

fn dat_perf() -> Command {
    for profile in libs::profiles() {
        libs::directory(profile);
    }
    let config = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("dat-perf-orders.conf");
    let entry = "tcp u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1 path=tcp\" \"\"\n";
    fs::write(&config, entry).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-perf"));
    command.env("DAT_OVERRIDE", config).args(["-i", "tcp"]);
    command
}

/// A server that is killed at the end of its test, and its qualifier.
struct Server(Child, String);

impl Server {
    fn start() -> Server {
        let mut command = dat_perf();
        command.args(["--server", "-q", "0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| eprintln!("{line}"))
        });
        let qualifier = first.rsplit(' ').next().unwrap().to_owned();
        Server(child, qualifier)
    }

    /// Asks by hand. Whether the server has carried the order out as far as to answer.
    fn ask(&self, asked: &Asked) -> bool {
        let device = Soft::open("127.0.0.1 path=tcp").unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(&device, &pd, &cq, 1, 1);
        let (mut order, mut answer) = (asked.order(), [0u8; 40]);
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let register = |bytes: &mut [u8; 40]| {
            let addr = bytes.as_mut_ptr().expose_provenance() as u64;
            let mr = device.reg_mr(&pd, addr, 40, access).unwrap();
            let (len, lkey) = (40, mr.lkey());
            (Sge { addr, len, lkey }, mr)
        };
        let (to, _to) = register(&mut answer);
        let (from, _from) = register(&mut order);
        qp.post_recv(&RecvWr {
            wr_id: 1,
            sges: &[to],
            flags: WrFlags::empty(),
        })
        .unwrap();
        let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let qualifier: u64 = self.1.parse().unwrap();
        device
            .connect(&qp, address, qualifier, Some(PATIENCE), &asked.hello())
            .unwrap();
        match events.recv_timeout(PATIENCE).unwrap() {
            CmEvent::Established { .. } => {}
            CmEvent::PeerRejected { .. } => return false,
            other => panic!("{other:?}"),
        }
        let (op, flags) = (SendOp::Send, WrFlags::empty());
        let (wr_id, sges) = (2, &[from][..]);
        let wr = SendWr {
            wr_id,
            op,
            sges,
            flags,
        };
        qp.post_send(&wr).unwrap();
        let end = std::time::Instant::now() + PATIENCE;
        let answered = loop {
            device.progress();
            match cq.poll() {
                Some(done) if done.wr_id == 1 => break done.status == WcStatus::Success,
                _ => assert!(std::time::Instant::now() < end),
            }
            std::thread::yield_now();
        };
        qp.destroy();
        answered
    }

    /// A client as it should be.
    fn serves(&self) {
        let mut client = dat_perf();
        client.args(["--client", "127.0.0.1", "-q", &self.1]);
        client.args(["-t", "latency", "-o", "send,write-poll", "-s", "8"]);
        let output = client.args(["-n", "5"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn orders_that_make_no_sense_end_the_session_alone() {
    let server = Server::start();
    assert!(server.ask(&USUAL));
    for (name, asked) in [
        (
            "words that are no whole ones",
            Asked {
                op: WRITE_POLL,
                size: 9,
                ..USUAL
            },
        ),
        (
            "a larger window than the session has",
            Asked {
                test: BANDWIDTH,
                op: WRITE,
                window: 9,
                ..USUAL
            },
        ),
        (
            "more operations than can be counted",
            Asked {
                count: u64::MAX,
                ..USUAL
            },
        ),
        (
            "an area that puts words at odd addresses",
            Asked {
                area: 4097,
                op: WRITE,
                passive: true,
                ..USUAL
            },
        ),
    ] {
        assert!(!server.ask(&asked), "{name}");
        server.serves();
    }
}
