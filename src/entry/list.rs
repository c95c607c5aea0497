//! The functions that DAT 1.2 and DAT 2.0 have in common.

/// Makes the exported functions that the registry implements, for the library that `$setup`, a
/// `registry::Setup`, describes. The types are those of the calling module.
#[macro_export]
macro_rules! registry_level {
    ($version:ident, $node:literal, $setup:expr) => {
        $crate::entry! { $version, $node;
            /// Opens an IA.
            dat_ia_openv(
                name: DAT_NAME_PTR,
                async_event_qlen: DAT_COUNT,
                async_event_handle: *mut DAT_EVD_HANDLE,
                ia_handle: *mut DAT_IA_HANDLE,
                dapl_major: DAT_UINT32,
                dapl_minor: DAT_UINT32,
                thread_safety: DAT_BOOLEAN,
            ) {
                $crate::registry::setup(&$setup);
                // SAFETY: the caller's promise.
                unsafe {
                    $crate::registry::open(
                        name,
                        async_event_qlen,
                        async_event_handle,
                        ia_handle,
                        dapl_major,
                        dapl_minor,
                        thread_safety != DAT_FALSE,
                    )
                }
            }

            /// Closes an IA.
            dat_ia_close(ia_handle: DAT_IA_HANDLE, ia_flags: DAT_CLOSE_FLAGS) {
                $crate::registry::setup(&$setup);
                // SAFETY: the caller's promise.
                unsafe { $crate::registry::close(ia_handle, ia_flags) }
            }

            /// Registers a provider table.
            dat_registry_add_provider(
                provider: *const DAT_PROVIDER,
                provider_info: *const DAT_PROVIDER_INFO,
            ) {
                $crate::registry::setup(&$setup);
                // SAFETY: the caller's promise; `DAT_PROVIDER` is the table of this version.
                unsafe { $crate::registry::add_provider(provider.cast(), provider_info) }
                    .map(|()| DAT_SUCCESS)
            }

            /// Lists the IAs of the registry.
            dat_registry_list_providers(
                max_to_return: DAT_COUNT,
                entries_returned: *mut DAT_COUNT,
                dat_provider_list: *mut *mut DAT_PROVIDER_INFO,
            ) {
                $crate::registry::setup(&$setup);
                // SAFETY: the caller's promise.
                unsafe {
                    $crate::registry::list_providers(
                        max_to_return,
                        entries_returned,
                        dat_provider_list,
                    )
                }
                .map(|()| DAT_SUCCESS)
            }

            /// Removes the registration of a provider table.
            dat_registry_remove_provider(
                provider: *const DAT_PROVIDER,
                provider_info: *const DAT_PROVIDER_INFO,
            ) {
                $crate::registry::setup(&$setup);
                // SAFETY: the caller's promise.
                unsafe { $crate::registry::remove_provider(provider.cast(), provider_info) }
                    .map(|()| DAT_SUCCESS)
            }

            /// Gives the names of a return code.
            dat_strerror(
                value: DAT_RETURN,
                major_message: *mut *const c_char,
                minor_message: *mut *const c_char,
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    $crate::strerror::strerror(
                        $crate::error::Version::$version,
                        value,
                        major_message,
                        minor_message,
                    )
                }
                .map(|()| DAT_SUCCESS)
            }

            /// Translates the index of an IA to its provider's handle and back, for providers.
            dats_get_ia_handle(handle: DAT_IA_HANDLE, ia_handle_p: *mut DAT_IA_HANDLE) {
                $crate::registry::setup(&$setup);
                let other = $crate::registry::get_ia_handle(handle)?;
                // SAFETY: the caller's promise.
                match unsafe { ia_handle_p.as_mut() } {
                    Some(place) => *place = other,
                    None => return Err($crate::error::Error::arg($crate::error::Subtype::Arg2)),
                }
                Ok(DAT_SUCCESS)
            }
        }
    };
}

