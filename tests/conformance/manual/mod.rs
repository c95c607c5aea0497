//! The manual pages of the functions, `man/man3/`, are made of the rows of the matrix, of the
//! prototypes in the headers, and of `man/functions/`, which has what these two do not say.

mod markup;
mod page;
mod prototypes;
mod sections;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use crate::rows::{ROWS, read, root, rows};
use crate::skip::skip;
use page::Manual;
use prototypes::Version;
use source::{FOLDER, Source};

/// The folder of the pages.
const PAGES: &str = "man/man3";

fn fail(faults: &[String]) {
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// A file of the folder of pages.
#[derive(PartialEq)]
enum File {
    Page(String),
    /// A further function of a page: a symbolic link to its file.
    Link(String),
}

impl File {
    fn read(path: &Path) -> Option<File> {
        match fs::read_link(path) {
            Ok(target) => Some(File::Link(target.to_str()?.to_owned())),
            Err(_) => fs::read_to_string(path).ok().map(File::Page),
        }
    }

    fn write(&self, path: &Path) {
        let _ = fs::remove_file(path);
        match self {
            File::Page(text) => fs::write(path, text).unwrap(),
            File::Link(target) => symlink(target, path).unwrap(),
        }
    }
}

/// The files: a page for each source, and a link for each further function of a source.
fn files(manual: &Manual) -> BTreeMap<String, File> {
    let mut files = BTreeMap::new();
    for source in &manual.sources {
        let file = format!("{}.3", source.name);
        for function in manual.functions_of(source) {
            files
                .entry(format!("{function}.3"))
                .or_insert(File::Link(file.clone()));
        }
        files.insert(file, File::Page(manual.page(source)));
    }
    files
}

/// The folder of the pages, which are written first if that is asked for: tests run side by side.
fn folder(manual: &Manual) -> PathBuf {
    static UPDATED: Once = Once::new();
    let folder = root().join(PAGES);
    UPDATED.call_once(|| {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            for (name, file) in files(manual) {
                file.write(&folder.join(name));
            }
        }
    });
    folder
}

#[test]
fn the_pages_are_up_to_date() {
    let text = read(ROWS);
    let rows = rows(&text);
    let manual = Manual::new(&rows);
    let folder = folder(&manual);
    let files = files(&manual);
    let mut faults = Vec::new();
    for (name, page) in &files {
        if File::read(&folder.join(name)).as_ref() != Some(page) {
            faults.push(format!(
                "{PAGES}/{name} is out of date: UPDATE_DOCS=1 cargo test --test conformance"
            ));
        }
    }
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !files.contains_key(&name) {
            faults.push(format!("{PAGES}/{name} has no source in {FOLDER}"));
        }
    }
    fail(&faults);
}

/// The functions that have to have a page, of both libraries.
fn functions(manual: &Manual) -> BTreeSet<String> {
    let mut functions = BTreeSet::new();
    for list in ["symbols-1.2", "symbols-2.0", "added-2.0"] {
        let text = read(&format!("abi/{list}.txt"));
        functions.extend(text.lines().map(str::to_owned));
    }
    for headers in manual.headers.values() {
        functions.extend(headers.macros.keys().cloned());
    }
    functions
}

#[test]
fn every_function_has_a_page() {
    let text = read(ROWS);
    let rows = rows(&text);
    let manual = Manual::new(&rows);
    let written: BTreeSet<String> = manual
        .sources
        .iter()
        .flat_map(|source| manual.functions_of(source))
        .collect();
    let mut faults = Vec::new();
    for function in functions(&manual) {
        if !written.contains(&function) {
            faults.push(format!("{function} has no page in {FOLDER}"));
        }
    }
    fail(&faults);
}

/// What the source of a page declares beside the headers is what they define.
fn declared_faults(manual: &Manual, source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, version, prototype) in manual.prototypes(source) {
        let headers = &manual.headers[&version];
        let names: Vec<_> = prototype
            .parameters
            .iter()
            .map(|p| p.name.clone())
            .collect();
        match headers.macros.get(&name) {
            Some((header, arguments)) => {
                if *arguments != names || *header != prototype.header {
                    faults.push(format!(
                        "{FOLDER}/{}.txt: {header} has {name}{arguments:?}",
                        source.name
                    ));
                }
            }
            None if headers.functions.contains_key(&name) => {}
            None if prototype.header.is_empty() => {}
            // What a provider library has, and the registry calls.
            None if read(&format!("include/{}", prototype.header)).contains(&name) => {}
            None => faults.push(format!("{}: no header declares {name}", source.name)),
        }
    }
    faults
}

#[test]
fn the_parameters_are_those_of_the_prototypes() {
    let text = read(ROWS);
    let rows = rows(&text);
    let manual = Manual::new(&rows);
    let mut faults = Vec::new();
    for source in &manual.sources {
        let path = format!("{FOLDER}/{}.txt", source.name);
        let parameters = manual.parameters_of(source);
        faults.extend(declared_faults(&manual, source));
        for (name, text) in &source.parameters {
            if !parameters.contains(name) {
                faults.push(format!("{path}: no prototype has the parameter {name}"));
            }
            if text.is_empty() {
                faults.push(format!("{path}: nothing is said of {name}"));
            }
        }
        let rows = manual.rows_of(source);
        for name in &parameters {
            let in_rows = rows
                .iter()
                .any(|row| row.kind == "parameter" && row.what == name);
            if !in_rows && !source.parameters.iter().any(|(n, _)| n == name) {
                faults.push(format!("{path}: nothing is said of the parameter {name}"));
            }
        }
    }
    fail(&faults);
}

