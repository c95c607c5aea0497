//! The pointer to the record of this thread, null before its first section. It has no destructor,
//! so it can be used until the thread has ended.

use super::record::Record;
pub(super) use place::{get, set};

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri)))]
mod place {
    use super::Record;
    use std::arch::{asm, global_asm};

    // A thread-local variable of a shared library costs a call each time, since the library may
    // be loaded after the start of the program. The TLS model "initial exec" costs two loads; the C
    // library reserves space in its static TLS block, where these eight bytes fit, for libraries
    // that are loaded later.
    global_asm!(
        ".pushsection .tbss.libdat_record,\"awT\",@nobits",
        ".p2align 3",
        ".globl libdat_record",
        ".hidden libdat_record",
        ".type libdat_record,@object",
        ".size libdat_record,8",
        "libdat_record:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub fn get() -> *const Record {
        let record;
        // SAFETY: reads the variable above.
        unsafe {
            asm!(
                "mov {record}, qword ptr [rip + libdat_record@GOTTPOFF]",
                "mov {record}, qword ptr fs:[{record}]",
                record = out(reg) record,
                options(nostack, readonly, preserves_flags),
            );
        }
        record
    }

    pub fn set(record: *const Record) {
        // SAFETY: writes the variable above; no other code does.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + libdat_record@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {record}",
                place = out(reg) _,
                record = in(reg) record,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
mod place {
    use super::Record;
    use crate::sync::local_static;
    use std::cell::Cell;

    local_static! {
        static RECORD: Cell<*const Record> = Cell::new(std::ptr::null());
    }

    #[inline]
    pub fn get() -> *const Record {
        RECORD.with(Cell::get)
    }

    pub fn set(record: *const Record) {
        // While a thread ends the variable may be destroyed already; the record is lost then.
        let _ = RECORD.try_with(|own| own.set(record));
    }
}
