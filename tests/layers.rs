//! The order of the layers: reads the imports of every file of the crate and fails on one that
//! goes up. docs/ARCHITECTURE.md says what the layers are for.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The layers from the lowest to the highest; those of one line are side by side and do not import
/// each other. A module belongs to the longest path that it begins with, and imports nothing of a
/// line below its own.
const ORDER: &[&[&str]] = &[
    &["any_stack", "system_call", "test_pages", "thread_sanitizer"],
    &["marked_call"],
    &[
        "lock",
        "cancel",
        "environment",
        "errno",
        "kernel",
        "reserve",
        "thread_destructors",
    ],
    &["signals"],
    &["sync"],
    &["delay"],
    &["process"],
    &["descriptor", "guarded"],
    &["log_sink"],
    &["abi"],
    &["error"],
    &["strerror", "handle"],
    &["device"],
    &[
        "device::attempt",
        "device::netif",
        "device::log_limit",
        "device::random",
    ],
    &["device::local_address", "device::qualifier"],
    &["device::connection_log"],
    &["device::events"],
    &[
        "device::verbs",
        "device::soft::iwarp",
        "device::soft::params",
    ],
    &[
        "device::soft::bad_keys",
        "device::soft::event_order",
        "device::soft::socket",
    ],
    &["device::soft::upcalls"],
    &["device::soft::engine"],
    &["device::soft::mem", "device::soft::turns"],
    &["device::soft::cq"],
    &["device::soft::device"],
    &["device::soft::qp"],
    &["device::soft::transport::close_timers"],
    &[
        "device::soft::transport::coalesce",
        "device::soft::transport::lifecycle",
    ],
    &[
        "device::soft::transport::loopback",
        "device::soft::transport::shm",
        "device::soft::transport::tcp",
    ],
    &["device::soft::transport::datagram"],
    &["device::soft::transport"],
    &["device::soft::cm"],
    &["device::soft"],
    &["figures"],
    &[
        "dapl::address",
        "dapl::function_table",
        "dapl::outstanding",
        "dapl::rules",
        "dapl::types",
        "dapl::wait_queue",
    ],
    &[
        "dapl::async_events",
        "dapl::counters",
        "dapl::ep_attr",
        "dapl::named_attributes",
        "dapl::parameters",
        "dapl::private_data",
    ],
    &["dapl::provider"],
    &["dapl::abi"],
    &["dapl::boundary", "dapl::unsupported"],
    &["dapl::ia", "dapl::work_request"],
    &["dapl::figures", "dapl::ia_query", "dapl::object"],
    &["dapl::cno", "dapl::pz", "dapl::resolution"],
    &["dapl::evd", "dapl::lmr", "dapl::srq"],
    &["dapl::ep", "dapl::ia_open"],
    &["dapl::counter_operations"],
    &["dapl::cr", "dapl::extension", "dapl::rmr"],
    &["dapl::counted_calls", "dapl::ordered_calls"],
    &["dapl::service"],
    &["dapl::csp", "dapl::psp", "dapl::rsp"],
    &["dapl::generic"],
    &["dapl::table"],
    &["dapl"],
    &["registry", "trace"],
    &["entry"],
    &["setup", "settings"],
    &["testing"],
    &[""],
];

/// The level of the layer of a module, and its name.
fn layer(module: &str) -> (usize, &'static str) {
    let within = |layer: &str| {
        layer.is_empty()
            || module == layer
            || module
                .strip_prefix(layer)
                .is_some_and(|rest| rest.starts_with("::"))
    };
    let all = ORDER.iter().enumerate();
    let all = all.flat_map(|(level, names)| names.iter().map(move |name| (level, *name)));
    all.filter(|(_, name)| within(name))
        .max_by_key(|(_, name)| name.len())
        .expect("the crate itself is a layer")
}

/// The files below a folder, without those of tests.
fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name == "tests" {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The module of a file: `src/device/soft/cq/mod.rs` is `device::soft::cq`.
fn module(file: &Path, root: &Path) -> String {
    let path = file.strip_prefix(root).unwrap().with_extension("");
    let mut names: Vec<_> = path.iter().map(|n| n.to_str().unwrap()).collect();
    names.pop_if(|name| ["mod", "lib"].contains(name));
    names.join("::")
}

/// A file without comments, strings and what is built for tests only.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut skip_item = false;
    for line in text.lines() {
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            skip_item = true;
        } else if skip_item {
            // An item ends with a line that is not indented.
            let ends = !line.starts_with([' ', '#', '/']);
            skip_item = !(ends && (line.ends_with(';') || line.starts_with('}')));
        } else {
            let line = line.split("//").next().unwrap();
            out.extend(line.split('"').step_by(2));
            out.push('\n');
        }
    }
    out
}

