//! All calls of a connection inside a process, with what they show.

use super::*;

#[test]
fn the_calls_of_a_connection_are_decoded() {
    let folder = Folder::new("connection");
    for library in [DAT_1_2, DAT_2_0] {
        let v2 = library.version == "2.0";
        let (output, trace) = traced(&folder, &library, "connection");
        let say = printed(&output);
        let (lines, table) = lines(&trace);
        let of = |name: &str| say[name].as_str();
        let expect = |call: &str| {
            let start = &call[..call.find('(').unwrap()];
            let calls = calls(&lines, &format!("{start}("));
            assert!(
                calls.contains(&call),
                "{call}\nis not among\n{}",
                calls.join("\n")
            );
        };
        assert!(lines.iter().all(|line| line.process == of("process")));
        assert!(
            lines[0]
                .call
                .starts_with(&format!("DAT {} by libdat ", library.version))
        );
        assert!(lines[0].call.ends_with(library.soname));

        let major_minor = if v2 { (2, 0) } else { (1, 2) };
        let open = calls(&lines, "dat_ia_openv(");
        let start = "dat_ia_openv(name=\"a\", async_event_qlen=8, async_event_handle=[0x";
        assert!(open[0].starts_with(start), "{open:?}");
        let end = format!(
            "], ia_handle=[{}], dapl_major={}, dapl_minor={}, thread_safety=DAT_FALSE) = DAT_SUCCESS",
            of("ia"),
            major_minor.0,
            major_minor.1
        );
        assert!(open[0].ends_with(&end), "{open:?}");
        expect(&format!(
            "dat_evd_create(ia_handle={}, evd_min_qlen=8, cno_handle=DAT_HANDLE_NULL, \
             evd_flags=DAT_EVD_DTO_FLAG|DAT_EVD_RMR_BIND_FLAG, evd_handle=[{}]) = DAT_SUCCESS",
            of("ia"),
            of("dto_evd")
        ));
        expect(&format!(
            "dat_lmr_create(ia_handle={}, mem_type=DAT_MEM_TYPE_VIRTUAL, \
             region_description={{for_va={buffer}}}, length=256, pz_handle={}, \
             privileges=DAT_MEM_PRIV_LOCAL_READ_FLAG|DAT_MEM_PRIV_LOCAL_WRITE_FLAG, \
             {}lmr_handle=[{}], lmr_context=[{}], rmr_context=[{}], registered_length=[256], \
             registered_address=[{buffer}]) = DAT_SUCCESS",
            of("ia"),
            of("pz"),
            if v2 { "va_type=DAT_VA_TYPE_VA, " } else { "" },
            of("lmr"),
            of("lmr_context"),
            of("rmr_context"),
            buffer = of("buffer"),
        ));
        expect(&format!(
            "dat_psp_create_any(ia_handle={}, conn_qual=[{}], evd_handle={}, \
             psp_flags=DAT_PSP_CONSUMER_FLAG, psp_handle=[{}]) = DAT_SUCCESS",
            of("ia"),
            of("qualifier"),
            of("cr_evd"),
            of("psp")
        ));
        expect(&format!(
            "dat_ep_create(ia_handle={}, pz_handle={}, recv_completion_evd_handle={}, \
             request_completion_evd_handle={}, connect_evd_handle={}, ep_attributes=NULL, \
             ep_handle=[{}]) = DAT_SUCCESS",
            of("ia"),
            of("pz"),
            of("recv_evd"),
            of("dto_evd"),
            of("conn_evd"),
            of("ep")
        ));
        expect(&format!(
            "dat_ep_connect(ep_handle={}, remote_ia_address=127.0.0.1:0, remote_conn_qual={}, \
             timeout=20000000 us, private_data_size=22, \
             private_data=<70696e672c2062792070726976617465...>, \
             quality_of_service=DAT_QOS_BEST_EFFORT, connect_flags=DAT_CONNECT_DEFAULT_FLAG) \
             = DAT_SUCCESS",
            of("ep"),
            of("qualifier")
        ));
        expect(&format!(
            "dat_cr_accept(cr_handle={}, ep_handle={}, private_data_size=4, \
             private_data=<706f6e67>) = DAT_SUCCESS",
            of("cr"),
            of("peer")
        ));
        let query = calls(&lines, "dat_cr_query(");
        let start = format!(
            "dat_cr_query(cr_handle={}, cr_param_mask=DAT_CR_FIELD_ALL, \
             cr_param={{remote_ia_address_ptr=127.0.0.1:",
            of("cr")
        );
        assert!(query[0].starts_with(&start), "{query:?}");
        let end = "private_data_size=22, private_data=<70696e672c2062792070726976617465...>, \
             local_ep_handle=DAT_HANDLE_NULL}) = DAT_SUCCESS";
        assert!(query[0].ends_with(end), "{query:?}");
        expect(&format!(
            "dat_ep_get_status(ep_handle={}, ep_state=[DAT_EP_STATE_CONNECTED], \
             recv_idle=[DAT_TRUE], request_idle=[DAT_TRUE]) = DAT_SUCCESS",
            of("ep")
        ));
        let query = calls(&lines, "dat_evd_query(");
        let start = format!(
            "dat_evd_query(evd_handle={}, \
             evd_param_mask=DAT_EVD_FIELD_EVD_QLEN|DAT_EVD_FIELD_EVD_FLAGS, evd_param={{evd_qlen=",
            of("dto_evd")
        );
        assert!(query[0].starts_with(&start), "{query:?}");
        let end = ", evd_flags=DAT_EVD_DTO_FLAG|DAT_EVD_RMR_BIND_FLAG}) = DAT_SUCCESS";
        assert!(query[0].ends_with(end), "{query:?}");

        let buffer = u64::from_str_radix(&of("buffer")[2..], 16).unwrap();
        let segment = |at: u64, len: u64| match v2 {
            true => format!(
                "{{virtual_address={:#x}, segment_length={len}, lmr_context={}}}",
                buffer + at,
                of("lmr_context")
            ),
            false => format!(
                "{{lmr_context={}, virtual_address={:#x}, segment_length={len}}}",
                of("lmr_context"),
                buffer + at
            ),
        };
        expect(&format!(
            "dat_ep_post_recv(ep_handle={}, num_segments=1, local_iov=[{}], user_cookie=0x1234, \
             completion_flags=DAT_COMPLETION_DEFAULT_FLAG) = DAT_SUCCESS",
            of("peer"),
            segment(0, 128)
        ));
        expect(&format!(
            "dat_ep_post_send(ep_handle={}, num_segments=2, local_iov=[{}, {}], \
             user_cookie=0x5678, completion_flags=DAT_COMPLETION_SOLICITED_WAIT_FLAG|\
             DAT_COMPLETION_BARRIER_FENCE_FLAG) = DAT_SUCCESS",
            of("ep"),
            segment(128, 16),
            segment(192, 8)
        ));
        let waited = |evd: &str, ep: &str, event: &str, rest: &str| {
            let all = calls(&lines, "dat_evd_wait(");
            let start = format!(
                "dat_evd_wait(evd_handle={evd}, timeout=20000000 us, threshold=1, \
                 event={{event_number={event}, evd_handle={evd}, {ep}{rest}",
            );
            let found = all.iter().any(|call| {
                call.starts_with(&start) && call.ends_with("}, n_more_events=[0]) = DAT_SUCCESS")
            });
            assert!(found, "{start}\nis not among\n{}", all.join("\n"));
        };
        let ep = |name: &str| format!("ep_handle={}, ", of(name));
        let received = "user_cookie=0x1234, status=DAT_DTO_SUCCESS, transfered_length=24";
        let (dto, conn) = (
            "DAT_DTO_COMPLETION_EVENT",
            "DAT_CONNECTION_EVENT_ESTABLISHED",
        );
        waited(of("recv_evd"), &ep("peer"), dto, received);
        let sent = "user_cookie=0x5678, status=DAT_DTO_SUCCESS, transfered_length=24";
        waited(of("dto_evd"), &ep("ep"), dto, sent);
        if v2 {
            let operation = format!("{sent}, operation=DAT_DTO_SEND");
            waited(of("dto_evd"), &ep("ep"), dto, &operation);
        }
        let answered = "private_data_size=4, private_data=<706f6e67>";
        waited(of("conn_evd"), &ep("ep"), conn, answered);
        let request = format!("sp_handle={}, local_ia_address_ptr=127.0.0.1:", of("psp"));
        waited(of("cr_evd"), "", "DAT_CONNECTION_REQUEST_EVENT", &request);
        expect(&format!(
            "dat_ep_disconnect(ep_handle={}, close_flags=DAT_CLOSE_GRACEFUL_FLAG) = DAT_SUCCESS",
            of("ep")
        ));
        // The program does this in a handler of atexit.
        expect(&format!(
            "dat_ia_close(ia_handle={}, ia_flags=DAT_CLOSE_ABRUPT_FLAG) = DAT_SUCCESS",
            of("ia")
        ));
        for (function, number) in [
            ("dat_ia_close", 1),
            ("dat_ep_create", 2),
            ("dat_evd_wait", 6),
        ] {
            assert_eq!(in_table(&table, function, CALLS), number, "{table}");
            assert_eq!(in_table(&table, function, ERRORS), 0, "{table}");
        }
        let program = format!(" DAT calls of process {}, ", of("process"));
        assert!(table.contains(&program), "{table}");
    }
}
