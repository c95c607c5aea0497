//! The help of the tools.

use std::fs::File;
use std::process::{Command, Stdio};

/// A full disk is an error; a pipe whose reader has seen enough is none.
#[test]
fn standard_output_that_takes_nothing() {
    for (tool, failure) in [
        (env!("CARGO_BIN_EXE_dat-info"), 1),
        (env!("CARGO_BIN_EXE_dat-perf"), 1),
        (env!("CARGO_BIN_EXE_dat-top"), 1),
        (env!("CARGO_BIN_EXE_dat-trace"), 125),
    ] {
        for full in [true, false] {
            let mut command = Command::new(tool);
            command.arg("--help").stderr(Stdio::piped());
            if full {
                command.stdout(File::options().write(true).open("/dev/full").unwrap());
            } else {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                command.stdout(writer);
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let status = if full { failure } else { 0 };
            assert_eq!(output.status.code(), Some(status), "{tool}: {said}");
            assert_eq!(said.contains("No space left"), full, "{tool}: {said}");
        }
    }
}

#[test]
fn help_and_misuse() {
    for (tool, misuse) in [
        (env!("CARGO_BIN_EXE_dat-info"), 2),
        (env!("CARGO_BIN_EXE_dat-perf"), 2),
        (env!("CARGO_BIN_EXE_dat-top"), 2),
        (env!("CARGO_BIN_EXE_dat-trace"), 125),
    ] {
        let help = Command::new(tool).arg("--help").output().unwrap();
        assert_eq!(help.status.code(), Some(0), "{tool}");
        assert!(
            help.stdout.ends_with(b"\n") && help.stderr.is_empty(),
            "{tool}"
        );
        let wrong = Command::new(tool).arg("--no-such-option").output().unwrap();
        assert_eq!(wrong.status.code(), Some(misuse), "{tool}");
        assert!(
            wrong.stdout.is_empty() && !wrong.stderr.is_empty(),
            "{tool}"
        );
    }
}
