//! Eight threads on the same objects, through the provider table, as C calls it: what
//! `scripts/tsan.sh` runs under ThreadSanitizer. `tests-c/t_stress.c` tries more and checks the
//! codes one by one; here it is the memory accesses that are watched.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::thread;

use dat_core::abi::v2::*;
use dat_core::registry::BuiltinEntry;
use dat_core::registry::config::Origin;
use dat_core::setup::builtin;
use dat_core::testing::dapl::abi::V2;
use dat_core::testing::dapl::provider::instance;
use dat_core::testing::device::soft::Soft;

const THREADS: usize = 8;
const SLOTS: usize = 3;
/// Operations of a thread.
const ROUNDS: usize = 200;
/// Messages of a thread that sends.
const MESSAGES: usize = 100;
const LENGTH: usize = 64;
const ALL: DAT_MEM_PRIV_FLAGS = 0x33;
const CODE: DAT_RETURN = 0x3fff_0000;

/// Calls a function of the table.
macro_rules! call {
    ($table:expr, $slot:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: handles may be any, pointers are to our own variables or NULL.
        unsafe { ($table.$slot.expect("in the table"))($($arg),*) }
    };
}

/// The table of an IA with these parameters.
fn table(name: &CStr, params: &CStr) -> &'static DAT_PROVIDER {
    let mut info = DAT_PROVIDER_INFO {
        ia_name: [0; DAT_NAME_MAX_LENGTH],
        dapl_version_major: 2,
        dapl_version_minor: 0,
        is_thread_safe: DAT_TRUE,
    };
    for (to, from) in info.ia_name.iter_mut().zip(name.to_bytes()) {
        *to = *from as c_char;
    }
    (builtin::<V2, Soft>().init)(&BuiltinEntry {
        info: &info,
        params,
        origin: &Origin::Builtin,
    });
    let instance = instance::<Soft>(name).expect("made by init");
    // SAFETY: the table of this version, which lives as long as the process.
    unsafe { &*instance.tables.plain.cast() }
}

/// Small numbers, the same in every run.
struct Random(u32);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 as usize % n
    }
}

fn in_threads(work: impl Fn(usize, Random) + Sync) {
    thread::scope(|scope| {
        let threads = [(); THREADS].iter().enumerate().map(|(number, ())| {
            let work = &work;
            scope.spawn(move || work(number, Random(number as u32 + 1)))
        });
        // Joined one by one, for ThreadSanitizer knows that and not the end of a scope.
        for thread in threads.collect::<Vec<_>>() {
            thread.join().expect("it does not panic");
        }
    });
}

/// An open IA with what endpoints need. The handles are addresses in the arena, not ours.
struct Rig {
    table: &'static DAT_PROVIDER,
    ia: DAT_IA_HANDLE,
    pz: DAT_PZ_HANDLE,
    recv: DAT_EVD_HANDLE,
    request: DAT_EVD_HANDLE,
    connect: DAT_EVD_HANDLE,
    requests: DAT_EVD_HANDLE,
    address: DAT_IA_ADDRESS_PTR,
}

// SAFETY: handles may be used by any thread; the address is only read.
unsafe impl Sync for Rig {}

impl Rig {
    fn new(name: &CStr, params: &CStr) -> Self {
        let table = table(name, params);
        let (mut ia, mut pz, mut async_evd) = (null_mut(), null_mut(), null_mut());
        let name = name.as_ptr().cast_mut();
        let opened = call!(table, ia_open_func(name, 8, &mut async_evd, &mut ia));
        assert_eq!(opened, DAT_SUCCESS);
        assert_eq!(call!(table, pz_create_func(ia, &mut pz)), DAT_SUCCESS);
        let evd = |flags| {
            let mut evd = null_mut();
            let length = 4096;
            let made = call!(
                table,
                evd_create_func(ia, length, null_mut(), flags, &mut evd)
            );
            assert_eq!(made, DAT_SUCCESS);
            evd
        };
        let mut attr = MaybeUninit::<DAT_IA_ATTR>::uninit();
        let out = attr.as_mut_ptr();
        let queried = call!(
            table,
            ia_query_func(ia, null_mut(), DAT_IA_FIELD_ALL, out, 0, null_mut())
        );
        assert_eq!(queried, DAT_SUCCESS);
        Rig {
            table,
            ia,
            pz,
            recv: evd(DAT_EVD_DTO_FLAG),
            request: evd(DAT_EVD_DTO_FLAG),
            connect: evd(DAT_EVD_CONNECTION_FLAG),
            requests: evd(DAT_EVD_CR_FLAG),
            // SAFETY: the query was successful.
            address: unsafe { attr.assume_init() }.ia_address_ptr,
        }
    }

    fn ep(&self) -> Result<DAT_EP_HANDLE, DAT_RETURN> {
        let mut ep = null_mut();
        let made = call!(
            self.table,
            ep_create_func(
                self.ia,
                self.pz,
                self.recv,
                self.request,
                self.connect,
                null_mut(),
                &mut ep
            )
        );
        if made == DAT_SUCCESS {
            Ok(ep)
        } else {
            Err(made)
        }
    }

