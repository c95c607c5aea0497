//! A test program that runs one of its tests again in a network namespace of its own, whose interfaces and
//! limits the test may change.

use std::process::Command;

use crate::skip;

/// Set in the process that is in a namespace of its own.
const INSIDE: &str = "LIBDAT_TEST_HOSTS";

/// The command that runs another in a user and a network namespace.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(match rustix::process::geteuid().is_root() {
        true => &["--net", "--"][..],
        false => &["--map-root-user", "--net", "--"],
    });
    command
}

/// Whether this process is in a namespace of its own. If not, runs the test of this name in one, unless there
/// can be none.
pub fn is_inside(test: &str) -> bool {
    let inside = std::env::var_os(INSIDE).is_some();
    if !inside {
        run(test);
    }
    inside
}

fn run(test: &str) {
    let probe = ["ip", "link", "add", "a0", "type", "veth"];
    match unshare().args(probe).output() {
        Err(error) => return skip::skip(&format!("unshare: {error}")),
        Ok(probe) if !probe.status.success() => {
            let error = String::from_utf8_lossy(&probe.stderr);
            return skip::skip(&format!("no network namespaces: {}", error.trim()));
        }
        Ok(_) => {}
    }
    let status = unshare()
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed");
}
