//! The names of the values of a type, from the constants of the API.

use super::masks;
use crate::abi::{v1, v2};
use crate::error::Version;

/// Names and values.
pub type Table = &'static [(&'static str, u64)];

/// The values of a type that have names.
#[derive(Clone, Copy)]
pub enum Names {
    /// Each value has one name.
    Enumeration(Table),
    /// A value is a set of bits that have names. A name of several bits, or of none, is that of the
    /// set.
    Set(Table),
}

/// The constants of these names, which are those of the given module.
macro_rules! names {
    ($version:ident: $($name:ident),* $(,)?) => {
        &[$((stringify!($name), $version::$name as u64)),*]
    };
}
pub(super) use names;

impl Names {
    /// The names of the values of a type.
    #[rustfmt::skip]
    pub fn of(version: Version, kind: &str) -> Option<Names> {
        use Names::{Enumeration, Set};
        Some(match (version, kind) {
            (_, "DAT_EVD_STATE") => Set(names![v2:
                DAT_EVD_STATE_ENABLED, DAT_EVD_STATE_DISABLED, DAT_EVD_STATE_WAITABLE,
                DAT_EVD_STATE_UNWAITABLE, DAT_EVD_STATE_CONFIG_NOTIFY,
                DAT_EVD_STATE_CONFIG_SOLICITED, DAT_EVD_STATE_CONFIG_THRESHOLD
            ]),
            (Version::V1, "DAT_COMPLETION_FLAGS") => Set(names![v1:
                DAT_COMPLETION_DEFAULT_FLAG, DAT_COMPLETION_SUPPRESS_FLAG,
                DAT_COMPLETION_SOLICITED_WAIT_FLAG, DAT_COMPLETION_UNSIGNALLED_FLAG,
                DAT_COMPLETION_BARRIER_FENCE_FLAG, DAT_COMPLETION_EVD_THRESHOLD_FLAG
            ]),
            (Version::V2, "DAT_COMPLETION_FLAGS") => Set(names![v2:
                DAT_COMPLETION_DEFAULT_FLAG, DAT_COMPLETION_SUPPRESS_FLAG,
                DAT_COMPLETION_SOLICITED_WAIT_FLAG, DAT_COMPLETION_UNSIGNALLED_FLAG,
                DAT_COMPLETION_BARRIER_FENCE_FLAG, DAT_COMPLETION_EVD_THRESHOLD_FLAG,
                DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG
            ]),
            (Version::V1, "DAT_CONNECT_FLAGS") => Set(names![v1:
                DAT_CONNECT_DEFAULT_FLAG, DAT_CONNECT_MULTIPATH_FLAG
            ]),
            (Version::V2, "DAT_CONNECT_FLAGS") => Set(names![v2:
                DAT_CONNECT_DEFAULT_FLAG, DAT_CONNECT_MULTIPATH_FLAG,
                DAT_CONNECT_MULTIPATH_REQUIRED_FLAG
            ]),
            (Version::V1, "DAT_EVD_FLAGS") => Set(names![v1:
                DAT_EVD_SOFTWARE_FLAG, DAT_EVD_CR_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_CONNECTION_FLAG,
                DAT_EVD_RMR_BIND_FLAG, DAT_EVD_ASYNC_FLAG, DAT_EVD_DEFAULT_FLAG
            ]),
            (Version::V2, "DAT_EVD_FLAGS") => Set(names![v2:
                DAT_EVD_SOFTWARE_FLAG, DAT_EVD_CR_FLAG, DAT_EVD_DTO_FLAG, DAT_EVD_CONNECTION_FLAG,
                DAT_EVD_RMR_BIND_FLAG, DAT_EVD_ASYNC_FLAG, DAT_EVD_DEFAULT_FLAG,
                DAT_IB_EVD_EXTENSION_FLAG
            ]),
            (Version::V1, "DAT_MEM_PRIV_FLAGS") => Set(names![v1:
                DAT_MEM_PRIV_NONE_FLAG, DAT_MEM_PRIV_LOCAL_READ_FLAG, DAT_MEM_PRIV_REMOTE_READ_FLAG,
                DAT_MEM_PRIV_LOCAL_WRITE_FLAG, DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
                DAT_MEM_PRIV_ALL_FLAG, DAT_MEM_PRIV_RO_DISABLE_FLAG
            ]),
            (Version::V2, "DAT_MEM_PRIV_FLAGS") => Set(names![v2:
                DAT_MEM_PRIV_NONE_FLAG, DAT_MEM_PRIV_LOCAL_READ_FLAG, DAT_MEM_PRIV_REMOTE_READ_FLAG,
                DAT_MEM_PRIV_LOCAL_WRITE_FLAG, DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
                DAT_MEM_PRIV_ALL_FLAG, DAT_IB_MEM_PRIV_REMOTE_ATOMIC
            ]),
            (_, "DAT_QOS") => Set(names![v2:
                DAT_QOS_BEST_EFFORT, DAT_QOS_HIGH_THROUGHPUT, DAT_QOS_LOW_LATENCY, DAT_QOS_ECONOMY,
                DAT_QOS_PREMIUM
            ]),
            (_, "DAT_CLOSE_FLAGS") => Enumeration(names![v2:
                DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_GRACEFUL_FLAG
            ]),
            (_, "DAT_PSP_FLAGS") => Enumeration(names![v2:
                DAT_PSP_CONSUMER_FLAG, DAT_PSP_PROVIDER_FLAG
            ]),
            (Version::V1, "DAT_MEM_TYPE") => Enumeration(names![v1:
                DAT_MEM_TYPE_VIRTUAL, DAT_MEM_TYPE_LMR, DAT_MEM_TYPE_SHARED_VIRTUAL,
                DAT_MEM_TYPE_SO_VIRTUAL
            ]),
            (Version::V2, "DAT_MEM_TYPE") => Enumeration(names![v2:
                DAT_MEM_TYPE_VIRTUAL, DAT_MEM_TYPE_LMR, DAT_MEM_TYPE_SHARED_VIRTUAL
            ]),
            (Version::V1, "DAT_HANDLE_TYPE") => Enumeration(names![v1:
                DAT_HANDLE_TYPE_CR, DAT_HANDLE_TYPE_EP, DAT_HANDLE_TYPE_EVD, DAT_HANDLE_TYPE_IA,
                DAT_HANDLE_TYPE_LMR, DAT_HANDLE_TYPE_PSP, DAT_HANDLE_TYPE_PZ, DAT_HANDLE_TYPE_RMR,
                DAT_HANDLE_TYPE_RSP, DAT_HANDLE_TYPE_CNO, DAT_HANDLE_TYPE_SRQ
            ]),
            (Version::V2, "DAT_HANDLE_TYPE") => Enumeration(names![v2:
                DAT_HANDLE_TYPE_CR, DAT_HANDLE_TYPE_EP, DAT_HANDLE_TYPE_EVD, DAT_HANDLE_TYPE_IA,
                DAT_HANDLE_TYPE_LMR, DAT_HANDLE_TYPE_PSP, DAT_HANDLE_TYPE_PZ, DAT_HANDLE_TYPE_RMR,
                DAT_HANDLE_TYPE_RSP, DAT_HANDLE_TYPE_CNO, DAT_HANDLE_TYPE_SRQ, DAT_HANDLE_TYPE_CSP,
                DAT_IB_HANDLE_TYPE_EXT, DAT_IB_HANDLE_TYPE_COLLECTIVE
            ]),
            (_, "DAT_BOOLEAN") => Enumeration(names![v2: DAT_FALSE, DAT_TRUE]),
            (Version::V1, "DAT_EP_STATE") => Enumeration(names![v1:
                DAT_EP_STATE_UNCONNECTED, DAT_EP_STATE_UNCONFIGURED_UNCONNECTED,
                DAT_EP_STATE_RESERVED, DAT_EP_STATE_UNCONFIGURED_RESERVED,
                DAT_EP_STATE_PASSIVE_CONNECTION_PENDING, DAT_EP_STATE_UNCONFIGURED_PASSIVE,
                DAT_EP_STATE_ACTIVE_CONNECTION_PENDING, DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
                DAT_EP_STATE_UNCONFIGURED_TENTATIVE, DAT_EP_STATE_CONNECTED,
                DAT_EP_STATE_DISCONNECT_PENDING, DAT_EP_STATE_DISCONNECTED,
                DAT_EP_STATE_COMPLETION_PENDING
            ]),
            (Version::V2, "DAT_EP_STATE") => Enumeration(names![v2:
                DAT_EP_STATE_UNCONNECTED, DAT_EP_STATE_UNCONFIGURED_UNCONNECTED,
                DAT_EP_STATE_RESERVED, DAT_EP_STATE_UNCONFIGURED_RESERVED,
                DAT_EP_STATE_PASSIVE_CONNECTION_PENDING, DAT_EP_STATE_UNCONFIGURED_PASSIVE,
                DAT_EP_STATE_ACTIVE_CONNECTION_PENDING, DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
                DAT_EP_STATE_UNCONFIGURED_TENTATIVE, DAT_EP_STATE_CONNECTED,
                DAT_EP_STATE_DISCONNECT_PENDING, DAT_EP_STATE_DISCONNECTED,
                DAT_EP_STATE_COMPLETION_PENDING, DAT_EP_STATE_CONNECTED_SINGLE_PATH,
                DAT_EP_STATE_CONNECTED_MULTI_PATH
            ]),
            (Version::V1, "DAT_SRQ_STATE") => Enumeration(names![v1:
                DAT_SRQ_STATE_OPERATIONAL, DAT_SRQ_STATE_ERROR
            ]),
            (Version::V2, "DAT_SRQ_STATE") => Enumeration(names![v2:
                DAT_SRQ_STATE_ERROR, DAT_SRQ_STATE_OPERATIONAL, DAT_SRQ_STATE_SHUTDOWN
            ]),
            (Version::V1, "DAT_SERVICE_TYPE") => Enumeration(names![v1: DAT_SERVICE_TYPE_RC]),
            (Version::V2, "DAT_SERVICE_TYPE") => Enumeration(names![v2:
                DAT_SERVICE_TYPE_RC, DAT_IB_SERVICE_TYPE_UD
            ]),
            (Version::V1, "DAT_DTO_COMPLETION_STATUS") => Enumeration(names![v1:
                DAT_DTO_SUCCESS, DAT_DTO_ERR_FLUSHED, DAT_DTO_ERR_LOCAL_LENGTH,
                DAT_DTO_ERR_LOCAL_EP, DAT_DTO_ERR_LOCAL_PROTECTION, DAT_DTO_ERR_BAD_RESPONSE,
                DAT_DTO_ERR_REMOTE_ACCESS, DAT_DTO_ERR_REMOTE_RESPONDER, DAT_DTO_ERR_TRANSPORT,
                DAT_DTO_ERR_RECEIVER_NOT_READY, DAT_DTO_ERR_PARTIAL_PACKET, DAT_RMR_OPERATION_FAILED
            ]),
            (Version::V2, "DAT_DTO_COMPLETION_STATUS") => Enumeration(names![v2:
                DAT_DTO_SUCCESS, DAT_DTO_ERR_FLUSHED, DAT_DTO_ERR_LOCAL_LENGTH,
                DAT_DTO_ERR_LOCAL_EP, DAT_DTO_ERR_LOCAL_PROTECTION, DAT_DTO_ERR_BAD_RESPONSE,
                DAT_DTO_ERR_REMOTE_ACCESS, DAT_DTO_ERR_REMOTE_RESPONDER, DAT_DTO_ERR_TRANSPORT,
                DAT_DTO_ERR_RECEIVER_NOT_READY, DAT_DTO_ERR_PARTIAL_PACKET,
                DAT_RMR_OPERATION_FAILED, DAT_DTO_ERR_LOCAL_MM_ERROR
            ]),
            (Version::V1, "DAT_EVENT_NUMBER") => Enumeration(names![v1:
                DAT_DTO_COMPLETION_EVENT, DAT_RMR_BIND_COMPLETION_EVENT,
                DAT_CONNECTION_REQUEST_EVENT, DAT_CONNECTION_EVENT_ESTABLISHED,
                DAT_CONNECTION_EVENT_PEER_REJECTED, DAT_CONNECTION_EVENT_NON_PEER_REJECTED,
                DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR, DAT_CONNECTION_EVENT_DISCONNECTED,
                DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_TIMED_OUT,
                DAT_CONNECTION_EVENT_UNREACHABLE, DAT_ASYNC_ERROR_EVD_OVERFLOW,
                DAT_ASYNC_ERROR_IA_CATASTROPHIC, DAT_ASYNC_ERROR_EP_BROKEN,
                DAT_ASYNC_ERROR_TIMED_OUT, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
                DAT_SOFTWARE_EVENT
            ]),
            (Version::V2, "DAT_EVENT_NUMBER") => Enumeration(names![v2:
                DAT_DTO_COMPLETION_EVENT, DAT_RMR_BIND_COMPLETION_EVENT,
                DAT_CONNECTION_REQUEST_EVENT, DAT_CONNECTION_EVENT_ESTABLISHED,
                DAT_CONNECTION_EVENT_PEER_REJECTED, DAT_CONNECTION_EVENT_NON_PEER_REJECTED,
                DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR, DAT_CONNECTION_EVENT_DISCONNECTED,
                DAT_CONNECTION_EVENT_BROKEN, DAT_CONNECTION_EVENT_TIMED_OUT,
                DAT_CONNECTION_EVENT_UNREACHABLE, DAT_ASYNC_ERROR_EVD_OVERFLOW,
                DAT_ASYNC_ERROR_IA_CATASTROPHIC, DAT_ASYNC_ERROR_EP_BROKEN,
                DAT_ASYNC_ERROR_TIMED_OUT, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
                DAT_SOFTWARE_EVENT, DAT_HA_DOWN_TO_1, DAT_HA_UP_TO_MULTI_PATH, DAT_EXTENSION_EVENT,
                DAT_IB_DTO_EVENT, DAT_IB_UD_CONNECTION_REQUEST_EVENT,
                DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED, DAT_IB_UD_CONNECTION_REJECT_EVENT,
                DAT_IB_UD_CONNECTION_ERROR_EVENT, DAT_IB_COLLECTIVE_EVENT
            ]),
            (_, "DAT_EP_CREATOR_FOR_PSP") => Enumeration(names![v2:
                DAT_PSP_CREATES_EP_NEVER, DAT_PSP_CREATES_EP_IFASKED, DAT_PSP_CREATES_EP_ALWAYS
            ]),
            (Version::V1, "DAT_PZ_SUPPORT") => Enumeration(names![v1:
                DAT_PZ_UNIQUE, DAT_PZ_SHAREABLE, DAT_PZ_SAME
            ]),
            (Version::V2, "DAT_PZ_SUPPORT") => Enumeration(names![v2:
                DAT_PZ_UNIQUE, DAT_PZ_SHAREABLE
            ]),
            (_, "DAT_IOV_OWNERSHIP") => Enumeration(names![v2:
                DAT_IOV_CONSUMER, DAT_IOV_PROVIDER_NOMOD, DAT_IOV_PROVIDER_MOD
            ]),
            (_, "DAT_VA_TYPE") => Enumeration(names![v2: DAT_VA_TYPE_VA, DAT_VA_TYPE_ZB]),
            (_, "DAT_RMR_SCOPE") => Enumeration(names![v2:
                DAT_RMR_SCOPE_EP, DAT_RMR_SCOPE_PZ, DAT_RMR_SCOPE_ANY
            ]),
            (_, "DAT_DTOS") => Enumeration(names![v2:
                DAT_DTO_SEND, DAT_DTO_RDMA_WRITE, DAT_DTO_RDMA_READ, DAT_DTO_RECEIVE,
                DAT_DTO_RECEIVE_WITH_INVALIDATE, DAT_DTO_BIND_MW, DAT_DTO_LMR_FMR,
                DAT_DTO_LMR_INVALIDATE, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_DTO_RECV_IMMED,
                DAT_IB_DTO_FETCH_ADD, DAT_IB_DTO_CMP_SWAP, DAT_IB_DTO_RECV_MSG_IMMED,
                DAT_IB_DTO_SEND_UD, DAT_IB_DTO_RECV_UD, DAT_IB_DTO_RECV_UD_IMMED,
                DAT_IB_DTO_COLLECTIVES
            ]),
            (_, "DAT_PROXY_TYPE") => Enumeration(names![v2:
                DAT_PROXY_TYPE_NONE, DAT_PROXY_TYPE_AGENT, DAT_PROXY_TYPE_FD
            ]),
            (_, "DAT_HA_RELATIONSHIP") => Enumeration(names![v2:
                DAT_HA_FALSE, DAT_HA_TRUE, DAT_HA_UNKNOWN, DAT_HA_CONFLICTING
            ]),
            (_, "DAT_EXTENSION") => Enumeration(names![v2:
                DAT_EXTENSION_NONE, DAT_EXTENSION_IB, DAT_EXTENSION_IW, DAT_IB_EXTENSION,
                DAT_IW_EXTENSION
            ]),
            (_, "DAT_EXTENDED_OP") => Enumeration(names![v2:
                DAT_IB_FETCH_AND_ADD_OP, DAT_IB_CMP_AND_SWAP_OP, DAT_IB_RDMA_WRITE_IMMED_OP,
                DAT_IB_UD_SEND_OP, DAT_IB_QUERY_COUNTERS_OP, DAT_IB_PRINT_COUNTERS_OP,
                DAT_IB_COLLECTIVE_CREATE_MEMBER_OP, DAT_IB_COLLECTIVE_FREE_MEMBER_OP,
                DAT_IB_COLLECTIVE_CREATE_GROUP_OP, DAT_IB_COLLECTIVE_FREE_GROUP_OP,
                DAT_IB_COLLECTIVE_SET_CLOCK_OP, DAT_IB_COLLECTIVE_READ_CLOCK_OP,
                DAT_IB_COLLECTIVE_SCATTER_OP, DAT_IB_COLLECTIVE_SCATTERV_OP,
                DAT_IB_COLLECTIVE_GATHER_OP, DAT_IB_COLLECTIVE_GATHERV_OP,
                DAT_IB_COLLECTIVE_ALLGATHER_OP, DAT_IB_COLLECTIVE_ALLGATHERV_OP,
                DAT_IB_COLLECTIVE_ALLTOALL_OP, DAT_IB_COLLECTIVE_ALLTOALLV_OP,
                DAT_IB_COLLECTIVE_REDUCE_OP, DAT_IB_COLLECTIVE_ALLREDUCE_OP,
                DAT_IB_COLLECTIVE_REDUCE_SCATTER_OP, DAT_IB_COLLECTIVE_SCAN_OP,
                DAT_IB_COLLECTIVE_BROADCAST_OP, DAT_IB_COLLECTIVE_BARRIER_OP,
                DAT_IB_START_COUNTERS_OP, DAT_IB_STOP_COUNTERS_OP, DAT_IB_UD_CM_FREE_OP,
                DAT_IB_UD_AH_FREE_OP, DAT_IB_OPEN_QUERY_OP, DAT_IB_CLOSE_QUERY_OP
            ]),
            (_, "DAT_IB_EXT_TYPE") => Enumeration(names![v2:
                DAT_IB_FETCH_AND_ADD, DAT_IB_CMP_AND_SWAP, DAT_IB_RDMA_WRITE_IMMED,
                DAT_IB_RDMA_WRITE_IMMED_DATA, DAT_IB_RECV_IMMED_DATA, DAT_IB_UD_CONNECT_REQUEST,
                DAT_IB_UD_REMOTE_AH, DAT_IB_UD_PASSIVE_REMOTE_AH, DAT_IB_UD_SEND, DAT_IB_UD_RECV,
                DAT_IB_UD_CONNECT_REJECT, DAT_IB_UD_CONNECT_ERROR, DAT_IB_COLLECTIVE_CREATE_STATUS,
                DAT_IB_COLLECTIVE_CREATE_DATA, DAT_IB_COLLECTIVE_CLOCK_SET_STATUS,
                DAT_IB_COLLECTIVE_SCATTER_STATUS, DAT_IB_COLLECTIVE_SCATTERV_STATUS,
                DAT_IB_COLLECTIVE_GATHER_STATUS, DAT_IB_COLLECTIVE_GATHERV_STATUS,
                DAT_IB_COLLECTIVE_ALLGATHER_STATUS, DAT_IB_COLLECTIVE_ALLGATHERV_STATUS,
                DAT_IB_COLLECTIVE_ALLTOALL_STATUS, DAT_IB_COLLECTIVE_ALLTOALLV_STATUS,
                DAT_IB_COLLECTIVE_REDUCE_STATUS, DAT_IB_COLLECTIVE_ALLREDUCE_STATUS,
                DAT_IB_COLLECTIVE_REDUCE_SCATTER_STATUS, DAT_IB_COLLECTIVE_SCAN_STATUS,
                DAT_IB_COLLECTIVE_BROADCAST_STATUS, DAT_IB_COLLECTIVE_BARRIER_STATUS
            ]),
            (_, "DAT_IB_STATUS") => Enumeration(names![v2:
                DAT_OP_SUCCESS, DAT_IB_OP_ERR, DAT_IB_COLL_COMP_ERR
            ]),
            (_, "DAT_IA_COUNTER_TYPE") => Enumeration(names![v2:
                DCNT_IA_CM, DCNT_IA_LNK, DCNT_IA_DIAG
            ]),
            _ => return masks::of(version, kind).map(Set),
        })
    }

