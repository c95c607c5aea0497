//! The layouts and values that the verbs device has of rdma-core's C interface, compared with its
//! headers by a C compiler.
//!
//! Needs libibverbs-dev and librdmacm-dev. Without them the test is skipped, unless
//! `DAT_CHECK_VERBS=1` asks for it. `CC` is the compiler of the target if that is not this machine's.

#[path = "common/rdma_core.rs"]
mod rdma_core;
#[path = "common/skip.rs"]
mod skip;

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::process::{Command, Stdio};

mod verbs_structures;

use dat_core::testing::device::Sge;
use dat_core::testing::device::verbs::sys::*;
use verbs_structures::structures;

/// One assertion a line.
struct Program(String);

impl Program {
    fn assert(&mut self, left: &str, right: i64) {
        writeln!(
            self.0,
            "_Static_assert(({left}) == {right}, \"{left} is not {right}\");"
        )
        .unwrap();
    }
}

/// What is asserted of a structure: see [`structures`].
macro_rules! layout {
    ($program:expr, $ty:ty, $c:ident, whole, $members:tt) => {
        let name = concat!("struct ", stringify!($c));
        $program.assert(&format!("sizeof({name})"), size_of::<$ty>() as i64);
        $program.assert(&format!("_Alignof({name})"), align_of::<$ty>() as i64);
        layout!($program, $ty, $c, part, $members);
    };
    ($program:expr, $ty:ty, $c:ident, part,
     { $($($field:ident).+ = $($member:tt).+ $(/ $($_rust:tt).+)?,)+ }) => {
        $($program.assert(
            concat!("offsetof(struct ", stringify!($c), ", ", stringify!($($member).+), ")"),
            offset_of!($ty, $($field).+) as i64,
        );)+
    };
}

macro_rules! values {
    ($program:ident, $($name:ident = $c:literal),* $(,)?) => {
        $($program.assert($c, i64::from($name));)*
    };
}

fn structures(p: &mut Program) {
    structures!(layout, p);
}

