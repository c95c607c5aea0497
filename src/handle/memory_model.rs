//! The replacement of `memory.rs` in the loom models: two small pages of loom's atomics at
//! invented addresses. Any other address ends the model, so these functions do not depend on the
//! promises that `unsafe` stands for in `memory.rs`.

use super::arena::{PageHeader, Slot};
use crate::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use crate::sync::shared_static;
use std::ptr::null_mut;

/// A header and two slots.
pub const PAGE: usize = 48;
pub const CHUNK: usize = 2 * PAGE;
const SLOT: usize = 16;
const BASE: usize = 0x10_0000 * PAGE;

struct Place {
    slot: Slot,
    header: PageHeader,
}

fn empty() -> Place {
    Place {
        slot: Slot {
            table: AtomicPtr::new(null_mut()),
            object: AtomicPtr::new(null_mut()),
        },
        header: PageHeader {
            table: AtomicPtr::new(null_mut()),
            live: AtomicUsize::new(0),
        },
    }
}

shared_static! {
    static PLACES: Vec<Place> = (0..CHUNK / SLOT).map(|_| empty()).collect();
}

fn place(address: usize) -> &'static Place {
    let offset = address.checked_sub(BASE).expect("an address of the arena");
    assert!(offset % SLOT == 0 && offset < CHUNK);
    &PLACES[offset / SLOT]
}

/// Nothing is returned to a kernel here.
pub fn kernel_page() -> usize {
    PAGE
}

pub fn reserve() -> Option<(usize, usize)> {
    Some((BASE, CHUNK))
}

pub unsafe fn commit(_start: usize) -> bool {
    true
}

pub unsafe fn discard(start: usize, len: usize) {
    for address in (start..start + len).step_by(SLOT) {
        let Place { slot, header } = place(address);
        slot.table.store(null_mut(), Ordering::Relaxed);
        slot.object.store(null_mut(), Ordering::Relaxed);
        header.live.store(0, Ordering::Relaxed);
    }
}

pub unsafe fn slot(address: usize) -> &'static Slot {
    &place(address).slot
}

pub unsafe fn header(page: usize) -> &'static PageHeader {
    assert!(page % PAGE == 0);
    &place(page).header
}
