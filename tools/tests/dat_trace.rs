//! `dat-trace` as a user runs it, on a C program for both versions of the API
//! (`tests/trace/program.c`), which prints what the trace has to show.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../../tests/common/libs.rs"]
mod libs;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use libs::{DAT_1_2, DAT_2_0, Library};

/// The files of a test, which go away at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("dat-trace-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let entry =
            |version| format!("a u{version} threadsafe default builtin:soft v.1.0 \"lo\" \"\"\n");
        fs::write(path.join("dat.conf"), entry("1.2") + &entry("2.0")).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cc(arguments: &[&str]) {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler).args(arguments).status().unwrap();
    assert!(status.success(), "cc {arguments:?}");
}

/// The program for a version, in a folder.
fn program(folder: &Folder, library: &Library) -> PathBuf {
    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let profile = libs::profiles()[0];
    let dir = libs::directory(profile);
    let program = folder.path(library.soname);
    let flag = if library.version == "2.0" {
        "-DDAT2"
    } else {
        "-DDAT1"
    };
    cc(&[
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Werror",
        "-pthread",
        flag,
        &format!("-I{ROOT}/include"),
        &format!("-I{ROOT}/tests-c"),
        &format!("{ROOT}/tests/trace/program.c"),
        "-o",
        program.to_str().unwrap(),
        // Such that LD_LIBRARY_PATH comes first.
        "-Wl,--enable-new-dtags",
        &format!("-Wl,-rpath,{}", dir.display()),
        dir.join(library.file).to_str().unwrap(),
    ]);
    program
}

fn dat_trace(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-trace"));
    command
        .env("DAT_OVERRIDE", folder.path("dat.conf"))
        .env_remove("DAT_DBG_TYPE")
        .env_remove("DAT_TRACE_FILE")
        .env_remove("LD_LIBRARY_PATH");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What the program has printed, by name.
fn printed(output: &Output) -> HashMap<String, String> {
    let text = text(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A line of a trace.
#[derive(Debug)]
struct Line {
    process: String,
    thread: String,
    /// What follows: the call.
    call: String,
}

/// The lines of a trace, which are in the form of a line, and the table at its end.
fn lines(trace: &str) -> (Vec<Line>, String) {
    let at = trace
        .find(" DAT calls of process ")
        .map(|at| trace[..at].rfind('\n').map_or(0, |at| at + 1));
    let (calls, table) = trace.split_at(at.unwrap_or(trace.len()));
    let parsed = calls.lines().map(|line| {
        let mut parts = line.splitn(3, ' ');
        let (time, who, call) = (parts.next(), parts.next(), parts.next());
        let form: String = time
            .unwrap_or_default()
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(form, "00:00:00.000000", "{line}");
        let (process, thread) = who.and_then(|who| who.split_once('/')).expect(line);
        Line {
            process: process.to_owned(),
            thread: thread.to_owned(),
            call: call.expect(line).to_owned(),
        }
    });
    (parsed.collect(), table.to_owned())
}

/// The call without its duration, which is one.
fn without_time(call: &str) -> &str {
    let Some((call, time)) = call.rsplit_once(", ") else {
        return call;
    };
    let time = time
        .strip_suffix(" us")
        .and_then(|time| time.parse::<f64>().ok());
    assert!(time.is_some_and(|time| time > 0.0), "{call}");
    call
}

/// The calls of a trace that begin so, without their times.
fn calls<'a>(lines: &'a [Line], start: &str) -> Vec<&'a str> {
    let calls = lines.iter().map(|line| &line.call);
    let calls = calls.filter(|call| call.starts_with(start) && call.ends_with(" us"));
    calls.map(|call| without_time(call)).collect()
}

/// Traces the program; its output, and the trace.
fn traced(folder: &Folder, library: &Library, what: &str) -> (Output, String) {
    let file = folder.path("trace");
    let output = dat_trace(folder)
        .arg("-o")
        .arg(&file)
        .arg(program(folder, library))
        .arg(what)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    (output, fs::read_to_string(file).unwrap())
}

/// A number of a table, by function and column.
fn in_table(table: &str, function: &str, column: usize) -> u64 {
    let row = table
        .lines()
        .find(|line| line.ends_with(&format!("  {function}")));
    let row = row.unwrap_or_else(|| panic!("{function} is not in {table}"));
    row.split_whitespace().nth(column).unwrap().parse().unwrap()
}
const CALLS: usize = 4;
const ERRORS: usize = 5;
const EMPTY: usize = 6;

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

#[test]
fn the_table_alone_goes_to_standard_error() {
    let folder = Folder::new("table");
    for library in [DAT_1_2, DAT_2_0] {
        let output = dat_trace(&folder)
            .arg("-c")
            .arg(program(&folder, &library))
            .arg("wrong")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = text(&output.stderr);
        let (lines, table) = lines(&text);
        assert!(lines.is_empty(), "{text}");
        assert_eq!(in_table(&table, "dat_ia_openv", CALLS), 1, "{table}");
        assert_eq!(in_table(&table, "dat_ep_modify", ERRORS), 1, "{table}");
    }
}

#[test]
fn a_trace_that_cannot_be_written_does_no_harm() {
    let folder = Folder::new("full");
    let program = program(&folder, &DAT_2_0);
    let output = dat_trace(&folder)
        .args(["-o", "/dev/full"])
        .arg(&program)
        .arg("connection")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    let start = "libdat: the trace cannot be written to /dev/full (DAT_TRACE_FILE): ";
    assert!(said.starts_with(start), "{said}");

    // A pipe without a reader.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = dat_trace(&folder)
        .arg(&program)
        .arg("connection")
        .stdout(Stdio::null())
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));

    let output = dat_trace(&folder)
        .args(["-o", "/no/such/folder/trace", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).starts_with("dat-trace: /no/such/folder/trace: "));
}

