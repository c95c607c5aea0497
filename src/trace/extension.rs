//! The arguments of `dat_extension_op`, which are others for each operation.

use super::arguments::Argument;
use crate::abi::v2::*;
use crate::abi::va_list::VaList;

/// An argument of an operation: its name, its type, and the size of what it points to, in bytes.
type Declared = (&'static str, &'static str, usize);

const HANDLE: Declared = ("handle", "DAT_HANDLE", 0);
const OP: Declared = ("op", "DAT_EXTENDED_OP", 0);
const LOCAL: Declared = (
    "local_iov",
    "*const DAT_LMR_TRIPLET",
    size_of::<DAT_LMR_TRIPLET>(),
);
const REMOTE: Declared = (
    "remote_iov",
    "*const DAT_RMR_TRIPLET",
    size_of::<DAT_RMR_TRIPLET>(),
);
const SEGMENTS: Declared = ("num_segments", "DAT_COUNT", 0);
const COOKIE: Declared = ("user_cookie", "DAT_DTO_COOKIE", 0);
const FLAGS: Declared = ("completion_flags", "DAT_COMPLETION_FLAGS", 0);
const PEER: Declared = (
    "addr_handle",
    "*const DAT_IB_ADDR_HANDLE",
    size_of::<DAT_IB_ADDR_HANDLE>(),
);
const COUNTER: Declared = ("counter", "c_int", 0);
const RESET: Declared = ("reset", "DAT_BOOLEAN", 0);
const GROUP: Declared = ("type", "DAT_IA_COUNTER_TYPE", 0);

/// The arguments of an operation after the first two; none of one that is not known.
fn declared(op: DAT_EXTENDED_OP) -> &'static [Declared] {
    match op.cast_unsigned() {
        DAT_IB_FETCH_AND_ADD_OP => &[("add_value", "DAT_UINT64", 0), LOCAL, COOKIE, REMOTE, FLAGS],
        DAT_IB_CMP_AND_SWAP_OP => &[
            ("cmp_value", "DAT_UINT64", 0),
            ("swap_value", "DAT_UINT64", 0),
            LOCAL,
            COOKIE,
            REMOTE,
            FLAGS,
        ],
        DAT_IB_RDMA_WRITE_IMMED_OP => &[
            SEGMENTS,
            LOCAL,
            COOKIE,
            REMOTE,
            ("immed_data", "DAT_IB_IMMED_DATA", 0),
            FLAGS,
        ],
        DAT_IB_UD_SEND_OP => &[SEGMENTS, LOCAL, PEER, COOKIE, FLAGS],
        DAT_IB_QUERY_COUNTERS_OP => &[COUNTER, ("p_cntrs_out", "POINTER", 0), RESET],
        DAT_IB_PRINT_COUNTERS_OP => &[COUNTER, RESET],
        DAT_IB_START_COUNTERS_OP | DAT_IB_STOP_COUNTERS_OP => &[GROUP],
        DAT_IB_UD_CM_FREE_OP => &[("cm_handle", "DAT_HANDLE", 0)],
        DAT_IB_UD_AH_FREE_OP => &[PEER],
        DAT_IB_OPEN_QUERY_OP => &[("name", "DAT_NAME_PTR", 0)],
        _ => &[],
    }
}

/// Whether a value of this type is a pointer.
fn is_pointer(kind: &str) -> bool {
    kind.starts_with('*') || ["DAT_HANDLE", "DAT_NAME_PTR", "POINTER"].contains(&kind)
}

/// Whether a value of this type has 64 bits everywhere.
fn is_wide(kind: &str) -> bool {
    ["DAT_UINT64", "DAT_DTO_COOKIE"].contains(&kind)
}

/// The arguments of a call.
///
/// # Safety
/// The list has the arguments of the operation.
pub unsafe fn arguments(handle: DAT_HANDLE, op: DAT_EXTENDED_OP, list: &VaList) -> Vec<Argument> {
    let mut list = list.clone();
    let argument = |(name, kind, pointee): Declared, word: u64| Argument {
        name,
        kind,
        words: [word, 0],
        pointee,
    };
    let mut arguments = vec![
        argument(HANDLE, handle.addr() as u64),
        argument(OP, u64::from(op.cast_unsigned())),
    ];
    for declared in declared(op) {
        // SAFETY: the caller's promise.
        let word = unsafe {
            match declared.1 {
                kind if is_pointer(kind) => list.pointer::<u8>().addr() as u64,
                kind if is_wide(kind) => list.word(),
                _ => u64::from(list.int()),
            }
        };
        arguments.push(argument(*declared, word));
    }
    arguments
}