/// The paths that a tree of imports names: `a::{b, c::{d, e as f}}` are `a::b`, `a::c::d` and
/// `a::c::e`.
fn leaves(tree: &str, prefix: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap().trim();
        found.push(format!("{prefix}{}", path.trim_end_matches("::self")));
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut start) = (0, 0);
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                if !rest[start..at].trim().is_empty() {
                    leaves(&rest[start..at], &prefix, found);
                }
                start = at + 1;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The path from the root of the crate, if it begins in the crate.
fn absolute(path: &str, module: &str) -> Option<String> {
    let mut base: Vec<_> = module.split("::").filter(|n| !n.is_empty()).collect();
    let mut names = path.split("::").peekable();
    match names.peek().copied() {
        Some("crate" | "$crate") => base.clear(),
        Some("self" | "super") => {}
        _ => return None,
    }
    for name in names {
        match name {
            "crate" | "$crate" | "self" => {}
            "super" => {
                base.pop();
            }
            name => base.push(name),
        }
    }
    Some(base.join("::"))
}

/// What a file imports, or names by its path.
fn imports(code: &str, module: &str) -> BTreeSet<String> {
    let mut paths = Vec::new();
    let mut rest = String::new();
    for statement in code.split(';') {
        let (before, tree) = match statement.rfind("use ") {
            Some(at) if statement[..at].ends_with(['\n', ' ']) || at == 0 => statement.split_at(at),
            _ => (statement, ""),
        };
        rest.push_str(before);
        if let Some(tree) = tree.strip_prefix("use ") {
            leaves(tree, "", &mut paths);
        }
    }
    // The path in `pub(in crate::dapl)` is no import.
    let rest = rest.replace("pub(in crate::", "pub(");
    let word = |c: char| c.is_alphanumeric() || "_:$".contains(c);
    paths.extend(
        rest.split(|c| !word(c))
            .filter(|p| p.contains("::"))
            .map(str::to_owned),
    );
    paths
        .iter()
        .filter_map(|path| absolute(path, module))
        .collect()
}

/// The imports that go up, or to the side, as messages.
fn violations(file: &str, module: &str, text: &str) -> Vec<String> {
    let (level, own) = layer(module);
    let wrong = imports(&code(text), module).into_iter().filter(|path| {
        let (other, name) = layer(path);
        // A name of the crate itself is that of a macro.
        name != own && !name.is_empty() && other >= level
    });
    wrong.map(|path| format!("{file} imports {path}")).collect()
}

#[test]
fn imports_go_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&root, &mut found);
    assert!(found.len() > 100, "{} files", found.len());
    let wrong = found.iter().flat_map(|file| {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        violations(
            &name,
            &module(file, &root),
            &fs::read_to_string(file).unwrap(),
        )
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "{} imports go up:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn an_import_that_goes_up_is_found() {
    let check = |text: &str| violations("file", "device::soft::engine::timers", text).len();
    assert_eq!(
        check("use super::Inner;\nuse crate::handle::{Guard, pin};\n"),
        0
    );
    assert_eq!(check("use super::super::qp::state::QpState;\n"), 1);
    assert_eq!(
        check("use crate::{\n    handle::pin,\n    dapl::{ep::Ep, evd},\n};\n"),
        2
    );
    assert_eq!(
        check("pub(crate) use crate::device::soft::cm::{self as setup};\n"),
        1
    );
    assert_eq!(check("fn f() { crate::registry::open() }\n"), 1);
    assert_eq!(check("// use crate::registry::open;\n"), 0);
    assert_eq!(
        check("#[cfg(test)]\nmod tests {\n    use crate::registry::open;\n}\n"),
        0
    );
    assert_eq!(
        check("#[cfg(test)]\nuse crate::registry::open;\nuse crate::entry::guard;\n"),
        1
    );
    let beside = violations(
        "file",
        "device::soft::transport::tcp::rx",
        "use super::super::shm::Ring;",
    );
    assert_eq!(beside, ["file imports device::soft::transport::shm::Ring"]);
}

#[test]
fn the_files_that_the_architecture_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let named = text.split('`').skip(1).step_by(2);
    let named: BTreeSet<&str> = named
        .filter(|name| name.starts_with("src/") && !name.contains(['*', '{']))
        .collect();
    assert!(named.len() > 20, "{named:?}");
    let gone: Vec<_> = named
        .iter()
        .filter(|name| !root.join(name).exists())
        .collect();
    assert!(gone.is_empty(), "{gone:?}");
}

/// Packages with `test = false` are not built for tests; one that gets tests needs that.
#[test]
fn packages_that_are_not_built_for_tests_have_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    for folder in [
        "libdat",
        "libdat2",
        "providers/soft-1",
        "providers/soft-2",
        "providers/verbs-1",
        "providers/verbs-2",
        "tests/model",
        "tests/sim",
    ] {
        let folder = root.join(folder);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\ntest = false\n"), "{folder:?}");
        let mut sources = Vec::new();
        files(&folder, &mut sources);
        for source in &sources {
            let text = fs::read_to_string(source).unwrap();
            assert!(!text.contains("#[test]"), "{source:?}");
            found += 1;
        }
    }
    assert!(found > 8, "{found}");
}
