//! What it costs to check and to borrow a handle, next to what a lock costs in the same run.
//! The budget for check and borrow together is 5 ns. `cargo bench --bench handle`
//!
//! The samples by two threads are long: the threads must run at the same time for most of one.
//!
//! In a program the thread-local of a section is one instruction away; in a shared library it
//! takes a call of the run-time linker's `__tls_get_addr` on top.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use dat_core::testing::handle::{self, Object, pin};
use divan::{Bencher, black_box};

#[repr(align(64))]
struct Thing(AtomicU64);

// SAFETY: a tag that no other type of this program has, aligned to 64; lives in an `Arc`.
unsafe impl Object for Thing {
    const TAG: usize = 63;
}

static TABLE: u64 = 0;

fn insert() -> *mut c_void {
    let thing = Arc::new(Thing(AtomicU64::new(1)));
    handle::insert(std::ptr::from_ref(&TABLE).cast(), thing).expect("address space")
}

/// The handle that all the threads of a benchmark use.
fn shared_handle() -> *mut c_void {
    static HANDLE: LazyLock<usize> = LazyLock::new(|| insert().expose_provenance());
    std::ptr::with_exposed_provenance_mut(*HANDLE)
}

fn borrow(h: *mut c_void) -> u64 {
    let guard = pin::pin();
    let thing: &Thing = handle::get(h, &guard).expect("a valid handle");
    thing.0.load(Ordering::Relaxed)
}

/// The check that each exported function makes.
#[divan::bench(sample_size = 10_000)]
fn check(bencher: Bencher) {
    let h = shared_handle();
    bencher.bench_local(|| handle::table_of(black_box(h)));
}

/// The check that finds the handle stale, which is no slower.
#[divan::bench(sample_size = 10_000)]
fn check_stale(bencher: Bencher) {
    let h = insert();
    {
        let guard = pin::pin();
        let thing: &Thing = handle::get(h, &guard).expect("a valid handle");
        assert!(handle::remove(h, thing));
    }
    bencher.bench_local(|| handle::table_of(black_box(h)));
}

/// A section, the check in it, and one load from the object; also by two threads at once.
#[divan::bench(threads = [1, 2], sample_size = 100_000)]
fn check_and_borrow(bencher: Bencher) {
    let h = shared_handle().expose_provenance();
    bencher.bench(|| borrow(black_box(std::ptr::with_exposed_provenance_mut(h))));
}

/// Both checks and the borrow: what a post pays for its handle.
#[divan::bench(sample_size = 10_000)]
fn entry_and_borrow(bencher: Bencher) {
    let h = shared_handle();
    bencher.bench_local(|| {
        let h = black_box(h);
        (handle::table_of(h), borrow(h))
    });
}

/// A reference of one's own, for calls that block.
#[divan::bench(sample_size = 10_000)]
fn check_and_share(bencher: Bencher) {
    let h = shared_handle();
    bencher.bench_local(|| handle::get_shared::<Thing>(black_box(h)));
}

/// The life of a handle, the allocation of its object included.
#[divan::bench(sample_size = 1_000)]
fn insert_and_remove(bencher: Bencher) {
    bencher.bench_local(|| {
        let h = insert();
        let guard = pin::pin();
        let thing: &Thing = handle::get(h, &guard).expect("a valid handle");
        handle::remove(h, thing)
    });
}

/// For comparison: a lock around the same load, by one thread and by two.
#[divan::bench(threads = [1, 2], sample_size = 100_000)]
fn mutex(bencher: Bencher) {
    static MUTEX: Mutex<u64> = Mutex::new(1);
    bencher.bench(|| *black_box(&MUTEX).lock().unwrap());
}

/// For comparison: a reference counted up and down, by one thread and by two.
#[divan::bench(threads = [1, 2], sample_size = 100_000)]
fn counter(bencher: Bencher) {
    static SHARED: LazyLock<Arc<u64>> = LazyLock::new(|| Arc::new(1));
    bencher.bench(|| *black_box(&*SHARED).clone());
}

fn main() {
    divan::main();
}
