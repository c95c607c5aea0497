//! Connections that end at any moment: whatever was posted completes exactly once.

use super::*;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

/// What one end posted, and how that completed.
#[derive(Default)]
struct Books {
    sends: Vec<u64>,
    recvs: Vec<u64>,
    sent: Vec<u64>,
    received: Vec<u64>,
}

impl Books {
    fn collect(&mut self, end: &End) {
        while let Some(c) = end.send_cq.poll() {
            self.sent.push(c.wr_id);
        }
        while let Some(c) = end.recv_cq.poll() {
            self.received.push(c.wr_id);
        }
        end.device.progress();
    }
}

/// Posts at random until the connection is over, perhaps by its own doing.
fn play(end: &End, peer: Remote, mut dice: Dice) -> Books {
    let mut books = Books::default();
    let leave_at = dice.roll(300);
    for round in 0.. {
        let id = round * 2;
        let len = [0, 9, 800, 5000, 70_000][dice.roll(5) as usize];
        let sge = end.sge(100_000 * dice.roll(4) as usize, len);
        if end.recv(id, &[end.sge(500_000, 100_000)]).is_ok() {
            books.recvs.push(id);
        }
        let op = match dice.roll(3) {
            0 => SendOp::Send,
            1 => SendOp::RdmaWrite(peer),
            _ => SendOp::RdmaRead {
                remote: peer,
                len: len as u32,
            },
        };
        if end.post(id + 1, op, &[sge]).is_ok() {
            books.sends.push(id + 1);
        }
        if round == leave_at {
            end.qp.disconnect(dice.roll(2) == 0);
        }
        books.collect(end);
        if let Ok(event) = end.events.try_recv() {
            assert!(
                matches!(event, CmEvent::Disconnected | CmEvent::Broken),
                "{event:?}"
            );
            break;
        }
        if round > leave_at {
            std::thread::yield_now();
        }
    }
    // Flushed before the event, but for what was posted after it.
    books.collect(end);
    assert_eq!(
        (end.qp.send_outstanding(), end.qp.recv_outstanding()),
        (0, 0)
    );
    assert_eq!(books.sends, books.sent);
    assert_eq!(books.recvs, books.received);
    end.no_event();
    books
}

#[test]
fn everything_completes_exactly_once() {
    over_all_paths(|net| {
        let (server, qual) = Server::any(&net.passive);
        let a = End::new(&net.active, attr());
        let b = End::new(&net.passive, attr());
        let (at, bt) = (a.remote(700_000), b.remote(700_000));
        for seed in 0..40 {
            a.connect(qual, b"").unwrap();
            net.passive.accept(server.next(), &b.qp, b"").unwrap();
            assert_eq!(a.event(), established(b""));
            assert_eq!(b.event(), established(b""));
            std::thread::scope(|s| {
                let b = Mine(&b);
                let other = s.spawn(move || play(b.get(), at, Dice(seed * 2 + 1)));
                let books = play(&a, bt, Dice(seed * 2));
                let others = other.join().unwrap();
                assert!(!books.sends.is_empty() || !others.sends.is_empty());
            });
            a.qp.reset();
            b.qp.reset();
        }
    });
}

/// An end that another thread uses for a while.
struct Mine<'a>(&'a End);

// SAFETY: one thread at a time uses the end, apart from the device.
unsafe impl Send for Mine<'_> {}

impl<'a> Mine<'a> {
    fn get(&self) -> &'a End {
        self.0
    }
}
