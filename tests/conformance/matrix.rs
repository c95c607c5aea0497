//! Every row of the matrix has tests, or a reason why no caller can provoke it, in
//! `tests-c/conformance/coverage.tsv`, and the document shows both.
//!
//! Coverage: the id of the row, and either the names of tests, separated by blanks, or
//! `exclude: REASON`. A test is `PROGRAM/OBJECT.CASE`, as the C suite prints it
//! (`t_post/post_send.queue_full`), or `FILE::FUNCTION` for a test of cargo.
//!
//! `docs/conformance.md` is made of both. `UPDATE_DOCS=1 cargo test --test conformance` writes
//! it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use crate::rows::{COVERAGE, ROWS, Row, read, root, rows, table};

const FIGURES: &str = "tests/mutants/figures.tsv";
const DOCUMENT: &str = "docs/conformance.md";

enum Covered<'a> {
    Tests(Vec<&'a str>),
    Excluded(&'a str),
}

fn coverage(text: &str) -> (BTreeMap<&str, Covered<'_>>, Vec<String>) {
    let mut map = BTreeMap::new();
    let mut faults = Vec::new();
    for fields in table(text) {
        let [id, what] = fields[..] else {
            faults.push(format!("{COVERAGE}: not two fields: {fields:?}"));
            continue;
        };
        let covered = match what.strip_prefix("exclude:") {
            Some(reason) => Covered::Excluded(reason.trim()),
            None => Covered::Tests(what.split_whitespace().collect()),
        };
        if map.insert(id, covered).is_some() {
            faults.push(format!("{COVERAGE}: {id} is there twice"));
        }
    }
    (map, faults)
}

/// The names between `open` and `close` that make up an identifier list of a macro call.
fn calls<'a>(source: &'a str, open: &str) -> impl Iterator<Item = Vec<&'a str>> {
    source.match_indices(open).filter_map(move |(at, _)| {
        let rest = &source[at + open.len()..];
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let end = rest.find([')', '\n'])?;
        Some(rest[..end].split(',').map(str::trim).collect())
    })
}

/// The tests of the C suite, from the lists in its sources.
fn c_tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for entry in fs::read_dir(root().join("tests-c")).unwrap() {
        let path = entry.unwrap().path();
        let Some(program) = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".c"))
            .filter(|name| name.starts_with("t_"))
        else {
            continue;
        };
        let source = fs::read_to_string(&path).unwrap();
        for names in calls(&source, "T(") {
            match names[..] {
                // A list made by a macro: its entries are the X(NAME, ...) of the source.
                [object, "name"] => {
                    for entry in calls(&source, "X(") {
                        tests.insert(format!("{program}/{object}.{}", entry[0]));
                    }
                }
                [object, case] => {
                    tests.insert(format!("{program}/{object}.{case}"));
                }
                _ => {}
            }
        }
    }
    tests
}

/// Whether a test exists, of the C suite or of cargo.
fn exists(test: &str, c_tests: &BTreeSet<String>) -> bool {
    match test.split_once("::") {
        Some((file, function)) => fs::read_to_string(root().join(file))
            .is_ok_and(|source| source.contains(&format!("fn {function}("))),
        None => c_tests.contains(test),
    }
}

