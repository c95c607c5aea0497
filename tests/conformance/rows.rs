//! The rows of the conformance matrix, from `tests-c/conformance/rows.tsv`: id, kind (`return`,
//! `event`, `parameter`, `transition`, `rule`; `program` for what the default of `rules=` in
//! `dat.conf` accepts against the letter), the function or section, the code, event or parameter, the
//! condition or what the parameter is. The document and the manual pages are made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const ROWS: &str = "tests-c/conformance/rows.tsv";
pub const COVERAGE: &str = "tests-c/conformance/coverage.tsv";

/// The directory of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The text of a file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The lines of a table that are not comments, split at tabs.
pub fn table(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split('\t').collect())
}

pub struct Row<'a> {
    pub id: &'a str,
    pub kind: &'a str,
    /// Function, or section of the rules.
    pub subject: &'a str,
    /// Return code, event, parameter or transition; `-` where the id says it all.
    pub what: &'a str,
    pub condition: &'a str,
}

/// The rows that no caller can cause on the soft provider, with the reason, from
/// `tests-c/conformance/coverage.tsv`; without the tests that a reason may name behind a semicolon.
pub fn excluded(coverage: &str) -> BTreeMap<&str, &str> {
    table(coverage)
        .filter_map(|fields| {
            let reason = fields.get(1)?.strip_prefix("exclude:")?;
            Some((fields[0], reason.split(';').next()?.trim()))
        })
        .collect()
}

pub fn rows(text: &str) -> Vec<Row<'_>> {
    table(text)
        .map(|fields| match fields[..] {
            [id, kind, subject, what, condition] => Row {
                id,
                kind,
                subject,
                what,
                condition,
            },
            _ => panic!("{ROWS}: not five fields: {fields:?}"),
        })
        .collect()
}