    fn listen(&self) -> DAT_CONN_QUAL {
        let (mut qual, mut psp) = (0, null_mut());
        let flags = DAT_PSP_CONSUMER_FLAG;
        let made = call!(
            self.table,
            psp_create_any_func(self.ia, &mut qual, self.requests, flags, &mut psp)
        );
        assert_eq!(made, DAT_SUCCESS);
        qual
    }

    fn register(&self, memory: &mut [u8], pz: DAT_PZ_HANDLE) -> (DAT_RETURN, DAT_LMR_HANDLE, u32) {
        let (mut lmr, mut context) = (null_mut(), 0);
        let region = DAT_REGION_DESCRIPTION {
            for_va: memory.as_mut_ptr().cast(),
        };
        let length = memory.len() as DAT_VLEN;
        let made = call!(
            self.table,
            lmr_create_func(
                self.ia,
                DAT_MEM_TYPE_VIRTUAL,
                region,
                length,
                pz,
                ALL,
                DAT_VA_TYPE_VA,
                &mut lmr,
                &mut context,
                null_mut(),
                null_mut(),
                null_mut()
            )
        );
        (made, lmr, context)
    }

    fn connect_to(&self, ep: DAT_EP_HANDLE, to: &Rig, qual: DAT_CONN_QUAL) -> DAT_RETURN {
        call!(
            self.table,
            ep_connect_func(
                ep,
                to.address,
                qual,
                10_000_000,
                0,
                null_mut(),
                DAT_QOS_BEST_EFFORT,
                DAT_CONNECT_DEFAULT_FLAG
            )
        )
    }

    fn wait(&self, evd: DAT_EVD_HANDLE, timeout: DAT_TIMEOUT) -> Option<DAT_EVENT> {
        let (mut event, mut more) = (MaybeUninit::uninit(), 0);
        let out = event.as_mut_ptr();
        let got = call!(self.table, evd_wait_func(evd, timeout, 1, out, &mut more));
        // SAFETY: written on success.
        (got == DAT_SUCCESS).then(|| unsafe { event.assume_init() })
    }

    fn take(&self, evd: DAT_EVD_HANDLE) -> Option<DAT_EVENT> {
        let mut event = MaybeUninit::uninit();
        let got = call!(self.table, evd_dequeue_func(evd, event.as_mut_ptr()));
        // SAFETY: written on success.
        (got == DAT_SUCCESS).then(|| unsafe { event.assume_init() })
    }

    fn answer(&self, request: &DAT_EVENT, ep: DAT_EP_HANDLE) {
        // SAFETY: the event of a service point.
        let cr = unsafe { request.event_data.cr_arrival_event_data }.cr_handle;
        if call!(self.table, cr_accept_func(cr, ep, 0, null_mut())) != DAT_SUCCESS {
            call!(self.table, cr_reject_func(cr, 0, null_mut()));
        }
    }

    fn post(&self, receive: bool, ep: DAT_EP_HANDLE, at: &[u8], context: u32) -> DAT_RETURN {
        let mut iov = DAT_LMR_TRIPLET {
            virtual_address: at.as_ptr() as DAT_VADDR,
            segment_length: at.len() as DAT_SEG_LENGTH,
            lmr_context: context,
        };
        let (iov, cookie) = (&raw mut iov, DAT_CONTEXT { as_64: 1 });
        if receive {
            call!(self.table, ep_post_recv_func(ep, 1, iov, cookie, 0))
        } else {
            call!(self.table, ep_post_send_func(ep, 1, iov, cookie, 0))
        }
    }

    fn close(&self) {
        let closed = call!(self.table, ia_close_func(self.ia, DAT_CLOSE_ABRUPT_FLAG));
        assert_eq!(closed, DAT_SUCCESS);
    }
}

/// Runs a test over all paths, each with IA names of its own.
fn over_all(test: &str, run: impl Fn(Rig, Rig)) {
    for (path, params) in [
        ("soft", c"lo"),
        ("shm", c"lo path=shm"),
        ("tcp", c"lo path=tcp"),
    ] {
        let name = CString::new(format!("{test}-{path}")).expect("no zero in it");
        run(Rig::new(&name, params), Rig::new(&name, params));
    }
}