/// Read from the pages themselves: what the matrix promises is there to read.
#[test]
fn the_pages_have_every_code_and_event_of_the_rows() {
    let text = read(ROWS);
    let rows = rows(&text);
    let manual = Manual::new(&rows);
    let mut faults = Vec::new();
    let mut there = BTreeSet::new();
    for source in &manual.sources {
        let path = folder(&manual).join(format!("{}.3", source.name));
        let page = fs::read_to_string(path).unwrap_or_default();
        let lines: BTreeSet<&str> = page.lines().collect();
        for row in manual.rows_of(source) {
            there.insert(row.id);
            let code = matches!(row.kind, "return" | "event") && row.what.starts_with("DAT_");
            if code && !lines.contains(format!(".It Dv {}", row.what).as_str()) {
                faults.push(format!(
                    "{PAGES}/{}.3 lacks {} ({})",
                    source.name, row.what, row.id
                ));
            }
        }
    }
    for row in &rows {
        let of_function = row.subject.starts_with("dat_") || row.subject.starts_with("dats_");
        if of_function && !there.contains(row.id) {
            faults.push(format!(
                "{}: no page has this row of {}",
                row.id, row.subject
            ));
        }
    }
    fail(&faults);
}

/// The manual pages of the project, those that are not made by this test, too.
fn pages() -> Vec<PathBuf> {
    let text = read(ROWS);
    folder(&Manual::new(&rows(&text)));
    let mut pages = Vec::new();
    for folder in ["man", PAGES] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let section = path
                .extension()
                .and_then(|e| e.to_str())
                .unwrap_or_default();
            if section.len() == 1 && section.chars().all(|c| c.is_ascii_digit()) {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Pages of the system that ours refer to.
const OF_THE_SYSTEM: [&str; 17] = [
    "_exit 2",
    "clone 2",
    "dlopen 3",
    "epoll 7",
    "exit 3",
    "fork 3",
    "ibv_get_async_event 3",
    "madvise 2",
    "pkg-config 1",
    "poll 2",
    "prctl 2",
    "pthread_cancel 3",
    "process_vm_readv 2",
    "rdma_get_cm_event 3",
    "secure_getenv 3",
    "setrlimit 2",
    "userfaultfd 2",
];

#[test]
fn cross_references_exist() {
    let mut there: BTreeSet<String> = OF_THE_SYSTEM.map(str::to_owned).into();
    for path in pages() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some((name, section)) = name.rsplit_once('.') {
            there.insert(format!("{name} {section}"));
        }
    }
    let mut faults = Vec::new();
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| line.starts_with('.')) {
            let words: Vec<&str> = line[1..].split_whitespace().collect();
            for at in (0..words.len()).filter(|at| words[*at] == "Xr") {
                let page = words[at + 1..]
                    .iter()
                    .take(2)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(" ");
                if !there.contains(&page) {
                    faults.push(format!(
                        "{}: there is no page {page}, of ours or in OF_THE_SYSTEM",
                        path.display()
                    ));
                }
            }
        }
    }
    fail(&faults);
}

/// `libdat(7)` is the way to all of them.
#[test]
fn the_overview_names_every_function() {
    let text = read(ROWS);
    let rows = rows(&text);
    let manual = Manual::new(&rows);
    let overview = read("man/libdat.7");
    let of_collectives = |name: &str| name.starts_with("dat_ib_collective_");
    let faults: Vec<String> = functions(&manual)
        .into_iter()
        .filter(|name| !of_collectives(name))
        .filter(|name| !overview.contains(&format!("Xr {name} 3")))
        .map(|name| format!("man/libdat.7 has no reference to {name}(3)"))
        .collect();
    fail(&faults);
}

#[test]
fn mandoc_has_no_complaint() {
    if Command::new("mandoc")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        return skip("mandoc is not installed");
    }
    // In the folder that a page which refers to another one starts from.
    let output = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .args(pages())
        .current_dir(root().join("man"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// What an example may use beside the header of its page.
const PREAMBLE: &str = "#include <arpa/inet.h>\n#include <poll.h>\n#include <stdio.h>\n\
                        #include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n";

#[test]
fn examples_compile() {
    let text = read(ROWS);
    let rows = rows(&text);
    let manual = Manual::new(&rows);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("examples");
    fs::create_dir_all(&folder).unwrap();
    let mut faults = Vec::new();
    for version in Version::ALL {
        let mut files = Vec::new();
        for source in &manual.sources {
            let prototypes = manual.prototypes(source);
            let of_version = prototypes.iter().find(|(_, v, _)| *v == version);
            let header = match of_version {
                None if !prototypes.is_empty() => continue,
                Some((_, _, prototype)) if !prototype.header.is_empty() => prototype.header.clone(),
                _ => format!("{}/udat.h", version.folder()),
            };
            for (number, example) in source.examples.iter().enumerate() {
                if example.version.is_none_or(|only| only == version) {
                    let file =
                        folder.join(format!("{}-{number}-{}.c", source.name, version.folder()));
                    let code =
                        format!("{PREAMBLE}#include <{header}>\n#line 1\n{}\n", example.code);
                    fs::write(&file, code).unwrap();
                    files.push(file);
                }
            }
        }
        assert!(!files.is_empty(), "no example for {}", version.name());
        let output = Command::new("cc")
            .args([
                "-std=c11",
                "-D_GNU_SOURCE",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
            ])
            .arg("-I")
            .arg(root().join("include"))
            .args(&files)
            .output()
            .unwrap();
        if !output.status.success() {
            faults.push(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    fail(&faults);
}