fn constants(p: &mut Program) {
    values!(
        p,
        TRANSPORT_IB = "IBV_TRANSPORT_IB",
        TRANSPORT_IWARP = "IBV_TRANSPORT_IWARP",
        ATOMIC_NONE = "IBV_ATOMIC_NONE",
        DEVICE_MEM_WINDOW = "IBV_DEVICE_MEM_WINDOW",
        DEVICE_MEM_WINDOW_TYPE_2A = "IBV_DEVICE_MEM_WINDOW_TYPE_2A",
        DEVICE_MEM_WINDOW_TYPE_2B = "IBV_DEVICE_MEM_WINDOW_TYPE_2B",
        PORT_NOP = "IBV_PORT_NOP",
        PORT_DOWN = "IBV_PORT_DOWN",
        PORT_INIT = "IBV_PORT_INIT",
        PORT_ARMED = "IBV_PORT_ARMED",
        PORT_ACTIVE = "IBV_PORT_ACTIVE",
        PORT_ACTIVE_DEFER = "IBV_PORT_ACTIVE_DEFER",
        LINK_LAYER_INFINIBAND = "IBV_LINK_LAYER_INFINIBAND",
        ACCESS_LOCAL_WRITE = "IBV_ACCESS_LOCAL_WRITE",
        ACCESS_REMOTE_WRITE = "IBV_ACCESS_REMOTE_WRITE",
        ACCESS_REMOTE_READ = "IBV_ACCESS_REMOTE_READ",
        ACCESS_REMOTE_ATOMIC = "IBV_ACCESS_REMOTE_ATOMIC",
        ACCESS_MW_BIND = "IBV_ACCESS_MW_BIND",
        MW_TYPE_1 = "IBV_MW_TYPE_1",
        MW_TYPE_2 = "IBV_MW_TYPE_2",
        WC_SUCCESS = "IBV_WC_SUCCESS",
        WC_LOC_LEN_ERR = "IBV_WC_LOC_LEN_ERR",
        WC_LOC_QP_OP_ERR = "IBV_WC_LOC_QP_OP_ERR",
        WC_LOC_PROT_ERR = "IBV_WC_LOC_PROT_ERR",
        WC_WR_FLUSH_ERR = "IBV_WC_WR_FLUSH_ERR",
        WC_MW_BIND_ERR = "IBV_WC_MW_BIND_ERR",
        WC_BAD_RESP_ERR = "IBV_WC_BAD_RESP_ERR",
        WC_LOC_ACCESS_ERR = "IBV_WC_LOC_ACCESS_ERR",
        WC_REM_INV_REQ_ERR = "IBV_WC_REM_INV_REQ_ERR",
        WC_REM_ACCESS_ERR = "IBV_WC_REM_ACCESS_ERR",
        WC_REM_OP_ERR = "IBV_WC_REM_OP_ERR",
        WC_RETRY_EXC_ERR = "IBV_WC_RETRY_EXC_ERR",
        WC_RNR_RETRY_EXC_ERR = "IBV_WC_RNR_RETRY_EXC_ERR",
        WC_REM_ABORT_ERR = "IBV_WC_REM_ABORT_ERR",
        WC_RESP_TIMEOUT_ERR = "IBV_WC_RESP_TIMEOUT_ERR",
        WC_RECV_RDMA_WITH_IMM = "IBV_WC_RECV_RDMA_WITH_IMM",
        WC_WITH_IMM = "IBV_WC_WITH_IMM",
        WC_WITH_INV = "IBV_WC_WITH_INV",
        SRQ_MAX_WR = "IBV_SRQ_MAX_WR",
        SRQ_LIMIT = "IBV_SRQ_LIMIT",
        QPT_RC = "IBV_QPT_RC",
        QPT_UD = "IBV_QPT_UD",
        QP_STATE = "IBV_QP_STATE",
        QP_CUR_STATE = "IBV_QP_CUR_STATE",
        QP_ACCESS_FLAGS = "IBV_QP_ACCESS_FLAGS",
        QP_PKEY_INDEX = "IBV_QP_PKEY_INDEX",
        QP_PORT = "IBV_QP_PORT",
        QP_QKEY = "IBV_QP_QKEY",
        QP_MAX_QP_RD_ATOMIC = "IBV_QP_MAX_QP_RD_ATOMIC",
        QP_MIN_RNR_TIMER = "IBV_QP_MIN_RNR_TIMER",
        QP_SQ_PSN = "IBV_QP_SQ_PSN",
        GID_TYPE_ROCE_V2 = "IBV_GID_TYPE_ROCE_V2",
        QPS_RESET = "IBV_QPS_RESET",
        QPS_INIT = "IBV_QPS_INIT",
        QPS_RTR = "IBV_QPS_RTR",
        QPS_RTS = "IBV_QPS_RTS",
        QPS_SQE = "IBV_QPS_SQE",
        QPS_ERR = "IBV_QPS_ERR",
        WR_RDMA_WRITE = "IBV_WR_RDMA_WRITE",
        WR_RDMA_WRITE_WITH_IMM = "IBV_WR_RDMA_WRITE_WITH_IMM",
        WR_SEND = "IBV_WR_SEND",
        WR_RDMA_READ = "IBV_WR_RDMA_READ",
        WR_ATOMIC_CMP_AND_SWP = "IBV_WR_ATOMIC_CMP_AND_SWP",
        WR_ATOMIC_FETCH_AND_ADD = "IBV_WR_ATOMIC_FETCH_AND_ADD",
        WR_BIND_MW = "IBV_WR_BIND_MW",
        WR_SEND_WITH_INV = "IBV_WR_SEND_WITH_INV",
        SEND_FENCE = "IBV_SEND_FENCE",
        SEND_SIGNALED = "IBV_SEND_SIGNALED",
        SEND_SOLICITED = "IBV_SEND_SOLICITED",
        SEND_INLINE = "IBV_SEND_INLINE",
        EVENT_CQ_ERR = "IBV_EVENT_CQ_ERR",
        EVENT_QP_FATAL = "IBV_EVENT_QP_FATAL",
        EVENT_QP_REQ_ERR = "IBV_EVENT_QP_REQ_ERR",
        EVENT_QP_ACCESS_ERR = "IBV_EVENT_QP_ACCESS_ERR",
        EVENT_COMM_EST = "IBV_EVENT_COMM_EST",
        EVENT_DEVICE_FATAL = "IBV_EVENT_DEVICE_FATAL",
        EVENT_SRQ_ERR = "IBV_EVENT_SRQ_ERR",
        EVENT_SRQ_LIMIT_REACHED = "IBV_EVENT_SRQ_LIMIT_REACHED",
        EVENT_QP_LAST_WQE_REACHED = "IBV_EVENT_QP_LAST_WQE_REACHED",
        PS_TCP = "RDMA_PS_TCP",
        PS_UDP = "RDMA_PS_UDP",
        UDP_QKEY = "RDMA_UDP_QKEY",
        CM_ADDR_RESOLVED = "RDMA_CM_EVENT_ADDR_RESOLVED",
        CM_ADDR_ERROR = "RDMA_CM_EVENT_ADDR_ERROR",
        CM_ROUTE_RESOLVED = "RDMA_CM_EVENT_ROUTE_RESOLVED",
        CM_ROUTE_ERROR = "RDMA_CM_EVENT_ROUTE_ERROR",
        CM_CONNECT_REQUEST = "RDMA_CM_EVENT_CONNECT_REQUEST",
        CM_CONNECT_RESPONSE = "RDMA_CM_EVENT_CONNECT_RESPONSE",
        CM_CONNECT_ERROR = "RDMA_CM_EVENT_CONNECT_ERROR",
        CM_UNREACHABLE = "RDMA_CM_EVENT_UNREACHABLE",
        CM_REJECTED = "RDMA_CM_EVENT_REJECTED",
        CM_ESTABLISHED = "RDMA_CM_EVENT_ESTABLISHED",
        CM_DISCONNECTED = "RDMA_CM_EVENT_DISCONNECTED",
        CM_DEVICE_REMOVAL = "RDMA_CM_EVENT_DEVICE_REMOVAL",
    );
}

#[test]
fn rdma_cores_headers_agree() {
    if !rdma_core::is_installed() {
        return;
    }
    let mut program = Program(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n".into(),
    );
    structures(&mut program);
    constants(&mut program);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut cc = Command::new(compiler)
        // Compilers for other targets do not look where the headers of rdma-core, which are the same
        // for all, are installed.
        .args([
            "-std=c11",
            "-fsyntax-only",
            "-idirafter",
            "/usr/include",
            "-x",
            "c",
            "-",
        ])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let mut input = cc.stdin.take().unwrap();
    input.write_all(program.0.as_bytes()).unwrap();
    drop(input);
    let output = cc.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
}
