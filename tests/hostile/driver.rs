//! Runs the cases of a table of docs/hostile-peers.md.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rows::{Row, check_document};
use crate::victim::Host;

/// A rule that a peer breaks.
pub trait Rule {
    /// The row in the document.
    fn row(&self) -> &Row;

    /// Breaks the rule towards a host. Panics if the host does not answer as it has to.
    fn run(&self, host: &Host);
}

/// Runs every case against one host, whose honest connection has to work after each, and compares
/// the document with the cases. `HOSTILE_CASE` is the name of the only one to run.
pub fn every_rule(heading: &str, cases: &[impl Rule]) {
    let host = Host::new("127.0.0.1 path=tcp");
    let only = std::env::var("HOSTILE_CASE").ok();
    let mut failed = Vec::new();
    for case in cases {
        let name = case.row().name;
        if only.as_deref().is_none_or(|only| only == name) {
            println!("{name}");
            let held = catch_unwind(AssertUnwindSafe(|| {
                case.run(&host);
                host.check_honest();
            }));
            if held.is_err() {
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    let rows: Vec<_> = cases.iter().map(Rule::row).collect();
    check_document(heading, &rows);
}
