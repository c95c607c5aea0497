//! The layouts and values that the verbs device has of rdma-core's C interface, compared with its
//! headers by a C compiler.
//!
//! Needs libibverbs-dev and librdmacm-dev. Without them the test is skipped, unless
//! `DAT_CHECK_VERBS=1` asks for it.

#[path = "common/rdma_core.rs"]
mod rdma_core;
#[path = "common/skip.rs"]
mod skip;

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::process::{Command, Stdio};

use dat_core::device::verbs::sys::*;

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

/// A structure: `whole` is compared in size too, the first part of one only in its members.
macro_rules! layout {
    ($program:ident, $ty:ty, $c:literal, $whole:literal, $($field:tt $(. $sub:tt)* = $member:literal),* $(,)?) => {
        if $whole {
            $program.assert(concat!("sizeof(", $c, ")"), size_of::<$ty>() as i64);
            $program.assert(concat!("_Alignof(", $c, ")"), align_of::<$ty>() as i64);
        }
        $($program.assert(
            concat!("offsetof(", $c, ", ", $member, ")"),
            offset_of!($ty, $field $(. $sub)*) as i64,
        );)*
    };
}

macro_rules! values {
    ($program:ident, $($name:ident = $c:literal),* $(,)?) => {
        $($program.assert($c, i64::from($name));)*
    };
}

fn structures(p: &mut Program) {
    layout!(
        p,
        IbvDevice,
        "struct ibv_device",
        false,
        node_type = "node_type",
        transport_type = "transport_type",
        name = "name"
    );
    layout!(
        p,
        ContextOps,
        "struct ibv_context_ops",
        true,
        alloc_mw = "alloc_mw",
        bind_mw = "bind_mw",
        dealloc_mw = "dealloc_mw",
        poll_cq = "poll_cq",
        req_notify_cq = "req_notify_cq",
        post_srq_recv = "post_srq_recv",
        post_send = "post_send",
        post_recv = "post_recv"
    );
    layout!(
        p,
        Context,
        "struct ibv_context",
        false,
        device = "device",
        ops = "ops",
        cmd_fd = "cmd_fd",
        async_fd = "async_fd"
    );
    layout!(
        p,
        DeviceAttr,
        "struct ibv_device_attr",
        true,
        max_mr_size = "max_mr_size",
        vendor_id = "vendor_id",
        vendor_part_id = "vendor_part_id",
        max_qp = "max_qp",
        max_qp_wr = "max_qp_wr",
        device_cap_flags = "device_cap_flags",
        max_sge = "max_sge",
        max_sge_rd = "max_sge_rd",
        max_cq = "max_cq",
        max_cqe = "max_cqe",
        max_mr = "max_mr",
        max_pd = "max_pd",
        max_qp_rd_atom = "max_qp_rd_atom",
        max_qp_init_rd_atom = "max_qp_init_rd_atom",
        max_mw = "max_mw",
        max_srq = "max_srq",
        max_srq_wr = "max_srq_wr",
        max_srq_sge = "max_srq_sge",
        phys_port_cnt = "phys_port_cnt"
    );
    layout!(
        p,
        PortAttr,
        "struct ibv_port_attr",
        true,
        active_mtu = "active_mtu",
        max_msg_sz = "max_msg_sz",
        link_layer = "link_layer",
        flags = "flags",
        port_cap_flags2 = "port_cap_flags2"
    );
    layout!(
        p,
        Mr,
        "struct ibv_mr",
        true,
        context = "context",
        pd = "pd",
        addr = "addr",
        length = "length",
        handle = "handle",
        lkey = "lkey",
        rkey = "rkey"
    );
    layout!(
        p,
        Mw,
        "struct ibv_mw",
        true,
        context = "context",
        pd = "pd",
        rkey = "rkey",
        handle = "handle",
        kind = "type"
    );
    layout!(
        p,
        MwBindInfo,
        "struct ibv_mw_bind_info",
        true,
        mr = "mr",
        addr = "addr",
        length = "length",
        access = "mw_access_flags"
    );
    layout!(
        p,
        MwBind,
        "struct ibv_mw_bind",
        true,
        wr_id = "wr_id",
        send_flags = "send_flags",
        info = "bind_info"
    );
    layout!(
        p,
        Wc,
        "struct ibv_wc",
        true,
        wr_id = "wr_id",
        status = "status",
        opcode = "opcode",
        byte_len = "byte_len",
        invalidated_rkey = "invalidated_rkey",
        qp_num = "qp_num",
        wc_flags = "wc_flags"
    );
    layout!(
        p,
        Cq,
        "struct ibv_cq",
        false,
        context = "context",
        channel = "channel",
        cq_context = "cq_context",
        cqe = "cqe"
    );
    layout!(p, Channel, "struct ibv_comp_channel", true, fd = "fd");
    layout!(
        p,
        Srq,
        "struct ibv_srq",
        false,
        context = "context",
        srq_context = "srq_context"
    );
    layout!(
        p,
        SrqAttr,
        "struct ibv_srq_attr",
        true,
        max_wr = "max_wr",
        max_sge = "max_sge",
        srq_limit = "srq_limit"
    );
    layout!(
        p,
        SrqInitAttr,
        "struct ibv_srq_init_attr",
        true,
        srq_context = "srq_context",
        attr = "attr"
    );
    layout!(
        p,
        QpCap,
        "struct ibv_qp_cap",
        true,
        max_send_wr = "max_send_wr",
        max_recv_wr = "max_recv_wr",
        max_send_sge = "max_send_sge",
        max_recv_sge = "max_recv_sge",
        max_inline_data = "max_inline_data"
    );
    layout!(
        p,
        QpInitAttr,
        "struct ibv_qp_init_attr",
        true,
        qp_context = "qp_context",
        send_cq = "send_cq",
        recv_cq = "recv_cq",
        srq = "srq",
        cap = "cap",
        qp_type = "qp_type",
        sq_sig_all = "sq_sig_all"
    );
    layout!(
        p,
        AhAttr,
        "struct ibv_ah_attr",
        true,
        port_num = "port_num",
        dlid = "dlid"
    );
    layout!(
        p,
        QpAttr,
        "struct ibv_qp_attr",
        true,
        qp_state = "qp_state",
        qp_access_flags = "qp_access_flags",
        pkey_index = "pkey_index",
        max_rd_atomic = "max_rd_atomic",
        max_dest_rd_atomic = "max_dest_rd_atomic",
        min_rnr_timer = "min_rnr_timer",
        port_num = "port_num",
        rate_limit = "rate_limit"
    );
    layout!(
        p,
        Qp,
        "struct ibv_qp",
        false,
        context = "context",
        qp_context = "qp_context",
        pd = "pd",
        qp_num = "qp_num"
    );
    layout!(
        p,
        SendWr,
        "struct ibv_send_wr",
        true,
        wr_id = "wr_id",
        next = "next",
        sg_list = "sg_list",
        num_sge = "num_sge",
        opcode = "opcode",
        send_flags = "send_flags",
        invalidate_rkey = "invalidate_rkey",
        remote_addr = "wr.rdma.remote_addr",
        rkey = "wr.rdma.rkey",
        mw = "bind_mw.mw",
        mw_rkey = "bind_mw.rkey",
        bind_info = "bind_mw.bind_info"
    );
    layout!(
        p,
        RecvWr,
        "struct ibv_recv_wr",
        true,
        wr_id = "wr_id",
        next = "next",
        sg_list = "sg_list",
        num_sge = "num_sge"
    );
    layout!(
        p,
        dat_core::device::Sge,
        "struct ibv_sge",
        true,
        addr = "addr",
        len = "length",
        lkey = "lkey"
    );
    layout!(
        p,
        AsyncEvent,
        "struct ibv_async_event",
        true,
        element = "element",
        event_type = "event_type"
    );
    layout!(
        p,
        EventChannel,
        "struct rdma_event_channel",
        true,
        fd = "fd"
    );
    layout!(
        p,
        CmId,
        "struct rdma_cm_id",
        false,
        verbs = "verbs",
        channel = "channel",
        context = "context",
        qp = "qp",
        src_addr = "route.addr.src_storage",
        dst_addr = "route.addr.dst_storage",
        num_paths = "route.num_paths",
        ps = "ps",
        port_num = "port_num"
    );
    layout!(
        p,
        ConnParam,
        "struct rdma_conn_param",
        true,
        private_data = "private_data",
        private_data_len = "private_data_len",
        responder_resources = "responder_resources",
        initiator_depth = "initiator_depth",
        flow_control = "flow_control",
        retry_count = "retry_count",
        rnr_retry_count = "rnr_retry_count",
        srq = "srq",
        qp_num = "qp_num"
    );
    layout!(
        p,
        CmEvent,
        "struct rdma_cm_event",
        true,
        id = "id",
        listen_id = "listen_id",
        event = "event",
        status = "status",
        conn = "param.conn"
    );
}

