//! Peers of this host that were stopped in a copy from or to our registered memory.

use super::shm_peer::{ShmPeer, connected, device, over};
use super::*;
use crate::device::Addressing;
use crate::device::soft::mem::key_entry::Origin;
use crate::device::soft::mem::key_table::{self, Opening, Reserved};
use crate::device::soft::params::Memory;
use crate::device::soft::transport::shm::remote_keys::CopySection;
use crate::device::soft::transport::shm::{self, EndPhase, mapped};

/// Begins a copy by `key` for the peer.
fn copy_by(peer: &ShmPeer, key: u32) -> CopySection<'_> {
    peer.segment.ours().copy_guard.begin(&mut 0, key)
}

/// Whether our end has given the peer up.
fn is_given_up(peer: &ShmPeer) -> bool {
    peer.segment.theirs().phase() == EndPhase::Broken
}

/// A region is freed while a peer copies by its key, and does not end.
#[test]
fn a_copy_without_end() {
    let device = device();
    let (peer, mut b) = connected(&device);
    let section = copy_by(&peer, b.key());
    b.mr = None;
    // The connection pays for it, and nothing waits again.
    doze(&device);
    device.progress();
    over(&b);
    drop(section);
    assert!(peer.socket_ended());
}

/// A copy by another key delays nothing.
#[test]
fn a_copy_by_another_key() {
    let device = device();
    let (peer, b) = connected(&device);
    let (other_peer, mut other) = connected(&device);
    let section = copy_by(&peer, b.key());
    let other_section = copy_by(&other_peer, b.key());
    other.mr = None;
    drop((section, other_section));
    device.progress();
    for (peer, b) in [(peer, b), (other_peer, other)] {
        assert!(!is_given_up(&peer));
        b.no_event();
    }
}

/// Connections whose peers copy by the key of the first one, and do not end that.
fn copying_without_end(device: &Arc<Soft>, count: usize) -> Vec<(ShmPeer, End)> {
    let connections: Vec<(ShmPeer, End)> = (0..count).map(|_| connected(device)).collect();
    let key = connections[0].1.key();
    for (peer, _) in &connections {
        std::mem::forget(copy_by(peer, key));
    }
    connections
}

/// The copies of several peers are waited for together.
#[test]
fn copies_without_end() {
    let device = device();
    let mut connections = copying_without_end(&device, 8);
    let begun = Instant::now();
    connections[0].1.mr = None;
    // One after the other they would take eight seconds.
    assert!(begun.elapsed() < Duration::from_secs(5));
    for (peer, b) in &connections {
        assert!(is_given_up(peer));
        doze(&device);
        device.progress();
        over(b);
    }
}

/// A copy by the key of a window is one in the region of the window.
#[test]
fn a_copy_through_a_window() {
    let device = device();
    let (peer, mut b) = connected(&device);
    let mr = b.mr.take().unwrap();
    let window = Reserved::new(&Opening {
        pd: 1,
        addr: b.buffer as u64,
        len: 100,
        origin: Origin::Memory,
        access: Access::REMOTE_WRITE,
        region: Some(mr.region()),
        promotable: false,
        mapped: mr.region().mapped_range(),
    });
    let window = window.unwrap();
    let section = copy_by(&peer, window.key());
    let window = window.publish();
    drop(mr);
    assert!(is_given_up(&peer));
    drop((section, window));
}

/// Whether peers may map the region.
fn is_shared(mr: &Mr) -> bool {
    !mr.region().mapped_range().is_empty()
}

/// A peer is stopped in a copy from memory that the program frees, and continues later. The memory
/// is shared before that and when the copy has ended.
fn stopped_in_a_copy(device: &Arc<Soft>, ends_first: bool) {
    let (peer, mut b) = connected(device);
    assert!(is_shared(b.mr.as_ref().unwrap()));
    let section = copy_by(&peer, b.key());
    if ends_first {
        b.qp.disconnect(false);
        over(&b);
    }
    b.mr = None;
    let again = || {
        let addr = b.buffer as u64;
        device
            .reg_mr(&b.pd, addr, BUFFER as u64, Access::all())
            .unwrap()
    };
    assert!(!is_shared(&again()));
    // Other memory is not concerned.
    let (_peer, other) = connected(device);
    assert!(is_shared(other.mr.as_ref().unwrap()));
    // The peer continues, and its copy ends.
    drop(section);
    assert!(is_shared(&again()));
}

/// The kernel would have the peer wait for this process, which may be stopped in the midst of the move. Memory that is
/// registered once more stays where it is until the copy ends, and moves then, at the registration and because peers ask
/// for it.
#[test]
fn memory_moves_when_no_peer_copies() {
    if let Err(why) = mapped::enable() {
        eprintln!("\nskipped: memory_moves_when_no_peer_copies: {why}");
        return;
    }
    let (peer, b) = connected(&device());
    let (addr, len) = (b.buffer as u64, BUFFER as u64);
    let register = |memory| Mr::new(7, addr, len, Access::all(), Addressing::Virtual, memory);
    let is_shared_at_once = || is_shared(&register(Memory::Eager).unwrap());
    let section = copy_by(&peer, b.key());
    let asked = register(Memory::Shared).unwrap();
    assert!(mapped::promotion::request(asked.lkey(), 7));
    assert!(!is_shared_at_once());
    // Longer than one attempt of the thread that moves what peers ask for.
    std::thread::sleep(Duration::from_millis(100));
    assert!(!is_shared(&asked));
    let is_given_up = key_table::region(asked.lkey()).is_none_or(|region| !region.promotable);
    assert!(!is_given_up);
    drop(section);
    until(|| is_shared(&asked));
    drop(asked);
    assert!(is_shared_at_once());
}

/// Memory that a stopped peer may still write to is not shared again while the peer
/// does not end its copy: it would write to what the memory holds then.
#[test]
fn memory_that_a_stopped_peer_may_write_to() {
    if let Err(why) = mapped::enable() {
        eprintln!("\nskipped: memory_that_a_stopped_peer_may_write_to: {why}");
        return;
    }
    let device = Soft::open("127.0.0.1 path=shm memory=eager").unwrap();
    for ends_first in [false, true] {
        stopped_in_a_copy(&device, ends_first);
    }
}

/// A process that never ends its copies, connection after connection, does not fill our memory.
#[test]
fn stopped_peers_without_end() {
    alone(
        "shm_copies::stopped_peers_without_end",
        given_up_without_end,
    );
}

fn given_up_without_end() {
    const MOST: usize = 128;
    if let Err(why) = mapped::enable() {
        eprintln!("\nskipped: stopped_peers_without_end: {why}");
        return;
    }
    let device = Soft::open("127.0.0.1 path=shm memory=eager").unwrap();
    let mut connections = copying_without_end(&device, MOST + 10);
    connections[0].1.mr = None;
    assert!(connections.iter().all(|(peer, _)| is_given_up(peer)));
    assert!(
        (1..=MOST).contains(&shm::abandoned()),
        "{}",
        shm::abandoned()
    );
}
