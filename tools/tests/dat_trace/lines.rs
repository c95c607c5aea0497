//! The lines of calls: arguments, results, polls, waits, threads and processes.

use std::collections::BTreeSet;
use std::fs;

use super::*;

#[test]
fn wrong_pointers_and_handles_are_named() {
    let folder = Folder::new("wrong");
    for library in [DAT_1_2, DAT_2_0] {
        let (_, trace) = traced(&folder, &library, "wrong");
        let (lines, table) = lines(&trace);
        let mut expected = vec![
            "dat_ep_post_send(ep_handle=DAT_HANDLE_NULL, num_segments=3, \
             local_iov=0x10 (unreadable), user_cookie=0x7, completion_flags=0x100) \
             = DAT_INVALID_HANDLE (DAT_INVALID_HANDLE_EP)",
            "dat_evd_dequeue(evd_handle=0x10, event=0x10) \
             = DAT_INVALID_HANDLE (DAT_INVALID_HANDLE_EVD_REQUEST)",
            "dat_ep_connect(ep_handle=DAT_HANDLE_NULL, remote_ia_address=0x10 (unreadable), \
             remote_conn_qual=1, timeout=DAT_TIMEOUT_INFINITE, private_data_size=9, \
             private_data=0x10 (unreadable), quality_of_service=DAT_QOS_BEST_EFFORT, \
             connect_flags=DAT_CONNECT_DEFAULT_FLAG) = DAT_INVALID_HANDLE (DAT_INVALID_HANDLE_EP)",
            "dat_ep_modify(ep_handle=DAT_HANDLE_NULL, ep_param_mask=DAT_EP_FIELD_PZ_HANDLE, \
             ep_param=0x10 (unreadable)) = DAT_INVALID_HANDLE (DAT_INVALID_HANDLE_EP)",
            "dat_evd_post_se(evd_handle=DAT_HANDLE_NULL, event={event_number=DAT_SOFTWARE_EVENT, \
             evd_handle=DAT_HANDLE_NULL, pointer=0x10}) \
             = DAT_INVALID_HANDLE (DAT_INVALID_HANDLE_EVD_REQUEST)",
        ];
        if library.version == "2.0" {
            expected.push(
                "dat_extension_op(handle=DAT_HANDLE_NULL, op=DAT_IB_FETCH_AND_ADD_OP, add_value=5, \
                 local_iov=0x10 (unreadable), user_cookie=0x7, remote_iov=NULL, \
                 completion_flags=DAT_COMPLETION_SUPPRESS_FLAG) \
                 = DAT_INVALID_HANDLE (DAT_INVALID_HANDLE1)",
            );
        }
        for call in expected {
            let start = &call[..=call.find('(').unwrap()];
            assert_eq!(calls(&lines, start), [call]);
        }
        assert_eq!(in_table(&table, "dat_ep_post_send", ERRORS), 1, "{table}");
    }
}

#[test]
fn polls_that_find_nothing_are_counted() {
    let folder = Folder::new("polls");
    let (_, trace) = traced(&folder, &DAT_2_0, "polls");
    let (lines, table) = lines(&trace);
    let empty = calls(&lines, "dat_evd_dequeue(");
    let empty = empty
        .iter()
        .filter(|call| call.ends_with(" = DAT_QUEUE_EMPTY"));
    // One for each of the two rows.
    assert_eq!(empty.clone().count(), 2, "{trace}");
    // There is no event that could be shown.
    assert!(
        empty.clone().all(|call| call.contains(", event=0x")),
        "{trace}"
    );
    let more: Vec<u32> = lines
        .iter()
        .filter_map(|line| line.call.split_once(" more polls that found nothing, in "))
        .map(|(number, _)| number.parse().unwrap())
        .collect();
    assert_eq!(more.iter().sum::<u32>(), 99, "{trace}");
    assert_eq!(in_table(&table, "dat_evd_dequeue", CALLS), 102, "{table}");
    assert_eq!(in_table(&table, "dat_evd_dequeue", EMPTY), 101, "{table}");
    assert_eq!(in_table(&table, "dat_evd_dequeue", ERRORS), 0, "{table}");
}

/// On x86-64 the wait is left at once; elsewhere it stays, and so would the program.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_wait_is_shown_when_it_begins_and_when_it_is_cancelled() {
    let folder = Folder::new("cancelled");
    for library in [DAT_1_2, DAT_2_0] {
        let (output, trace) = traced(&folder, &library, "cancelled");
        let (lines, table) = lines(&trace);
        let thread = &printed(&output)["thread"];
        let waits: Vec<&Line> = lines
            .iter()
            .filter(|l| l.call.starts_with("dat_evd_wait("))
            .collect();
        let [began, ended] = waits[..] else {
            panic!("{trace}");
        };
        assert!(
            began.call.contains("timeout=DAT_TIMEOUT_INFINITE"),
            "{}",
            began.call
        );
        assert!(began.call.ends_with(") ..."), "{}", began.call);
        assert!(
            ended.call.ends_with(") = ? (the thread has ended)"),
            "{}",
            ended.call
        );
        assert!(
            &began.thread == thread && &ended.thread == thread,
            "{trace}"
        );
        let row = table.lines().find(|line| line.contains("  dat_evd_wait"));
        assert!(
            row.is_some_and(|row| row.ends_with(" (1 not ended)")),
            "{table}"
        );
    }
}

#[test]
fn the_lines_of_threads_do_not_mix() {
    let folder = Folder::new("threads");
    let (output, trace) = traced(&folder, &DAT_2_0, "threads");
    let (lines, table) = lines(&trace);
    let text = text(&output.stdout);
    let threads: BTreeSet<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("thread "))
        .collect();
    assert_eq!(threads.len(), 2);
    for thread in threads {
        let of = lines.iter().filter(|line| line.thread == thread);
        let calls: Vec<&str> = of.map(|line| without_time(&line.call)).collect();
        assert_eq!(calls.len(), 200);
        assert!(calls.iter().all(|call| call.ends_with(" = DAT_SUCCESS")));
    }
    assert_eq!(in_table(&table, "dat_evd_free", CALLS), 200, "{table}");
}

#[test]
fn a_forked_child_has_a_trace_of_its_own() {
    let folder = Folder::new("forks");
    let output = dat_trace(&folder)
        .current_dir(&folder.0)
        .args(["-o", "trace-%p"])
        .arg(program(&folder, &DAT_2_0))
        .arg("forks")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let say = printed(&output);
    for (who, opened, freed) in [("process", 1, 0), ("child", 1, 1)] {
        let process = &say[who];
        let trace = fs::read_to_string(folder.path(&format!("trace-{process}"))).unwrap();
        let (lines, table) = lines(&trace);
        assert!(lines.iter().all(|line| &line.process == process), "{trace}");
        assert!(lines[0].call.starts_with("DAT 2.0 by libdat "), "{trace}");
        assert_eq!(in_table(&table, "dat_ia_openv", CALLS), opened, "{table}");
        assert_eq!(table.contains("  dat_evd_free"), freed > 0, "{table}");
        let program = format!(" DAT calls of process {process}, ");
        assert!(table.contains(&program), "{table}");
    }
}