fn constants(p: &mut Program) {
    values!(
        p,
        TRANSPORT_IB = "IBV_TRANSPORT_IB",
        TRANSPORT_IWARP = "IBV_TRANSPORT_IWARP",
        DEVICE_MEM_WINDOW = "IBV_DEVICE_MEM_WINDOW",
        DEVICE_MEM_WINDOW_TYPE_2A = "IBV_DEVICE_MEM_WINDOW_TYPE_2A",
        DEVICE_MEM_WINDOW_TYPE_2B = "IBV_DEVICE_MEM_WINDOW_TYPE_2B",
        LINK_LAYER_INFINIBAND = "IBV_LINK_LAYER_INFINIBAND",
        ACCESS_LOCAL_WRITE = "IBV_ACCESS_LOCAL_WRITE",
        ACCESS_REMOTE_WRITE = "IBV_ACCESS_REMOTE_WRITE",
        ACCESS_REMOTE_READ = "IBV_ACCESS_REMOTE_READ",
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
        WC_WITH_INV = "IBV_WC_WITH_INV",
        SRQ_MAX_WR = "IBV_SRQ_MAX_WR",
        SRQ_LIMIT = "IBV_SRQ_LIMIT",
        QPT_RC = "IBV_QPT_RC",
        QP_STATE = "IBV_QP_STATE",
        QP_ACCESS_FLAGS = "IBV_QP_ACCESS_FLAGS",
        QP_PKEY_INDEX = "IBV_QP_PKEY_INDEX",
        QP_PORT = "IBV_QP_PORT",
        QP_MIN_RNR_TIMER = "IBV_QP_MIN_RNR_TIMER",
        QPS_INIT = "IBV_QPS_INIT",
        QPS_RTR = "IBV_QPS_RTR",
        QPS_RTS = "IBV_QPS_RTS",
        QPS_ERR = "IBV_QPS_ERR",
        WR_RDMA_WRITE = "IBV_WR_RDMA_WRITE",
        WR_SEND = "IBV_WR_SEND",
        WR_RDMA_READ = "IBV_WR_RDMA_READ",
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
    let mut cc = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-x", "c", "-"])
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
