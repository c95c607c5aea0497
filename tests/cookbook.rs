//! What docs/cookbook.md says is what there is: messages are those of the sources, commands and options
//! exist, entries of `dat.conf` are entries, links lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};

use dat_core::registry::parse;

/// Commands of the system that the text uses.
const SYSTEM: &[&str] = &[
    "docker",
    "echo",
    "ip",
    "ldd",
    "mpirun",
    "rdma",
    "rustup",
    "ulimit",
    "unshare",
    "./your-program",
];

/// What the text quotes of the dynamic loader.
const LOADER: &str = "cannot open shared object file";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn text() -> String {
    read("docs/cookbook.md")
}

/// The sources below a directory that are not tests, as one text in which a literal has no line ends.
fn sources(directory: &str) -> String {
    let mut all = String::new();
    let mut pending: Vec<PathBuf> = vec![root().join(directory)];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                pending.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = fs::read_to_string(path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                all += code;
            }
        }
    }
    let mut joined = String::new();
    for line in all.lines() {
        match line.strip_suffix('\\') {
            Some(begun) if joined.is_empty() || !joined.ends_with('\n') => {
                joined += begun.trim_start();
            }
            Some(begun) => joined += begun,
            None if joined.ends_with('\n') || joined.is_empty() => {
                joined += line;
                joined.push('\n');
            }
            None => {
                joined += line.trim_start();
                joined.push('\n');
            }
        }
    }
    joined
        .replace("{OVERRIDE}", "DAT_OVERRIDE")
        .replace("{FALLBACK}", "DAT_FALLBACK")
}

/// The texts between backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The cells of the rows of all tables.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with('|'));
    lines
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// The lines of the code blocks of a kind.
fn blocks<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(name) => inside = name == kind,
            None if inside => lines.push(line),
            None => {}
        }
    }
    lines
}

/// The constant parts of a message of the text.
fn parts(message: &str) -> impl Iterator<Item = &str> {
    message
        .split('…')
        .flat_map(|part| part.split(": "))
        .flat_map(|part| part.split(" ("))
        .map(|part| part.trim_matches([' ', ',', ':', ')', '"']))
        .filter(|part| part.len() > 5)
}

#[test]
fn messages_are_printed_by_the_library() {
    let text = text();
    let printed = sources("src") + &sources("tools/src");
    let codes = read("include/dat2/dat_error.h") + &read("include/dat2/dat.h");
    let (before, table) = text.split_once("| what is seen |").unwrap();
    let mut messages: Vec<&str> = rows(table)
        .iter()
        .flat_map(|cells| quoted(cells[0]).collect::<Vec<_>>())
        .filter(|quote| quote.contains(' ') || quote.starts_with("DAT_"))
        .collect();
    messages.extend(
        rows(before)
            .iter()
            .flat_map(|cells| {
                cells
                    .iter()
                    .flat_map(|cell| quoted(cell))
                    .collect::<Vec<_>>()
            })
            .filter(|quote| quote.contains("refused")),
    );
    assert!(messages.len() > 25, "{}", messages.len());
    for message in messages {
        for part in parts(message) {
            let is_code = |word: &str| word.starts_with("DAT_") && codes.contains(word);
            let found = printed.contains(part)
                || part == LOADER
                || part.split(' ').all(is_code)
                // What the system says of an error.
                || message.contains(&format!("({part} (os error"))
                || part.starts_with("os error ");
            let of_call = part == "DAT_DBG_TYPE=0x02";
            assert!(
                found || of_call,
                "nobody prints \"{part}\" of \"{message}\""
            );
        }
    }
}

#[test]
fn commands_exist() {
    let text = text();
    let makefile = read("Makefile");
    let blocks = blocks(&text, "sh");
    let lines = blocks.iter().map(|line| line.split(" #").next().unwrap());
    let inline = quoted(&text).filter(|quote| {
        ["dat-info ", "dat-perf ", "dat-top ", "dat-trace ", "make "]
            .iter()
            .any(|command| quote.starts_with(command))
    });
    let mut count = 0;
    for line in lines.chain(inline).map(str::trim) {
        let words = line.split_whitespace();
        let mut words = words.skip_while(|word| {
            word.contains('=') && !word.starts_with('-') || ["sudo", "-E"].contains(word)
        });
        let Some(command) = words.next().filter(|command| *command != "export") else {
            continue;
        };
        count += 1;
        match command {
            "dat-info" | "dat-perf" | "dat-top" | "dat-trace" => {
                let page = read(&format!("man/{command}.1"));
                let options = words.take_while(|word| *word != "./your-program");
                for option in options.filter_map(|word| word.strip_prefix('-')) {
                    assert!(page.contains(&format!("Fl {option}")), "{line}");
                }
            }
            "make" => {
                let target = words.next().unwrap();
                let phony = makefile.lines().find(|line| line.starts_with(".PHONY:"));
                let mut targets = phony.unwrap().split(' ');
                assert!(targets.any(|known| known == target), "{line}");
            }
            _ => assert!(SYSTEM.contains(&command), "{line}"),
        }
    }
    assert!(count > 12, "{count}");
}

#[test]
fn entries_are_entries() {
    let text = text();
    let page = read("man/dat.conf.5");
    let lines = blocks(&text, "conf");
    assert!(lines.len() >= 8);
    for line in lines {
        let (_, entry) = parse::parse(line.as_bytes()).next().expect(line);
        let entry = entry.unwrap_or_else(|fault| panic!("{line}: {fault}"));
        assert!(entry.installed(), "{line}");
        let parameters = entry.ia_params.to_str().unwrap();
        for (key, _) in parameters
            .split(' ')
            .filter_map(|word| word.split_once('='))
        {
            assert!(page.contains(&format!(".It Cm {key} Ns =")), "{line}");
        }
    }
    // And those in the text: `mtu=`.
    for quote in quoted(&text) {
        if let Some(key) = quote.strip_suffix('=') {
            assert!(page.contains(&format!(".It Cm {key} Ns =")), "{quote}");
        }
    }
}

#[test]
fn variables_are_known() {
    let known = read("man/dat.conf.5") + &read("include/dat2/dat_error.h");
    let known = known + &read("include/dat2/dat.h") + &read("include/dat2/udat.h");
    let text = text();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    for word in words.filter(|word| word.starts_with("DAT_") || word.starts_with("DAPL_")) {
        assert!(known.contains(word), "{word}");
    }
}

#[test]
fn links_lead_somewhere() {
    let text = text();
    let anchor = |title: &str| {
        let title = title.to_lowercase().replace(' ', "-");
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || *c == '-')
            .collect::<String>()
    };
    let headings: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(anchor)
        .collect();
    let links = text
        .split("](")
        .skip(1)
        .map(|rest| rest.split(')').next().unwrap());
    let mut count = 0;
    for link in links {
        count += 1;
        match link.strip_prefix('#') {
            Some(name) => assert!(headings.iter().any(|heading| heading == name), "{link}"),
            None => assert!(root().join("docs").join(link).exists(), "{link}"),
        }
    }
    assert!(count > 8, "{count}");
}
