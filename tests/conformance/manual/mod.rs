//! The manual pages of the functions, `man/man3/`, are made of the rows of the matrix, of the
//! prototypes in the headers, and of `man/functions/`, which has what these two do not say.

mod markup;
mod page;
mod prototypes;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Once;

use crate::rows::{ROWS, read, root, rows};
use crate::skip::skip;
use page::Manual;
use prototypes::Version;
use source::{FOLDER, Source};

/// The folder of the pages.
const PAGES: &str = "man/man3";

/// The exported functions, and the macros of the headers that programs call as functions, which have
/// no page yet.
const NOT_WRITTEN: &[&str] = &[
    "dat_cno_create",
    "dat_cno_fd_create",
    "dat_cno_free",
    "dat_cno_modify_agent",
    "dat_cno_query",
    "dat_cno_trigger",
    "dat_cno_wait",
    "dat_cr_accept",
    "dat_cr_handoff",
    "dat_cr_query",
    "dat_cr_reject",
    "dat_csp_create",
    "dat_csp_free",
    "dat_csp_query",
    "dat_evd_clear_unwaitable",
    "dat_evd_create",
    "dat_evd_dequeue",
    "dat_evd_disable",
    "dat_evd_enable",
    "dat_evd_free",
    "dat_evd_modify_cno",
    "dat_evd_post_se",
    "dat_evd_query",
    "dat_evd_resize",
    "dat_evd_set_unwaitable",
    "dat_extension_op",
    "dat_get_consumer_context",
    "dat_get_handle_type",
    "dat_ia_close",
    "dat_ia_openv",
    "dat_ia_query",
    "dat_ib_close_query",
    "dat_ib_collective_allgather",
    "dat_ib_collective_allgatherv",
    "dat_ib_collective_allreduce",
    "dat_ib_collective_alltoall",
    "dat_ib_collective_alltoallv",
    "dat_ib_collective_barrier",
    "dat_ib_collective_broadcast",
    "dat_ib_collective_create_group",
    "dat_ib_collective_create_member",
    "dat_ib_collective_free_group",
    "dat_ib_collective_free_member",
    "dat_ib_collective_gather",
    "dat_ib_collective_gatherv",
    "dat_ib_collective_read_clock",
    "dat_ib_collective_reduce",
    "dat_ib_collective_reduce_scatter",
    "dat_ib_collective_scan",
    "dat_ib_collective_scatter",
    "dat_ib_collective_scatterv",
    "dat_ib_collective_set_clock",
    "dat_ib_open_query",
    "dat_ib_post_cmp_and_swap",
    "dat_ib_post_fetch_and_add",
    "dat_ib_post_rdma_write_immed",
    "dat_ib_post_send_ud",
    "dat_ib_print_counters",
    "dat_ib_query_counters",
    "dat_ib_start_counter",
    "dat_ib_stop_counter",
    "dat_ib_ud_ah_free",
    "dat_ib_ud_cm_free",
    "dat_lmr_free",
    "dat_lmr_query",
    "dat_lmr_sync_rdma_read",
    "dat_lmr_sync_rdma_write",
    "dat_provider_fini",
    "dat_provider_init",
    "dat_psp_create",
    "dat_psp_create_any",
    "dat_psp_free",
    "dat_psp_query",
    "dat_pz_create",
    "dat_pz_free",
    "dat_pz_query",
    "dat_registry_add_provider",
    "dat_registry_list_providers",
    "dat_registry_providers_related",
    "dat_registry_remove_provider",
    "dat_rmr_bind",
    "dat_rmr_create",
    "dat_rmr_create_for_ep",
    "dat_rmr_free",
    "dat_rmr_query",
    "dat_rsp_create",
    "dat_rsp_free",
    "dat_rsp_query",
    "dat_set_consumer_context",
    "dat_srq_create",
    "dat_srq_free",
    "dat_srq_post_recv",
    "dat_srq_query",
    "dat_srq_resize",
    "dat_srq_set_lw",
    "dat_strerror",
    "dats_get_ia_handle",
];

fn fail(faults: &[String]) {
    assert!(
        faults.is_empty(),
        "{} faults\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// The files of the pages and their texts: a page for each source, and for each further function of
/// a source one that refers to it.
fn files(manual: &Manual) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for source in &manual.sources {
        files.insert(format!("{}.3", source.name), manual.page(source));
        for function in manual.functions_of(source) {
            let reference = format!(".so man3/{}.3\n", source.name);
            files.entry(format!("{function}.3")).or_insert(reference);
        }
    }
    files
}

/// The folder of the pages, which are written first if that is asked for: tests run side by side.
fn folder(manual: &Manual) -> PathBuf {
    static UPDATED: Once = Once::new();
    let folder = root().join(PAGES);
    UPDATED.call_once(|| {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            for (name, page) in files(manual) {
                fs::write(folder.join(name), page).unwrap();
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
        let there = fs::read_to_string(folder.join(name)).unwrap_or_default();
        if there != *page {
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
        let waits = NOT_WRITTEN.contains(&function.as_str());
        match (written.contains(&function), waits) {
            (false, false) => faults.push(format!("{function} has no page in {FOLDER}")),
            (true, true) => {
                faults.push(format!("{function} has a page: strike it from NOT_WRITTEN"))
            }
            _ => {}
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
    for row in &rows {
        let of_function = row.subject.starts_with("dat_") || row.subject.starts_with("dats_");
        if !of_function || NOT_WRITTEN.contains(&row.subject) {
            continue;
        }
        let pages: Vec<&Source> = manual
            .sources
            .iter()
            .filter(|source| manual.rows_of(source).iter().any(|r| r.id == row.id))
            .collect();
        if pages.is_empty() && !NOT_WRITTEN.iter().any(|name| name.starts_with("dat_ib_")) {
            faults.push(format!(
                "{}: no page has this row of {}",
                row.id, row.subject
            ));
        }
        for source in pages {
            let page = folder(&manual).join(format!("{}.3", source.name));
            let page = fs::read_to_string(page).unwrap_or_default();
            let code = matches!(row.kind, "return" | "event") && row.what.starts_with("DAT_");
            if code
                && !page
                    .lines()
                    .any(|line| line == format!(".It Dv {}", row.what))
            {
                faults.push(format!(
                    "{PAGES}/{}.3 lacks {} ({})",
                    source.name, row.what, row.id
                ));
            }
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
const OF_THE_SYSTEM: [&str; 14] = [
    "clone 2",
    "dlopen 3",
    "epoll 7",
    "fork 3",
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
                let waits = page
                    .strip_suffix(" 3")
                    .is_some_and(|name| NOT_WRITTEN.contains(&name));
                if !there.contains(&page) && !waits {
                    faults.push(format!("{}: there is no page {page}", path.display()));
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
            let Some((_, _, prototype)) = prototypes.iter().find(|(_, v, _)| *v == version) else {
                continue;
            };
            let header = match prototype.header.as_str() {
                "" => format!("{}/udat.h", version.folder()),
                header => header.to_owned(),
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
