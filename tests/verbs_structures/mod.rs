//! The structures of rdma-core's C interface that the verbs device knows, member by member: what
//! `tests/verbs_layout.rs` compares with the C headers, and `tests/rdma_sys` with the Rust bindings
//! of the crate `rdma-sys`.

/// Calls a macro for each structure, after the `$context` that it is given: the Rust type, the C
/// structure, `whole` or `part`, and the members.
///
/// The first `part` of a structure is compared in its members only, because libraries allocate the
/// rest; a `whole` one also in size and alignment. A member is `ours = theirs`, or a member of a member; where `rdma-sys`
/// names it differently (it has no anonymous unions), that name follows after a slash.
macro_rules! structures {
    ($check:ident, $context:expr) => {
        $check!($context, IbvDevice, ibv_device, part, {
            node_type = node_type,
            transport_type = transport_type,
            name = name,
        });
        $check!($context, ContextOps, ibv_context_ops, whole, {
            alloc_mw = alloc_mw,
            bind_mw = bind_mw,
            dealloc_mw = dealloc_mw,
            poll_cq = poll_cq,
            req_notify_cq = req_notify_cq,
            post_srq_recv = post_srq_recv,
            post_send = post_send,
            post_recv = post_recv,
        });
        $check!($context, Context, ibv_context, part, {
            device = device,
            ops = ops,
            cmd_fd = cmd_fd,
            async_fd = async_fd,
        });
        $check!($context, DeviceAttr, ibv_device_attr, whole, {
            max_mr_size = max_mr_size,
            vendor_id = vendor_id,
            vendor_part_id = vendor_part_id,
            max_qp = max_qp,
            max_qp_wr = max_qp_wr,
            device_cap_flags = device_cap_flags,
            max_sge = max_sge,
            max_sge_rd = max_sge_rd,
            max_cq = max_cq,
            max_cqe = max_cqe,
            max_mr = max_mr,
            max_pd = max_pd,
            max_qp_rd_atom = max_qp_rd_atom,
            max_qp_init_rd_atom = max_qp_init_rd_atom,
            atomic_cap = atomic_cap,
            max_mw = max_mw,
            max_srq = max_srq,
            max_srq_wr = max_srq_wr,
            max_srq_sge = max_srq_sge,
            phys_port_cnt = phys_port_cnt,
        });
        $check!($context, PortAttr, ibv_port_attr, whole, {
            active_mtu = active_mtu,
            gid_tbl_len = gid_tbl_len,
            lid = lid,
            max_msg_sz = max_msg_sz,
            link_layer = link_layer,
            flags = flags,
            port_cap_flags2 = port_cap_flags2,
        });
        $check!($context, Mr, ibv_mr, whole, {
            context = context,
            pd = pd,
            addr = addr,
            length = length,
            handle = handle,
            lkey = lkey,
            rkey = rkey,
        });
        $check!($context, Mw, ibv_mw, whole, {
            context = context,
            pd = pd,
            rkey = rkey,
            handle = handle,
            kind = type / type_,
        });
        $check!($context, MwBindInfo, ibv_mw_bind_info, whole, {
            mr = mr,
            addr = addr,
            length = length,
            access = mw_access_flags,
        });
        $check!($context, MwBind, ibv_mw_bind, whole, {
            wr_id = wr_id,
            send_flags = send_flags,
            info = bind_info,
        });
        $check!($context, Wc, ibv_wc, whole, {
            wr_id = wr_id,
            status = status,
            opcode = opcode,
            byte_len = byte_len,
            imm_or_key = invalidated_rkey / imm_data_invalidated_rkey_union.invalidated_rkey,
            imm_or_key = imm_data / imm_data_invalidated_rkey_union.imm_data,
            qp_num = qp_num,
            wc_flags = wc_flags,
        });
        $check!($context, Cq, ibv_cq, part, {
            context = context,
            channel = channel,
            cq_context = cq_context,
            cqe = cqe,
        });
        $check!($context, Channel, ibv_comp_channel, whole, {
            fd = fd,
        });
        $check!($context, Srq, ibv_srq, part, {
            context = context,
            srq_context = srq_context,
        });
        $check!($context, SrqAttr, ibv_srq_attr, whole, {
            max_wr = max_wr,
            max_sge = max_sge,
            srq_limit = srq_limit,
        });
        $check!($context, SrqInitAttr, ibv_srq_init_attr, whole, {
            srq_context = srq_context,
            attr = attr,
        });
        $check!($context, QpCap, ibv_qp_cap, whole, {
            max_send_wr = max_send_wr,
            max_recv_wr = max_recv_wr,
            max_send_sge = max_send_sge,
            max_recv_sge = max_recv_sge,
            max_inline_data = max_inline_data,
        });
        $check!($context, QpInitAttr, ibv_qp_init_attr, whole, {
            qp_context = qp_context,
            send_cq = send_cq,
            recv_cq = recv_cq,
            srq = srq,
            cap = cap,
            qp_type = qp_type,
            sq_sig_all = sq_sig_all,
        });
        $check!($context, AhAttr, ibv_ah_attr, whole, {
            dgid = grh.dgid,
            flow_label = grh.flow_label,
            sgid_index = grh.sgid_index,
            hop_limit = grh.hop_limit,
            traffic_class = grh.traffic_class,
            dlid = dlid,
            sl = sl,
            src_path_bits = src_path_bits,
            static_rate = static_rate,
            is_global = is_global,
            port_num = port_num,
        });
        $check!($context, GidEntry, ibv_gid_entry, whole, {
            gid = gid,
            gid_index = gid_index,
            port_num = port_num,
            gid_type = gid_type,
            ndev_ifindex = ndev_ifindex,
        });
        $check!($context, QpAttr, ibv_qp_attr, whole, {
            qp_state = qp_state,
            qkey = qkey,
            sq_psn = sq_psn,
            qp_access_flags = qp_access_flags,
            pkey_index = pkey_index,
            max_rd_atomic = max_rd_atomic,
            max_dest_rd_atomic = max_dest_rd_atomic,
            min_rnr_timer = min_rnr_timer,
            port_num = port_num,
            rate_limit = rate_limit,
        });
        $check!($context, Qp, ibv_qp, part, {
            context = context,
            qp_context = qp_context,
            pd = pd,
            qp_num = qp_num,
        });
        $check!($context, SendWr, ibv_send_wr, whole, {
            wr_id = wr_id,
            next = next,
            sg_list = sg_list,
            num_sge = num_sge,
            opcode = opcode,
            send_flags = send_flags,
            imm_or_key = invalidate_rkey / imm_data_invalidated_rkey_union.invalidated_rkey,
            imm_or_key = imm_data / imm_data_invalidated_rkey_union.imm_data,
            wr = wr,
            wr.rdma.remote_addr = wr.rdma.remote_addr,
            wr.rdma.rkey = wr.rdma.rkey,
            wr.atomic.remote_addr = wr.atomic.remote_addr,
            wr.atomic.compare_add = wr.atomic.compare_add,
            wr.atomic.swap = wr.atomic.swap,
            wr.atomic.rkey = wr.atomic.rkey,
            wr.ud.ah = wr.ud.ah,
            wr.ud.remote_qpn = wr.ud.remote_qpn,
            wr.ud.remote_qkey = wr.ud.remote_qkey,
            mw = bind_mw.mw / bind_mw_tso_union.bind_mw.mw,
            mw_rkey = bind_mw.rkey / bind_mw_tso_union.bind_mw.rkey,
            bind_info = bind_mw.bind_info / bind_mw_tso_union.bind_mw.bind_info,
        });
        $check!($context, RecvWr, ibv_recv_wr, whole, {
            wr_id = wr_id,
            next = next,
            sg_list = sg_list,
            num_sge = num_sge,
        });
        $check!($context, Sge, ibv_sge, whole, {
            addr = addr,
            len = length,
            lkey = lkey,
        });
        $check!($context, AsyncEvent, ibv_async_event, whole, {
            element = element,
            event_type = event_type,
        });
        $check!($context, EventChannel, rdma_event_channel, whole, {
            fd = fd,
        });
        $check!($context, CmId, rdma_cm_id, part, {
            verbs = verbs,
            channel = channel,
            context = context,
            qp = qp,
            route.src_addr = route.addr.src_storage / route.addr.src_addr_union.src_storage,
            route.dst_addr = route.addr.dst_storage / route.addr.dst_addr_union.dst_storage,
            route.ibaddr = route.addr.addr.ibaddr,
            route.path_rec = route.path_rec,
            route.num_paths = route.num_paths,
            ps = ps,
            port_num = port_num,
        });
        $check!($context, ConnParam, rdma_conn_param, whole, {
            private_data = private_data,
            private_data_len = private_data_len,
            responder_resources = responder_resources,
            initiator_depth = initiator_depth,
            flow_control = flow_control,
            retry_count = retry_count,
            rnr_retry_count = rnr_retry_count,
            srq = srq,
            qp_num = qp_num,
        });
        $check!($context, UdParam, rdma_ud_param, whole, {
            private_data = private_data,
            private_data_len = private_data_len,
            ah_attr = ah_attr,
            qp_num = qp_num,
            qkey = qkey,
        });
        $check!($context, CmEvent, rdma_cm_event, whole, {
            id = id,
            listen_id = listen_id,
            event = event,
            status = status,
            param.conn = param.conn,
            param.ud = param.ud,
        });
    };
}
pub(crate) use structures;
