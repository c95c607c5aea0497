//! Tests of the ring.

use super::*;
use crate::sync::atomic::Ordering;

const NONE: CellFlags = CellFlags::empty();

fn push(p: &mut Producer, ring: &Ring, kind: Kind, bytes: &[u8]) {
    let pushed = p.push(ring, kind, NONE, bytes.len(), |to| {
        // SAFETY: there is room for it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok::<_, ()>(())
    });
    assert_eq!(pushed, Ok(()));
}

fn pop(c: &mut Consumer, ring: &Ring) -> Option<Vec<u8>> {
    let piece = c.peek(ring).unwrap()?;
    let bytes = c.payload(ring, &piece, |from| {
        // SAFETY: as long as the piece.
        unsafe { std::slice::from_raw_parts(from, piece.len) }.to_vec()
    });
    c.advance(&piece);
    Some(bytes)
}

#[test]
fn parts_arrive_in_order() {
    let ring = Ring::new();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    let mut full = false;
    for round in 0..3000usize {
        let bytes = vec![round as u8; 1 + round * 37 % 9000];
        if !p.has_cell(&ring).unwrap() {
            full = true;
        } else if bytes.len() <= MAX_INLINE {
            push(&mut p, &ring, Kind::Inline, &bytes);
            sent.push(bytes);
        } else {
            let n = p.chunk(&ring, bytes.len()).unwrap();
            assert!(n <= bytes.len());
            if n > 0 {
                push(&mut p, &ring, Kind::Bulk, &bytes[..n]);
                sent.push(bytes[..n].to_vec());
            } else {
                full = true;
            }
        }
        if round % 50 > 20 {
            got.extend(pop(&mut c, &ring));
            got.extend(pop(&mut c, &ring));
            c.publish(&ring);
        }
    }
    got.extend(std::iter::from_fn(|| pop(&mut c, &ring)));
    assert!(full);
    assert!(sent == got);
    c.publish(&ring);
    assert!(!c.publish(&ring));
    assert_eq!(p.chunk(&ring, 1), Ok(1));
}

#[test]
fn violations_are_detected() {
    let ring = Ring::new();
    let (mut p, c) = (Producer::default(), Consumer::default());
    for bad in [
        header(0, Kind::Inline, NONE, MAX_INLINE + 1),
        header(0, Kind::Inline, NONE, 0),
        header(0, Kind::Bulk, NONE, 0),
        header(0, Kind::Bulk, NONE, MAX_CHUNK + 1),
        header(0, Kind::Invalidate, NONE, 5),
        header(0, Kind::Inline, CellFlags::from_bits_retain(0x80), 1),
        u64::from(filled(0)),
    ] {
        ring.cells[0].header.store(bad, Ordering::Relaxed);
        assert_eq!(c.peek(&ring).map(|_| ()), Err(Violation));
    }
    let at_the_end = Consumer {
        bytes: (DATA_LEN - BLOCK) as u64,
        ..Consumer::default()
    };
    let beyond = header(0, Kind::Bulk, NONE, BLOCK + 1);
    ring.cells[0].header.store(beyond, Ordering::Relaxed);
    assert_eq!(at_the_end.peek(&ring).map(|_| ()), Err(Violation));
    // A consumer that has consumed more than was filled.
    ring.consumed.cells.store(1, Ordering::Relaxed);
    p.consumed_cells = 0;
    assert_eq!(p.refresh(&ring), Err(Violation));
    ring.consumed.cells.store(0, Ordering::Relaxed);
    ring.consumed.bytes.store(64, Ordering::Relaxed);
    assert_eq!(p.refresh(&ring), Err(Violation));
    // Half a block.
    p.bytes = 640;
    assert_eq!(p.refresh(&ring), Ok(()));
    ring.consumed.bytes.store(100, Ordering::Relaxed);
    assert_eq!(p.refresh(&ring), Err(Violation));
}

#[test]
fn messages_are_sent_whole_or_not_at_all() {
    let ring = Ring::new();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    let mut assembly = Assembly::new(3, 5000);
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    let mut full = 0;
    for round in 0..5000usize {
        let message = vec![round as u8; round * 37 % 5001];
        let before = (p.cells, p.bytes);
        let mut flags = NONE;
        flags.set(CellFlags::SOLICITED, round % 3 == 0);
        if p.push_whole(&ring, flags, &message).unwrap() {
            sent.push((message, flags | CellFlags::LAST));
        } else {
            assert_eq!((p.cells, p.bytes), before);
            full += 1;
        }
        let most = if round % 50 > 20 { CELLS } else { 0 };
        for _ in 0..most {
            let Some((message, flags)) = assembly.take(&mut c, &ring).unwrap() else {
                break;
            };
            assert_eq!(message[..3], [0; 3]);
            got.push((message[3..].to_vec(), flags));
            c.publish(&ring);
        }
    }
    assert!(full > 100);
    while let Some((message, flags)) = assembly.take(&mut c, &ring).unwrap() {
        got.push((message[3..].to_vec(), flags));
    }
    assert!(sent == got);
}

#[test]
fn messages_that_are_too_long_or_none() {
    for (kind, len, parts) in [
        (Kind::Inline, 50, 3),
        (Kind::Bulk, 101, 1),
        (Kind::Invalidate, 4, 1),
    ] {
        let ring = Ring::new();
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        let mut assembly = Assembly::new(8, 100);
        for _ in 0..parts {
            push(&mut p, &ring, kind, &vec![1; len]);
        }
        let taken = assembly.take(&mut c, &ring).map(|_| ());
        assert_eq!(taken, Err(Violation), "{kind:?}");
    }
}