    /// The text of a value: its names, or a number where there is none.
    pub fn text(self, value: u64) -> String {
        let (Names::Enumeration(table) | Names::Set(table)) = self;
        if let Some((name, _)) = table.iter().find(|(_, named)| *named == value) {
            return (*name).to_owned();
        }
        match self {
            Names::Enumeration(_) => value.to_string(),
            Names::Set(table) => set(table, value),
        }
    }
}

/// The names of the bits of a value, and the others as a number.
fn set(table: Table, value: u64) -> String {
    let mut rest = value;
    let mut text = Vec::new();
    for (name, bit) in table {
        if bit.count_ones() == 1 && rest & bit != 0 {
            rest &= !bit;
            text.push((*name).to_owned());
        }
    }
    if rest != 0 || text.is_empty() {
        text.push(format!("{rest:#x}"));
    }
    text.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(version: Version, kind: &str, value: u64) -> String {
        Names::of(version, kind).expect("a type").text(value)
    }

    #[test]
    fn values_have_the_names_of_their_version() {
        for (kind, value, v1, v2) in [
            (
                "DAT_SRQ_STATE",
                0,
                "DAT_SRQ_STATE_OPERATIONAL",
                "DAT_SRQ_STATE_ERROR",
            ),
            (
                "DAT_EP_STATE",
                13,
                "13",
                "DAT_EP_STATE_CONNECTED_SINGLE_PATH",
            ),
            (
                "DAT_EP_STATE",
                9,
                "DAT_EP_STATE_CONNECTED",
                "DAT_EP_STATE_CONNECTED",
            ),
            (
                "DAT_EVENT_NUMBER",
                0x4001,
                "DAT_CONNECTION_EVENT_ESTABLISHED",
                "DAT_CONNECTION_EVENT_ESTABLISHED",
            ),
            ("DAT_EVENT_NUMBER", 0x40000, "262144", "DAT_IB_DTO_EVENT"),
            (
                "DAT_EP_PARAM_MASK",
                4,
                "DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR",
                "DAT_EP_FIELD_COMM",
            ),
        ] {
            assert_eq!(text(Version::V1, kind, value), v1);
            assert_eq!(text(Version::V2, kind, value), v2);
        }
    }

    #[test]
    fn sets_are_shown_bit_by_bit() {
        let text = |kind, value| text(Version::V2, kind, value);
        for (kind, value, shown) in [
            ("DAT_COMPLETION_FLAGS", 0, "DAT_COMPLETION_DEFAULT_FLAG"),
            (
                "DAT_COMPLETION_FLAGS",
                3,
                "DAT_COMPLETION_SUPPRESS_FLAG|DAT_COMPLETION_SOLICITED_WAIT_FLAG",
            ),
            (
                "DAT_COMPLETION_FLAGS",
                0x101,
                "DAT_COMPLETION_SUPPRESS_FLAG|0x100",
            ),
            ("DAT_EVD_FLAGS", 0x1f0, "DAT_EVD_DEFAULT_FLAG"),
            ("DAT_EVD_FLAGS", 0, "0x0"),
            ("DAT_MEM_PRIV_FLAGS", 0x33, "DAT_MEM_PRIV_ALL_FLAG"),
            ("DAT_EVD_PARAM_MASK", 0x1f, "DAT_EVD_FIELD_ALL"),
        ] {
            assert_eq!(text(kind, value), shown);
        }
    }
}
