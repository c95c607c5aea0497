//! Tests that this machine or this user cannot run. The harness of `cargo test` has no verdict for
//! them, so each says `skipped: TEST: REASON` on a line of its own; `scripts/check.sh` counts those.

use std::io::Write as _;

/// Reports the running test, which returns then and passes, as skipped: once a test. Past the
/// harness, which shows nothing that passing tests print.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // The harness may be in the midst of a line.
    let line = format!("\nskipped: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