#[test]
fn create_use_and_free() {
    over_all("objects", |rig, other| {
        let zones: [AtomicPtr<_>; SLOTS] = Default::default();
        let regions: [AtomicPtr<_>; SLOTS] = Default::default();
        let eps: [AtomicPtr<_>; SLOTS] = Default::default();
        in_threads(|_, mut random| {
            let mut memory = [0; LENGTH];
            for _ in 0..ROUNDS {
                let (zone, region, ep) = (
                    &zones[random.below(SLOTS)],
                    &regions[random.below(SLOTS)],
                    &eps[random.below(SLOTS)],
                );
                let mut made = null_mut();
                assert_eq!(
                    call!(rig.table, pz_create_func(rig.ia, &mut made)),
                    DAT_SUCCESS
                );
                // In use by regions, perhaps, and freed a second time by others.
                call!(rig.table, pz_free_func(zone.swap(made, Relaxed)));
                let (code, lmr, _) = rig.register(&mut memory, zone.load(Relaxed));
                if code == DAT_SUCCESS {
                    call!(rig.table, lmr_free_func(region.swap(lmr, Relaxed)));
                } else {
                    assert_eq!(code & CODE, DAT_INVALID_HANDLE);
                }
                let old = ep.swap(rig.ep().expect("its parts are there"), Relaxed);
                rig.post(true, ep.load(Relaxed), &memory, 0);
                call!(rig.table, ep_disconnect_func(old, DAT_CLOSE_ABRUPT_FLAG));
                call!(rig.table, ep_free_func(old));
                call!(rig.table, lmr_free_func(region.load(Relaxed)));
                let (mut state, none) = (0, null_mut());
                call!(
                    rig.table,
                    ep_get_status_func(ep.load(Relaxed), &mut state, none, none)
                );
            }
        });
        rig.close();
        other.close();
    });
}

#[test]
fn post_and_take() {
    over_all("posts", |a, b| {
        let (ep_a, ep_b) = (a.ep().expect("made"), b.ep().expect("made"));
        assert_eq!(a.connect_to(ep_a, &b, b.listen()), DAT_SUCCESS);
        let request = b.wait(b.requests, 10_000_000).expect("it arrives");
        b.answer(&request, ep_b);
        for rig in [&a, &b] {
            let event = rig.wait(rig.connect, 10_000_000).expect("they connect");
            assert_eq!(event.event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
        }
        let (ep_a, ep_b) = (AtomicPtr::new(ep_a), AtomicPtr::new(ep_b));
        let (sent, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let all = THREADS / 2 * MESSAGES;
        in_threads(|number, _| {
            let mut memory = vec![number as u8; LENGTH * MESSAGES];
            let receive = number % 2 == 1;
            let (rig, ep) = if receive { (&b, &ep_b) } else { (&a, &ep_a) };
            let (code, _, context) = rig.register(&mut memory, rig.pz);
            assert_eq!(code, DAT_SUCCESS);
            let mut left = memory.chunks(LENGTH);
            let mut next = left.next();
            // Until all is done: the memory is in use until then.
            while sent.load(Relaxed) < all || received.load(Relaxed) < all {
                if let Some(at) = next {
                    match rig.post(receive, ep.load(Relaxed), at, context) & CODE {
                        DAT_SUCCESS => next = left.next(),
                        code => assert_eq!(code, DAT_INSUFFICIENT_RESOURCES),
                    }
                }
                for (rig, evd, count) in [(&a, a.request, &sent), (&b, b.recv, &received)] {
                    while let Some(event) = rig.take(evd) {
                        // SAFETY: only completions go there.
                        let dto = unsafe { event.event_data.dto_completion_event_data };
                        assert_eq!(dto.status, DAT_DTO_SUCCESS);
                        count.fetch_add(1, Relaxed);
                    }
                }
                thread::yield_now();
            }
        });
        assert_eq!((sent.into_inner(), received.into_inner()), (all, all));
        a.close();
        b.close();
    });
}

#[test]
fn connect_and_break() {
    over_all("connections", |a, b| {
        let qual = b.listen();
        let eps = |rig: &Rig| -> [AtomicPtr<_>; SLOTS] {
            std::array::from_fn(|_| AtomicPtr::new(rig.ep().expect("made")))
        };
        let (eps_a, eps_b) = (eps(&a), eps(&b));
        in_threads(|_, mut random| {
            for _ in 0..ROUNDS {
                let ep_a = eps_a[random.below(SLOTS)].load(Relaxed);
                let ep_b = eps_b[random.below(SLOTS)].load(Relaxed);
                a.connect_to(ep_a, &b, qual);
                if let Some(request) = b.take(b.requests) {
                    b.answer(&request, ep_b);
                }
                while a.take(a.connect).is_some() || b.take(b.connect).is_some() {}
                match random.below(4) {
                    0 => call!(a.table, ep_disconnect_func(ep_a, DAT_CLOSE_ABRUPT_FLAG)),
                    1 => call!(b.table, ep_disconnect_func(ep_b, DAT_CLOSE_GRACEFUL_FLAG)),
                    2 => call!(a.table, ep_reset_func(ep_a)),
                    _ => call!(b.table, ep_reset_func(ep_b)),
                };
            }
        });
        a.close();
        b.close();
    });
}

#[test]
fn close_while_others_work() {
    over_all("close", |rig, other| {
        let qual = rig.listen();
        in_threads(|number, _| {
            for round in 0..ROUNDS {
                if number == 0 && round == ROUNDS / 4 {
                    rig.close();
                }
                let Ok(ep) = rig.ep() else { continue };
                rig.connect_to(ep, &rig, qual);
                rig.take(rig.connect);
                call!(rig.table, ep_free_func(ep));
            }
            assert!(number != 0 || rig.ep().is_err());
        });
        other.close();
    });
}
