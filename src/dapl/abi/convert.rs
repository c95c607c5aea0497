//! The conversions whose source is the same for both versions, although the layouts differ.

/// Implements the parts of [`super::Abi`] that differ only in the module of the C types.
///
/// Lengths have 64 bits in DAT 1.2 and 32 in 2.0 (`as _`): the values of devices and of checked
/// attributes fit into both.
macro_rules! common_conversions {
    ($c:ident) => {
        type LmrTriplet = $c::DAT_LMR_TRIPLET;
        type RmrTriplet = $c::DAT_RMR_TRIPLET;
        type Event = $c::DAT_EVENT;
        type EpAttr = $c::DAT_EP_ATTR;
        type EpParam = $c::DAT_EP_PARAM;
        type LmrParam = $c::DAT_LMR_PARAM;
        type RmrParam = $c::DAT_RMR_PARAM;
        type IaAttr = $c::DAT_IA_ATTR;
        type ProviderAttr = $c::DAT_PROVIDER_ATTR;
        type CnoParam = $c::DAT_CNO_PARAM;

        const MAJOR: u32 = $c::DAT_VERSION_MAJOR;
        const MINOR: u32 = $c::DAT_VERSION_MINOR;
        const IA_FIELDS: u64 = $c::DAT_IA_FIELD_ALL;
        const EP_FIELDS: u64 = $c::DAT_EP_FIELD_ALL;
        const LMR_FIELDS: u32 = $c::DAT_LMR_FIELD_ALL;
        const RMR_FIELDS: u32 = $c::DAT_RMR_FIELD_ALL;
        const SRQ_OPERATIONAL: DAT_SRQ_STATE = $c::DAT_SRQ_STATE_OPERATIONAL;

        #[inline]
        fn event_number(event: &Self::Event) -> DAT_EVENT_NUMBER {
            event.event_number
        }

        fn lmr_range(triplet: &Self::LmrTriplet) -> LmrRange {
            LmrRange {
                addr: triplet.virtual_address,
                len: triplet.segment_length.into(),
                lmr_context: triplet.lmr_context,
            }
        }

        #[inline]
        fn sge(triplet: &Self::LmrTriplet) -> Result<Sge> {
            // Programs fill a triplet just before they post it, member by member. A load of two members
            // at once would wait until both stores have left the store buffer of the processor, so each
            // is loaded by itself: volatile loads are not merged.
            // SAFETY: members of a structure that is borrowed.
            let (addr, len, lkey) = unsafe {
                (
                    (&raw const triplet.virtual_address).read_volatile(),
                    (&raw const triplet.segment_length).read_volatile(),
                    (&raw const triplet.lmr_context).read_volatile(),
                )
            };
            let len = u32::try_from(len).map_err(|_| Error::arg(Subtype::Arg3))?;
            Ok(Sge { addr, len, lkey })
        }

        #[inline(always)]
        fn completion(
            completion: &Completion,
            evd: DAT_EVD_HANDLE,
            out: &mut MaybeUninit<Self::Event>,
        ) {
            use $c::*;
            let out = out.as_mut_ptr();
            // Members that this kind of event does not have are not written.
            // SAFETY: members of a structure there is room for; a union is written as a whole or
            // through raw pointers.
            unsafe {
                (*out).evd_handle = evd;
                if let WcOp::Bind { context } = completion.op {
                    (*out).event_number = DAT_RMR_BIND_COMPLETION_EVENT;
                    (*out).event_data.rmr_completion_event_data =
                        DAT_RMR_BIND_COMPLETION_EVENT_DATA {
                            rmr_handle: handle(context),
                            user_cookie: DAT_CONTEXT {
                                as_64: completion.wr_id,
                            },
                            status: dto_status(completion.status),
                        };
                } else {
                    dto_event(completion, out);
                }
            }
        }

        fn event(event: &Event, evd: DAT_EVD_HANDLE, out: &mut MaybeUninit<Self::Event>) {
            use $c::*;
            let (number, data) = match *event {
                Event::Completion(ref completion) => return Self::completion(completion, evd, out),
                Event::Request {
                    sp,
                    local_address,
                    conn_qual,
                    cr,
                    datagrams: _,
                } => (
                    DAT_CONNECTION_REQUEST_EVENT,
                    DAT_EVENT_DATA {
                        cr_arrival_event_data: arrival(sp, local_address, conn_qual, cr),
                    },
                ),
                Event::Connection {
                    number,
                    ep,
                    private_data,
                    private_data_size,
                } => (
                    number,
                    DAT_EVENT_DATA {
                        connect_event_data: DAT_CONNECTION_EVENT_DATA {
                            ep_handle: ep.0,
                            private_data_size: private_data_size as DAT_COUNT,
                            private_data: private_data.0,
                        },
                    },
                ),
                Event::Resolution { number, ep, .. } => (
                    number,
                    DAT_EVENT_DATA {
                        connect_event_data: DAT_CONNECTION_EVENT_DATA {
                            ep_handle: ep.0,
                            private_data_size: 0,
                            private_data: null_mut(),
                        },
                    },
                ),
                Event::Async {
                    number,
                    handle,
                    reason,
                } => (
                    number,
                    DAT_EVENT_DATA {
                        asynch_error_event_data: DAT_ASYNCH_ERROR_EVENT_DATA {
                            dat_handle: handle.0,
                            reason: reason as DAT_COUNT,
                        },
                    },
                ),
                Event::Software(pointer) => (
                    DAT_SOFTWARE_EVENT,
                    DAT_EVENT_DATA {
                        software_event_data: DAT_SOFTWARE_EVENT_DATA { pointer: pointer.0 },
                    },
                ),
            };
            // SAFETY: a C structure of integers, pointers and unions of them: zero is valid.
            let out = out.write(unsafe { std::mem::zeroed() });
            out.event_number = number;
            out.evd_handle = evd;
            out.event_data = data;
        }

        fn software_event(event: &Self::Event) -> (DAT_EVENT_NUMBER, DAT_PVOID) {
            // SAFETY: every bit pattern is a valid pointer value, and it is not followed.
            let pointer = unsafe { event.event_data.software_event_data.pointer };
            (event.event_number, pointer)
        }

        fn ep_attr(attr: &Self::EpAttr) -> EpAttr {
            EpAttr {
                max_message_size: attr.max_message_size.into(),
                max_rdma_size: attr.max_rdma_size.into(),
                qos: attr.qos,
                recv_completion_flags: attr.recv_completion_flags,
                request_completion_flags: attr.request_completion_flags,
                max_recv_dtos: attr.max_recv_dtos,
                max_request_dtos: attr.max_request_dtos,
                max_recv_iov: attr.max_recv_iov,
                max_request_iov: attr.max_request_iov,
                max_rdma_read_in: attr.max_rdma_read_in,
                max_rdma_read_out: attr.max_rdma_read_out,
                srq_soft_hw: attr.srq_soft_hw,
                max_rdma_read_iov: attr.max_rdma_read_iov,
                max_rdma_write_iov: attr.max_rdma_write_iov,
                service_type: service_type(attr.service_type),
            }
        }

        fn ep_param(param: &EpParam) -> Self::EpParam {
            use $c::*;
            // SAFETY: a C structure of integers and pointers: zero is valid.
            let mut out: DAT_EP_PARAM = unsafe { std::mem::zeroed() };
            out.ia_handle = param.ia;
            out.ep_state = param.state;
            out.local_ia_address_ptr = param.local_address;
            out.local_port_qual = param.local_port;
            out.remote_ia_address_ptr = param.remote_address;
            out.remote_port_qual = param.remote_port;
            out.pz_handle = param.pz;
            out.recv_evd_handle = param.recv_evd;
            out.request_evd_handle = param.request_evd;
            out.connect_evd_handle = param.connect_evd;
            out.srq_handle = param.srq;
            let attr = &param.attr;
            out.ep_attr = DAT_EP_ATTR {
                service_type: attr.service_type,
                max_message_size: attr.max_message_size as _,
                max_rdma_size: attr.max_rdma_size as _,
                qos: attr.qos,
                recv_completion_flags: attr.recv_completion_flags,
                request_completion_flags: attr.request_completion_flags,
                max_recv_dtos: attr.max_recv_dtos,
                max_request_dtos: attr.max_request_dtos,
                max_recv_iov: attr.max_recv_iov,
                max_request_iov: attr.max_request_iov,
                max_rdma_read_in: attr.max_rdma_read_in,
                max_rdma_read_out: attr.max_rdma_read_out,
                srq_soft_hw: attr.srq_soft_hw,
                max_rdma_read_iov: attr.max_rdma_read_iov,
                max_rdma_write_iov: attr.max_rdma_write_iov,
                ep_transport_specific_count: 0,
                ep_transport_specific: null_mut(),
                ep_provider_specific_count: 0,
                ep_provider_specific: null_mut(),
            };
            out
        }

        fn ep_change(mask: u64, param: &Self::EpParam) -> EpChange {
            EpChange {
                mask: ep_mask(mask),
                pz: param.pz_handle,
                recv_evd: param.recv_evd_handle,
                request_evd: param.request_evd_handle,
                connect_evd: param.connect_evd_handle,
                attr: Self::ep_attr(&param.ep_attr),
            }
        }

        fn lmr_param(param: &LmrParam) -> Self::LmrParam {
            // SAFETY: a C structure of integers, pointers and a union of them: zero is valid.
            let mut out: $c::DAT_LMR_PARAM = unsafe { std::mem::zeroed() };
            out.ia_handle = param.ia;
            out.mem_type = param.mem_type;
            out.region_desc = param.region;
            out.length = param.length;
            out.pz_handle = param.pz;
            out.mem_priv = param.privileges;
            out.lmr_context = param.lmr_context;
            out.rmr_context = param.rmr_context;
            out.registered_size = param.length;
            out.registered_address = param.registered_address;
            set_va_type(&mut out, param.addressing);
            out
        }

        fn ia_attr(attr: &IaAttr<'_>) -> Self::IaAttr {
            const MAX_ADDRESS: u64 = usize::MAX as u64;
            let device = attr.device;
            let count = |n: u32| DAT_COUNT::try_from(n).unwrap_or(DAT_COUNT::MAX);
            // SAFETY: a C structure of integers and pointers: zero is valid.
            let mut out: $c::DAT_IA_ATTR = unsafe { std::mem::zeroed() };
            fill_name(&mut out.adapter_name, attr.name.to_bytes());
            fill_name(&mut out.vendor_name, device.vendor_name.as_bytes());
            out.ia_address_ptr = attr.address;
            out.max_eps = count(device.max_qp);
            out.max_dto_per_ep = count(device.max_qp_wr);
            out.max_rdma_read_per_ep_in = count(device.max_rd_in);
            out.max_rdma_read_per_ep_out = count(device.max_rd_out);
            out.max_evds = count(device.max_cq);
            out.max_evd_qlen = count(device.max_cqe);
            out.max_iov_segments_per_dto = count(device.max_sge);
            out.max_lmrs = count(device.max_mr);
            out.max_lmr_block_size = device.max_mr_size.try_into().unwrap_or(u32::MAX.into());
            out.max_lmr_virtual_address = MAX_ADDRESS;
            out.max_pzs = count(device.max_pd);
            out.max_message_size = device.max_message_size.into();
            out.max_rdma_size = device.max_rdma_size.into();
            out.max_rmrs = count(device.max_mw);
            out.max_rmr_target_address = if device.max_mw > 0 { MAX_ADDRESS } else { 0 };
            out.max_srqs = count(device.max_srq);
            out.max_ep_per_srq = if device.max_srq > 0 {
                count(device.max_qp)
            } else {
                0
            };
            out.max_recv_per_srq = count(device.max_srq_wr);
            out.max_iov_segments_per_rdma_read = count(device.max_read_sge);
            out.max_iov_segments_per_rdma_write = count(device.max_sge);
            out.max_rdma_read_in = count(device.max_rd_in.saturating_mul(device.max_qp));
            out.max_rdma_read_out = count(device.max_rd_out.saturating_mul(device.max_qp));
            out.max_rdma_read_per_ep_in_guaranteed = DAT_TRUE;
            out.max_rdma_read_per_ep_out_guaranteed = DAT_TRUE;
            set_extensions(&mut out, attr.extensions);
            set_zero_based(&mut out, device.zero_based);
            out.num_transport_attr = attr.transport.len() as DAT_COUNT;
            out.transport_attr = attr.transport.cast_mut().cast();
            out
        }

        fn provider_attr(
            name: &str,
            device: &DeviceAttr,
            named: *const [DAT_NAMED_ATTR],
            says_thread_safe: bool,
        ) -> Self::ProviderAttr {
            use $c::*;
            // SAFETY: a C structure of integers and pointers: zero is valid.
            let mut out: DAT_PROVIDER_ATTR = unsafe { std::mem::zeroed() };
            fill_name(&mut out.provider_name, name.as_bytes());
            out.provider_version_major = version_part(env!("CARGO_PKG_VERSION_MAJOR"));
            out.provider_version_minor = version_part(env!("CARGO_PKG_VERSION_MINOR"));
            out.dapl_version_major = DAT_VERSION_MAJOR;
            out.dapl_version_minor = DAT_VERSION_MINOR;
            out.lmr_mem_types_supported =
                DAT_MEM_TYPE_VIRTUAL | DAT_MEM_TYPE_LMR | DAT_MEM_TYPE_SHARED_VIRTUAL;
            out.iov_ownership_on_return = DAT_IOV_CONSUMER;
            out.dat_qos_supported = DAT_QOS_BEST_EFFORT;
            out.completion_flags_supported = DAT_COMPLETION_SUPPRESS_FLAG
                | DAT_COMPLETION_SOLICITED_WAIT_FLAG
                | DAT_COMPLETION_UNSIGNALLED_FLAG
                | DAT_COMPLETION_BARRIER_FENCE_FLAG
                | DAT_COMPLETION_EVD_THRESHOLD_FLAG;
            out.is_thread_safe = DAT_BOOLEAN::from(says_thread_safe);
            out.max_private_data_size = device.max_private_data as DAT_COUNT;
            out.supports_multipath = DAT_FALSE;
            out.ep_creator = DAT_PSP_CREATES_EP_IFASKED;
            out.pz_support = DAT_PZ_UNIQUE;
            out.optimal_buffer_alignment = 64;
            // Streams of every kind may share an EVD.
            out.evd_stream_merging_supported = [[DAT_TRUE; 6]; 6];
            out.srq_supported = DAT_BOOLEAN::from(device.max_srq > 0);
            out.srq_watermarks_supported = DAT_COUNT::from(device.max_srq > 0);
            out.srq_ep_pz_difference_supported = DAT_FALSE;
            out.srq_info_supported = DAT_COUNT::from(device.max_srq > 0);
            out.ep_recv_info_supported = DAT_TRUE as DAT_COUNT;
            out.lmr_sync_req = DAT_FALSE;
            out.dto_async_return_guaranteed = DAT_FALSE;
            out.rdma_write_for_rdma_read_req = DAT_FALSE;
            out.num_provider_specific_attr = named.len() as DAT_COUNT;
            out.provider_specific_attr = named.cast_mut().cast();
            out
        }
    };
}

pub(super) use common_conversions;

/// A part of the package version, for attributes.
pub(super) fn version_part(text: &str) -> u32 {
    text.parse().unwrap_or(0)
}