#[test]
fn every_row_is_tested_or_excluded() {
    let (rows_text, coverage_text) = (read(ROWS), read(COVERAGE));
    let rows = rows(&rows_text);
    let (coverage, mut faults) = coverage(&coverage_text);
    let c_tests = c_tests();
    let mut ids = BTreeSet::new();
    for row in &rows {
        if !ids.insert(row.id) {
            faults.push(format!("{ROWS}: {} is there twice", row.id));
        }
        match coverage.get(row.id) {
            None => faults.push(format!(
                "{} has neither a test nor a reason: {} {} ({})",
                row.id, row.subject, row.what, row.condition
            )),
            Some(Covered::Excluded("")) => faults.push(format!("{}: no reason", row.id)),
            Some(Covered::Tests(tests)) if tests.is_empty() => {
                faults.push(format!("{}: no test", row.id));
            }
            Some(Covered::Tests(tests)) => {
                for test in tests.iter().filter(|test| !exists(test, &c_tests)) {
                    faults.push(format!("{}: there is no test {test}", row.id));
                }
            }
            Some(Covered::Excluded(_)) => {}
        }
    }
    for id in coverage.keys().filter(|id| !ids.contains(**id)) {
        faults.push(format!("{COVERAGE}: there is no row {id}"));
    }
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// A test as a link to its source.
fn link(test: &str) -> String {
    match test.split_once("::") {
        Some((file, function)) => format!("[{function}](../{file})"),
        None => {
            let (program, name) = test.split_once('/').unwrap_or((test, test));
            format!("[{name}](../tests-c/{program}.c)")
        }
    }
}

fn cell(covered: Option<&Covered<'_>>) -> String {
    match covered {
        Some(Covered::Tests(tests)) => {
            let links: Vec<String> = tests.iter().map(|test| link(test)).collect();
            links.join(", ")
        }
        Some(Covered::Excluded(reason)) => format!("*excluded*: {reason}"),
        None => String::new(),
    }
}

const HEAD: &str = "# The conformance matrix

What the man pages of uDAPL promise, and the test that holds the library to it. The rows are in
[rows.tsv](../tests-c/conformance/rows.tsv), their tests in
[coverage.tsv](../tests-c/conformance/coverage.tsv); this page is made of the two and of
[figures.tsv](../tests/mutants/figures.tsv), and `cargo test --test conformance` fails when a row has neither a test nor a reason, when a test
does not exist, or when this page is not up to date (`UPDATE_DOCS=1` writes it).

The library keeps to the letter of the pages with `rules=pages` in `dat.conf`; without it some of
what they refuse is accepted, since programs do it (`dat.conf(5)` has the table). Those rows are the
last ones here.

The C suite is compiled against DAT 1.2 and DAT 2.0 and runs over every path of the soft
provider: `make ctest`. One test alone: `build/release/dat/t_post soft post_send.queue_full`.
";

/// The introduction of the figures of mutation testing.
const MUTATION_HEAD: &str = "
## Mutation testing

`make mutants` changes the library in one place after another and runs the tests on each of these
mutants. Some were caught only by tests that were written because of them, some lay in code that is gone
since, and some change nothing that a program could notice
([explained.tsv](../tests/mutants/explained.tsv)). Those tried so far are a random part of all.

| sources | mutants | tried | not compiled | caught | by tests since | code removed | without effect | not caught |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// The page.
fn document(rows: &[Row<'_>], coverage: &BTreeMap<&str, Covered<'_>>) -> String {
    let mut page = HEAD.to_owned();
    let kinds = [
        ("return", "Return codes", "Code"),
        ("event", "Events", "Event"),
        ("parameter", "Parameters", "Parameter"),
        ("transition", "Transitions of an endpoint", "From → to"),
        ("rule", "Rules", "Rule"),
        ("program", "Against the letter, for programs", "Code"),
    ];
    page.push_str("\n| | rows | tested | excluded |\n|---|---:|---:|---:|\n");
    for (kind, title, _) in kinds {
        let of_kind = rows.iter().filter(|row| row.kind == kind);
        let excluded = of_kind
            .clone()
            .filter(|row| matches!(coverage.get(row.id), Some(Covered::Excluded(_))))
            .count();
        let all = of_kind.count();
        let tested = all - excluded;
        let _ = writeln!(page, "| {title} | {all} | {tested} | {excluded} |");
    }
    page.push_str(MUTATION_HEAD);
    for figures in table(&read(FIGURES)) {
        let _ = writeln!(page, "| `{}` | {} |", figures[0], figures[1..].join(" | "));
    }
    for (kind, title, first) in kinds {
        let _ = write!(page, "\n## {title}\n");
        let mut subject = "";
        for row in rows.iter().filter(|row| row.kind == kind) {
            if row.subject != subject {
                subject = row.subject;
                let heading = match kind {
                    "rule" | "transition" => subject.replace('_', " "),
                    _ => format!("`{subject}`"),
                };
                let _ = write!(page, "\n### {heading}\n\n");
                let second = if kind == "parameter" { "What" } else { "When" };
                let _ = writeln!(page, "| {first} | {second} | Tests |\n|---|---|---|");
            }
            let what = match row.what {
                "-" => row.id.split_once('.').map_or(row.id, |(_, name)| name),
                what => what,
            };
            let condition = row.condition.replace('|', "\\|");
            let tests = cell(coverage.get(row.id)).replace('|', "\\|");
            let _ = writeln!(page, "| `{what}` | {condition} | {tests} |");
        }
    }
    page
}

#[test]
fn the_document_is_up_to_date() {
    let (rows_text, coverage_text) = (read(ROWS), read(COVERAGE));
    let page = document(&rows(&rows_text), &coverage(&coverage_text).0);
    let path = root().join(DOCUMENT);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, page).unwrap();
    } else {
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == page,
            "{DOCUMENT} is out of date: UPDATE_DOCS=1 cargo test --test conformance"
        );
    }
}

#[test]
fn tests_are_found_in_the_sources() {
    let tests = c_tests();
    for test in [
        "t_post/post_send.queue_full",
        "t_handle/handle.pz_free",
        "t_handle/handle.get_handle_type",
    ] {
        assert!(exists(test, &tests), "{test}");
    }
    assert!(!exists("t_post/post_send.no_such_case", &tests));
    assert!(!exists("tests/abi.rs::no_such_function", &tests));
    // Neither a check nor the definition of a macro is a test.
    assert!(!tests.iter().any(|test| test.contains([' ', '#'])));
}
