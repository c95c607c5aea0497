use std::ffi::c_int;
use std::io;
use std::ptr::{from_mut, null_mut, without_provenance_mut};
use std::sync::Arc;

use super::*;

fn set_errno(value: c_int) {
    // SAFETY: this thread's own `errno`.
    unsafe { *libc::__errno_location() = value };
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().expect("a number")
}

/// [`resolve`] for values that it may be given even if another test has a provider loaded.
fn lookup(handle: *mut c_void, subtype: Subtype) -> Result<Target<u64>> {
    // SAFETY: the values in these tests are handles of the arena, or not addresses of objects, or
    // point to a local.
    unsafe { resolve(handle, subtype) }
}

#[test]
fn errno_is_kept() {
    set_errno(libc::EXDEV);
    let code = guard(Version::V2, || {
        set_errno(libc::EDOM);
        Ok(7)
    });
    assert_eq!((code, errno()), (7, libc::EXDEV));

    let code = guard(Version::V2, || {
        set_errno(libc::EDOM);
        Err(Error::handle(Subtype::Handle1))
    });
    assert_eq!((code, errno()), (0x8005_001b, libc::EXDEV));
}

#[test]
fn codes_are_those_of_the_version() {
    let error = || Err(Error::handle(Subtype::Handle1));
    assert_eq!(guard(Version::V1, error), 0x8005_001a);
    assert_eq!(guard(Version::V2, error), 0x8005_001b);
    assert_eq!(guard(Version::V1, || Err(EMPTY_SLOT)), 0x8fff_0000);
    assert_eq!(guard(Version::V2, || Err(EMPTY_SLOT)), 0xbfff_0000);
}

#[test]
fn a_panic_becomes_an_internal_error() {
    set_errno(libc::EXDEV);
    let code = guard(Version::V1, || {
        set_errno(libc::EDOM);
        panic!("expected by this test")
    });
    assert_eq!((code, errno()), (0x8004_0000, libc::EXDEV));
}

#[test]
fn other_values_are_refused_with_the_kind_of_handle() {
    let mut on_stack = 0u64;
    let values = [
        null_mut(),
        without_provenance_mut(0x7f00_1001),
        without_provenance_mut(usize::MAX),
        from_mut(&mut on_stack).cast(),
    ];
    for value in values {
        for subtype in [Subtype::HandleIa, Subtype::HandleEp, Subtype::Handle1] {
            let found = lookup(value, subtype).map(|target| target.table);
            assert_eq!(found, Err(Error::handle(subtype)), "{value:?}");
        }
    }
}

#[repr(align(64))]
struct Thing;

// SAFETY: the tag is used by no other type that unit tests put into the arena with this table,
// and the alignment is 64.
unsafe impl handle::Object for Thing {
    const TAG: usize = 60;
}

#[test]
fn a_handle_of_ours_leads_to_its_table_until_it_is_removed() {
    let table = 5u64;
    let thing = Arc::new(Thing);
    let place = std::ptr::from_ref(&table).cast();
    let handle = handle::insert(place, thing.clone()).expect("address space");
    for subtype in [Subtype::HandleIa, Subtype::HandleEp, Subtype::Handle1] {
        let target = lookup(handle, subtype).expect("valid");
        assert_eq!(target.table.cast(), place);
        assert_eq!(target.handle, handle);
    }
    let inside = handle.map_addr(|address| address + 8);
    assert!(lookup(inside, Subtype::HandleEp).is_err());

    assert!(handle::remove(handle, &*thing));
    let gone = lookup(handle, Subtype::HandleEp).map(|target| target.table);
    assert_eq!(gone, Err(Error::handle(Subtype::HandleEp)));
}

#[test]
fn addresses_that_hold_no_object() {
    let may_be = |address: usize| may_be_pointer(without_provenance_mut(address));
    assert!(may_be(0x7f00_1000));
    assert!(may_be(0x7f00_1008));
    for address in [0, 1, 8, 4088, 0x7f00_1001, 0x7f00_1002, usize::MAX] {
        assert!(!may_be(address), "{address:#x}");
    }
}
