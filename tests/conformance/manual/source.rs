//! The sources of the manual pages, `man/functions/*.txt`: what the rows of the matrix and the
//! headers do not say of a function.
//!
//! A source is a list of sections. Each begins with a line `@NAME`, with an argument behind it where
//! the list says so, and has text to the next one:
//!
//! | section | what |
//! |---|---|
//! | `@summary TEXT` | what the function does, in a few words |
//! | `@function PROTOTYPE` | what no header declares as a function: a macro with its types. `@function 1.2 PROTOTYPE` for one version |
//! | `@header FILE` | what to include for it, `none` for nothing |
//! | `@rows PREFIX` | the rows whose ids begin so belong to this page; may be repeated |
//! | `@also ID...` | rows of other functions that hold for this one, too |
//! | `@description` | paragraphs |
//! | `@table PREFIX TITLE` | a list of the rows whose ids begin so and go on with the name of a constant |
//! | `@parameter NAME` | what a parameter is; the rows of the parameter follow there |
//! | `@states` | in which states of the objects the call is valid; the transitions follow there |
//! | `@completion` | what a completion means |
//! | `@returns` | what is to be said of return codes beside the rows |
//! | `@example` | C, for both versions; `@example 1.2` for one of them |
//! | `@see PAGE...` | other functions, and pages such as `dat.conf(5)` |
//!
//! Paragraphs are separated by empty lines. A line that begins with `- ` is an item of a list, and one
//! that begins with `* ` an item whose term ends at the first `: `. Names of functions, constants and
//! parameters are marked up as such; where a parameter is also an English word, it stands in backticks,
//! as does everything that is to be taken literally.

use std::fs;

use super::prototypes::Version;
use crate::rows::root;

pub const FOLDER: &str = "man/functions";

/// A function that the source declares: the version, or both, and its prototype.
pub struct Declared {
    pub version: Option<Version>,
    pub prototype: String,
}

pub struct Example {
    pub version: Option<Version>,
    pub code: String,
}

/// The source of a page.
#[derive(Default)]
pub struct Source {
    pub name: String,
    pub summary: String,
    pub declared: Vec<Declared>,
    pub header: Option<String>,
    pub rows: Vec<String>,
    pub also: Vec<String>,
    pub description: String,
    /// The beginning of the ids, and the title.
    pub tables: Vec<(String, String)>,
    /// Name and text.
    pub parameters: Vec<(String, String)>,
    pub states: String,
    pub completion: String,
    pub returns: String,
    pub examples: Vec<Example>,
    pub see: Vec<String>,
}

/// The version that an argument begins with, and the rest of it.
fn version(argument: &str) -> (Option<Version>, &str) {
    for (name, version) in [("1.2", Version::V1), ("2.0", Version::V2)] {
        if let Some(rest) = argument.strip_prefix(name) {
            return (Some(version), rest.trim());
        }
    }
    (None, argument)
}

pub fn parse(name: &str, text: &str) -> Result<Source, String> {
    let mut source = Source {
        name: name.to_owned(),
        ..Source::default()
    };
    let mut sections: Vec<(&str, &str, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(section) = line.strip_prefix('@') {
            let (section, argument) = section.split_once(' ').unwrap_or((section, ""));
            sections.push((section, argument.trim(), String::new()));
        } else if let Some((_, _, text)) = sections.last_mut() {
            text.push_str(line);
            text.push('\n');
        } else if !line.is_empty() && !line.starts_with('#') {
            return Err(format!("{name}: line {}: no section yet", number + 1));
        }
    }
    for (section, argument, text) in sections {
        let text = text.trim_matches('\n').to_owned();
        match section {
            "summary" => source.summary = argument.to_owned(),
            "function" => {
                let (version, prototype) = version(argument);
                source.declared.push(Declared {
                    version,
                    prototype: format!("{prototype} {text}"),
                });
            }
            "header" => source.header = Some(argument.to_owned()),
            "rows" => source.rows.push(argument.to_owned()),
            "also" => {
                let all = argument.split_whitespace().map(str::to_owned);
                source.also.extend(all);
            }
            "table" => {
                let (prefix, title) = argument.split_once(' ').unwrap_or((argument, ""));
                source.tables.push((prefix.to_owned(), title.to_owned()));
            }
            "returns" => source.returns = text,
            "description" => source.description = text,
            "parameter" => source.parameters.push((argument.to_owned(), text)),
            "states" => source.states = text,
            "completion" => source.completion = text,
            "example" => source.examples.push(Example {
                version: version(argument).0,
                code: text,
            }),
            "see" => {
                let all = format!("{argument} {text}");
                source.see.extend(all.split_whitespace().map(str::to_owned));
            }
            _ => return Err(format!("{name}: there is no section @{section}")),
        }
    }
    if source.summary.is_empty() || source.description.is_empty() {
        return Err(format!(
            "{name}: @summary and @description are for every page"
        ));
    }
    Ok(source)
}

/// All sources, by name.
pub fn all() -> Vec<Source> {
    let mut names: Vec<String> = fs::read_dir(root().join(FOLDER))
        .unwrap_or_else(|e| panic!("{FOLDER}: {e}"))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let sources = names.iter().map(|file| {
        let name = file
            .strip_suffix(".txt")
            .unwrap_or_else(|| panic!("{FOLDER}/{file} is no source of a page"));
        let text = fs::read_to_string(root().join(FOLDER).join(file)).unwrap();
        parse(name, &text).unwrap_or_else(|fault| panic!("{FOLDER}/{fault}"))
    });
    sources.collect()
}

#[test]
fn a_source_is_read_by_its_sections() {
    let text = "# A licence\n@summary do a thing\n@description\nIt does.\n\nMore.\n@parameter ep\nAn end.\n\
                @example 2.0\nint x;\n@see dat_a dat.conf(5)\n";
    let source = parse("dat_x", text).unwrap();
    assert_eq!(source.summary, "do a thing");
    assert_eq!(source.description, "It does.\n\nMore.");
    assert_eq!(source.parameters, [("ep".to_owned(), "An end.".to_owned())]);
    assert_eq!(source.examples[0].version, Some(Version::V2));
    assert_eq!(source.examples[0].code, "int x;");
    assert_eq!(source.see, ["dat_a", "dat.conf(5)"]);
    let fault = |text: &str| parse("dat_x", text).err().unwrap_or_default();
    assert!(fault("@sumary x\n").contains("no section @sumary"));
    assert!(fault("text\n").contains("line 1"));
    assert!(fault("@summary x\n").contains("for every page"));
}
