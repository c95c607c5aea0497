//! How the program runs, where its trace goes, and what is said if there will be none.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

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