/// Makes the exported functions whose parameters have the same names in both versions.
///
/// The types are those of the calling module, which has `abi::v1` or `abi::v2` in scope. Not here
/// are `dat_cr_reject`, `dat_lmr_create` and `dat_rmr_bind`, whose parameters differ between the
/// versions.
#[macro_export]
macro_rules! dispatch_common {
    ($version:ident, $node:literal) => {
        $crate::dispatch! { $version, $node;
            dat_cno_create(
                ia_handle: DAT_IA_HANDLE,
                agent: DAT_OS_WAIT_PROXY_AGENT,
                cno_handle: *mut DAT_CNO_HANDLE,
            ) => HandleIa, cno_create_func;
            dat_cno_free(cno_handle: DAT_CNO_HANDLE) => HandleCno, cno_free_func;
            dat_cno_modify_agent(
                cno_handle: DAT_CNO_HANDLE,
                agent: DAT_OS_WAIT_PROXY_AGENT,
            ) => HandleCno, cno_modify_agent_func;
            dat_cno_query(
                cno_handle: DAT_CNO_HANDLE,
                cno_param_mask: DAT_CNO_PARAM_MASK,
                cno_param: *mut DAT_CNO_PARAM,
            ) => HandleCno, cno_query_func;
            dat_cno_wait(
                cno_handle: DAT_CNO_HANDLE,
                timeout: DAT_TIMEOUT,
                evd_handle: *mut DAT_EVD_HANDLE,
            ) => HandleCno, cno_wait_func;
            dat_cr_accept(
                cr_handle: DAT_CR_HANDLE,
                ep_handle: DAT_EP_HANDLE,
                private_data_size: DAT_COUNT,
                private_data: DAT_PVOID,
            ) => HandleCr, cr_accept_func;
            dat_cr_handoff(cr_handle: DAT_CR_HANDLE, handoff: DAT_CONN_QUAL) => HandleCr, cr_handoff_func;
            dat_cr_query(
                cr_handle: DAT_CR_HANDLE,
                cr_param_mask: DAT_CR_PARAM_MASK,
                cr_param: *mut DAT_CR_PARAM,
            ) => HandleCr, cr_query_func;
            dat_ep_connect(
                ep_handle: DAT_EP_HANDLE,
                remote_ia_address: DAT_IA_ADDRESS_PTR,
                remote_conn_qual: DAT_CONN_QUAL,
                timeout: DAT_TIMEOUT,
                private_data_size: DAT_COUNT,
                private_data: DAT_PVOID,
                quality_of_service: DAT_QOS,
                connect_flags: DAT_CONNECT_FLAGS,
            ) => HandleEp, ep_connect_func;
            dat_ep_create(
                ia_handle: DAT_IA_HANDLE,
                pz_handle: DAT_PZ_HANDLE,
                recv_completion_evd_handle: DAT_EVD_HANDLE,
                request_completion_evd_handle: DAT_EVD_HANDLE,
                connect_evd_handle: DAT_EVD_HANDLE,
                ep_attributes: *const DAT_EP_ATTR,
                ep_handle: *mut DAT_EP_HANDLE,
            ) => HandleIa, ep_create_func;
            dat_ep_create_with_srq(
                ia_handle: DAT_IA_HANDLE,
                pz_handle: DAT_PZ_HANDLE,
                recv_evd_handle: DAT_EVD_HANDLE,
                request_evd_handle: DAT_EVD_HANDLE,
                connect_evd_handle: DAT_EVD_HANDLE,
                srq_handle: DAT_SRQ_HANDLE,
                ep_attributes: *const DAT_EP_ATTR,
                ep_handle: *mut DAT_EP_HANDLE,
            ) => HandleIa, ep_create_with_srq_func;
            dat_ep_disconnect(
                ep_handle: DAT_EP_HANDLE,
                close_flags: DAT_CLOSE_FLAGS,
            ) => HandleEp, ep_disconnect_func;
            dat_ep_dup_connect(
                ep_handle: DAT_EP_HANDLE,
                ep_dup_handle: DAT_EP_HANDLE,
                timeout: DAT_TIMEOUT,
                private_data_size: DAT_COUNT,
                private_data: DAT_PVOID,
                quality_of_service: DAT_QOS,
            ) => HandleEp, ep_dup_connect_func;
            dat_ep_free(ep_handle: DAT_EP_HANDLE) => HandleEp, ep_free_func;
            dat_ep_get_status(
                ep_handle: DAT_EP_HANDLE,
                ep_state: *mut DAT_EP_STATE,
                recv_idle: *mut DAT_BOOLEAN,
                request_idle: *mut DAT_BOOLEAN,
            ) => HandleEp, ep_get_status_func;
            dat_ep_modify(
                ep_handle: DAT_EP_HANDLE,
                ep_param_mask: DAT_EP_PARAM_MASK,
                ep_param: *const DAT_EP_PARAM,
            ) => HandleEp, ep_modify_func;
            dat_ep_post_rdma_read(
                ep_handle: DAT_EP_HANDLE,
                num_segments: DAT_COUNT,
                local_iov: *mut DAT_LMR_TRIPLET,
                user_cookie: DAT_DTO_COOKIE,
                remote_iov: *const DAT_RMR_TRIPLET,
                completion_flags: DAT_COMPLETION_FLAGS,
            ) => HandleEp, ep_post_rdma_read_func;
            dat_ep_post_rdma_write(
                ep_handle: DAT_EP_HANDLE,
                num_segments: DAT_COUNT,
                local_iov: *mut DAT_LMR_TRIPLET,
                user_cookie: DAT_DTO_COOKIE,
                remote_iov: *const DAT_RMR_TRIPLET,
                completion_flags: DAT_COMPLETION_FLAGS,
            ) => HandleEp, ep_post_rdma_write_func;
            dat_ep_post_recv(
                ep_handle: DAT_EP_HANDLE,
                num_segments: DAT_COUNT,
                local_iov: *mut DAT_LMR_TRIPLET,
                user_cookie: DAT_DTO_COOKIE,
                completion_flags: DAT_COMPLETION_FLAGS,
            ) => HandleEp, ep_post_recv_func;
            dat_ep_post_send(
                ep_handle: DAT_EP_HANDLE,
                num_segments: DAT_COUNT,
                local_iov: *mut DAT_LMR_TRIPLET,
                user_cookie: DAT_DTO_COOKIE,
                completion_flags: DAT_COMPLETION_FLAGS,
            ) => HandleEp, ep_post_send_func;
            dat_ep_query(
                ep_handle: DAT_EP_HANDLE,
                ep_param_mask: DAT_EP_PARAM_MASK,
                ep_param: *mut DAT_EP_PARAM,
            ) => HandleEp, ep_query_func;
            dat_ep_recv_query(
                ep_handle: DAT_EP_HANDLE,
                nbufs_allocated: *mut DAT_COUNT,
                bufs_alloc_span: *mut DAT_COUNT,
            ) => HandleEp, ep_recv_query_func;
            dat_ep_reset(ep_handle: DAT_EP_HANDLE) => HandleEp, ep_reset_func;
            dat_ep_set_watermark(
                ep_handle: DAT_EP_HANDLE,
                soft_high_watermark: DAT_COUNT,
                hard_high_watermark: DAT_COUNT,
            ) => HandleEp, ep_set_watermark_func;
            dat_evd_clear_unwaitable(
                evd_handle: DAT_EVD_HANDLE,
            ) => HandleEvdRequest, evd_clear_unwaitable_func;
            dat_evd_create(
                ia_handle: DAT_IA_HANDLE,
                evd_min_qlen: DAT_COUNT,
                cno_handle: DAT_CNO_HANDLE,
                evd_flags: DAT_EVD_FLAGS,
                evd_handle: *mut DAT_EVD_HANDLE,
            ) => HandleIa, evd_create_func;
            dat_evd_dequeue(
                evd_handle: DAT_EVD_HANDLE,
                event: *mut DAT_EVENT,
            ) => HandleEvdRequest, evd_dequeue_func;
            dat_evd_disable(evd_handle: DAT_EVD_HANDLE) => HandleEvdRequest, evd_disable_func;
            dat_evd_enable(evd_handle: DAT_EVD_HANDLE) => HandleEvdRequest, evd_enable_func;
            dat_evd_free(evd_handle: DAT_EVD_HANDLE) => HandleEvdRequest, evd_free_func;
            dat_evd_modify_cno(
                evd_handle: DAT_EVD_HANDLE,
                cno_handle: DAT_CNO_HANDLE,
            ) => HandleEvdRequest, evd_modify_cno_func;
            dat_evd_post_se(
                evd_handle: DAT_EVD_HANDLE,
                event: *const DAT_EVENT,
            ) => HandleEvdRequest, evd_post_se_func;
            dat_evd_query(
                evd_handle: DAT_EVD_HANDLE,
                evd_param_mask: DAT_EVD_PARAM_MASK,
                evd_param: *mut DAT_EVD_PARAM,
            ) => HandleEvdRequest, evd_query_func;
            dat_evd_resize(
                evd_handle: DAT_EVD_HANDLE,
                evd_min_qlen: DAT_COUNT,
            ) => HandleEvdRequest, evd_resize_func;
            dat_evd_set_unwaitable(evd_handle: DAT_EVD_HANDLE) => HandleEvdRequest, evd_set_unwaitable_func;
            dat_evd_wait(
                evd_handle: DAT_EVD_HANDLE,
                timeout: DAT_TIMEOUT,
                threshold: DAT_COUNT,
                event: *mut DAT_EVENT,
                n_more_events: *mut DAT_COUNT,
            ) => HandleEvdRequest, evd_wait_func;
            dat_get_consumer_context(
                dat_handle: DAT_HANDLE,
                context: *mut DAT_CONTEXT,
            ) => Handle1, get_consumer_context_func;
            dat_get_handle_type(
                dat_handle: DAT_HANDLE,
                handle_type: *mut DAT_HANDLE_TYPE,
            ) => Handle1, get_handle_type_func;
            dat_ia_query(
                ia_handle: DAT_IA_HANDLE,
                async_evd_handle: *mut DAT_EVD_HANDLE,
                ia_attr_mask: DAT_IA_ATTR_MASK,
                ia_attr: *mut DAT_IA_ATTR,
                provider_attr_mask: DAT_PROVIDER_ATTR_MASK,
                provider_attr: *mut DAT_PROVIDER_ATTR,
            ) => HandleIa, ia_query_func;
            dat_lmr_free(lmr_handle: DAT_LMR_HANDLE) => HandleLmr, lmr_free_func;
            dat_lmr_query(
                lmr_handle: DAT_LMR_HANDLE,
                lmr_param_mask: DAT_LMR_PARAM_MASK,
                lmr_param: *mut DAT_LMR_PARAM,
            ) => HandleLmr, lmr_query_func;
            dat_lmr_sync_rdma_read(
                ia_handle: DAT_IA_HANDLE,
                local_segments: *const DAT_LMR_TRIPLET,
                num_segments: DAT_VLEN,
            ) => HandleIa, lmr_sync_rdma_read_func;
            dat_lmr_sync_rdma_write(
                ia_handle: DAT_IA_HANDLE,
                local_segments: *const DAT_LMR_TRIPLET,
                num_segments: DAT_VLEN,
            ) => HandleIa, lmr_sync_rdma_write_func;
            dat_psp_create(
                ia_handle: DAT_IA_HANDLE,
                conn_qual: DAT_CONN_QUAL,
                evd_handle: DAT_EVD_HANDLE,
                psp_flags: DAT_PSP_FLAGS,
                psp_handle: *mut DAT_PSP_HANDLE,
            ) => HandleIa, psp_create_func;
            dat_psp_create_any(
                ia_handle: DAT_IA_HANDLE,
                conn_qual: *mut DAT_CONN_QUAL,
                evd_handle: DAT_EVD_HANDLE,
                psp_flags: DAT_PSP_FLAGS,
                psp_handle: *mut DAT_PSP_HANDLE,
            ) => HandleIa, psp_create_any_func;
            dat_psp_free(psp_handle: DAT_PSP_HANDLE) => HandlePsp, psp_free_func;
            dat_psp_query(
                psp_handle: DAT_PSP_HANDLE,
                psp_param_mask: DAT_PSP_PARAM_MASK,
                psp_param: *mut DAT_PSP_PARAM,
            ) => HandlePsp, psp_query_func;
            dat_pz_create(
                ia_handle: DAT_IA_HANDLE,
                pz_handle: *mut DAT_PZ_HANDLE,
            ) => HandleIa, pz_create_func;
            dat_pz_free(pz_handle: DAT_PZ_HANDLE) => HandlePz, pz_free_func;
            dat_pz_query(
                pz_handle: DAT_PZ_HANDLE,
                pz_param_mask: DAT_PZ_PARAM_MASK,
                pz_param: *mut DAT_PZ_PARAM,
            ) => HandlePz, pz_query_func;
            dat_rmr_create(
                pz_handle: DAT_PZ_HANDLE,
                rmr_handle: *mut DAT_RMR_HANDLE,
            ) => HandlePz, rmr_create_func;
            dat_rmr_free(rmr_handle: DAT_RMR_HANDLE) => HandleRmr, rmr_free_func;
            dat_rmr_query(
                rmr_handle: DAT_RMR_HANDLE,
                rmr_param_mask: DAT_RMR_PARAM_MASK,
                rmr_param: *mut DAT_RMR_PARAM,
            ) => HandleRmr, rmr_query_func;
            dat_rsp_create(
                ia_handle: DAT_IA_HANDLE,
                conn_qual: DAT_CONN_QUAL,
                ep_handle: DAT_EP_HANDLE,
                evd_handle: DAT_EVD_HANDLE,
                rsp_handle: *mut DAT_RSP_HANDLE,
            ) => HandleIa, rsp_create_func;
            dat_rsp_free(rsp_handle: DAT_RSP_HANDLE) => HandleRsp, rsp_free_func;
            dat_rsp_query(
                rsp_handle: DAT_RSP_HANDLE,
                rsp_param_mask: DAT_RSP_PARAM_MASK,
                rsp_param: *mut DAT_RSP_PARAM,
            ) => HandleRsp, rsp_query_func;
            dat_set_consumer_context(
                dat_handle: DAT_HANDLE,
                context: DAT_CONTEXT,
            ) => Handle1, set_consumer_context_func;
            dat_srq_create(
                ia_handle: DAT_IA_HANDLE,
                pz_handle: DAT_PZ_HANDLE,
                srq_attr: *mut DAT_SRQ_ATTR,
                srq_handle: *mut DAT_SRQ_HANDLE,
            ) => HandleIa, srq_create_func;
            dat_srq_free(srq_handle: DAT_SRQ_HANDLE) => HandleSrq, srq_free_func;
            dat_srq_post_recv(
                srq_handle: DAT_SRQ_HANDLE,
                num_segments: DAT_COUNT,
                local_iov: *mut DAT_LMR_TRIPLET,
                user_cookie: DAT_DTO_COOKIE,
            ) => HandleSrq, srq_post_recv_func;
            dat_srq_query(
                srq_handle: DAT_SRQ_HANDLE,
                srq_param_mask: DAT_SRQ_PARAM_MASK,
                srq_param: *mut DAT_SRQ_PARAM,
            ) => HandleSrq, srq_query_func;
            dat_srq_resize(
                srq_handle: DAT_SRQ_HANDLE,
                srq_max_recv_dto: DAT_COUNT,
            ) => HandleSrq, srq_resize_func;
            dat_srq_set_lw(
                srq_handle: DAT_SRQ_HANDLE,
                low_watermark: DAT_COUNT,
            ) => HandleSrq, srq_set_lw_func;
        }
    };
}