#[test]
fn a_value_that_is_not_known_is_named_and_nothing_is_traced() {
    let folder = Folder::new("value");
    let run = |value: &str| {
        let output = Command::new(program(&folder, &DAT_2_0))
            .arg("nothing")
            .env("DAT_OVERRIDE", folder.path("dat.conf"))
            .env("DAT_TRACE", value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    assert_eq!(run(""), "");
    assert_eq!(run("off"), "");
    assert_eq!(
        run("all"),
        "libdat: DAT_TRACE=all: not known, so nothing is traced; known are \"calls\", \"summary\" \
         and \"off\"\n"
    );
}

#[test]
fn the_status_is_that_of_the_program_or_says_why_there_is_none() {
    let folder = Folder::new("status");
    let plain = folder.path("plain");
    File::create(&plain).unwrap();
    let run = |arguments: &[&str]| dat_trace(&folder).args(arguments).output().unwrap();
    for (arguments, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["--", "sh", "-c", "exit 8"], 8),
        (&["-c", "sh", "-c", "exit 9"], 9),
        (&["no-such-program-anywhere"], 127),
        (&[plain.to_str().unwrap()], 126),
        (&[], 125),
        (&["--no-such-option"], 125),
        (&["--help"], 0),
    ] {
        let output = run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
    }
    let said = text(&run(&["no-such-program-anywhere"]).stderr);
    assert!(
        said.starts_with("dat-trace: no-such-program-anywhere: "),
        "{said}"
    );
}

#[test]
fn programs_that_will_not_be_traced_are_named() {
    let folder = Folder::new("doubt");
    let said = |command: &mut Command| text(&command.output().unwrap().stderr);
    let linked = said(dat_trace(&folder).arg("true"));
    assert!(
        linked.contains("is not linked with libdat.so.1 or libdat2.so.2: only calls of what"),
        "{linked}"
    );
    let script = folder.path("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let script = said(dat_trace(&folder).arg(&script));
    assert!(
        script.contains("or is a script: only what it starts can be traced"),
        "{script}"
    );

    // A library of the same name, from someone else.
    let other = folder.path("other");
    fs::create_dir(&other).unwrap();
    let (source, library) = (folder.path("other.c"), other.join(DAT_2_0.soname));
    fs::write(&source, "int dat_ia_openv(void) { return 0; }\n").unwrap();
    cc(&[
        "-shared",
        "-fPIC",
        &format!("-Wl,-soname,{}", DAT_2_0.soname),
        "-o",
        library.to_str().unwrap(),
        source.to_str().unwrap(),
    ]);
    let program = program(&folder, &DAT_2_0);
    let with_other = |command: &mut Command| said(command.env("LD_LIBRARY_PATH", &other));
    let other = with_other(dat_trace(&folder).arg(&program).arg("nothing"));
    let line = format!(
        "dat-trace: {} loads {}, which is not libdat's: its calls are not traced",
        program.display(),
        library.display()
    );
    assert!(other.starts_with(&line), "{other}");
    // Set-user-ID: the program would ignore the variables.
    let mode =
        |mode| fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(mode));
    mode(0o4755).unwrap();
    let secure = said(dat_trace(&folder).arg(Path::new(&program)).arg("nothing"));
    assert!(
        secure.contains("has more rights than its user, and so ignores DAT_TRACE"),
        "{secure}"
    );
}
