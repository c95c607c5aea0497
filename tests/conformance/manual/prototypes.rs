//! The functions that the headers declare: what a page says of types and parameters comes from there.

use std::collections::{BTreeMap, BTreeSet};

use crate::rows::read;

/// A version of the API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    V1,
    V2,
}

impl Version {
    pub const ALL: [Version; 2] = [Version::V1, Version::V2];

    /// The folder of its headers.
    pub fn folder(self) -> &'static str {
        match self {
            Version::V1 => "dat",
            Version::V2 => "dat2",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Version::V1 => "DAT 1.2",
            Version::V2 => "DAT 2.0",
        }
    }
}

/// Which way a parameter goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    In,
    Out,
    InOut,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameter {
    pub direction: Direction,
    /// Type and name, as a declaration has them.
    pub declaration: String,
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prototype {
    pub returns: String,
    /// The header that programs include for the function.
    pub header: String,
    pub parameters: Vec<Parameter>,
}

/// The text without comments and continuation lines.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.replace("\\\n", " ")
}

/// The parameters between the parentheses of a declaration.
pub fn parameters(list: &str) -> Vec<Parameter> {
    list.split(',')
        .map(|parameter| {
            let words: Vec<&str> = parameter.split_whitespace().collect();
            let (direction, words) = match words[..] {
                ["IN", ref rest @ ..] => (Direction::In, rest),
                ["OUT", ref rest @ ..] => (Direction::Out, rest),
                ["INOUT", ref rest @ ..] => (Direction::InOut, rest),
                ref rest => (Direction::In, rest),
            };
            let declaration = words.join(" ");
            let name = declaration
                .rsplit([' ', '*'])
                .next()
                .unwrap_or_default()
                .to_owned();
            Parameter {
                direction,
                declaration,
                name,
            }
        })
        .collect()
}

/// What the headers of a version declare.
pub struct Headers {
    pub functions: BTreeMap<String, Prototype>,
    /// Macros that look like functions, with their header and the names of their arguments.
    pub macros: BTreeMap<String, (String, Vec<String>)>,
    /// Types of parameters.
    pub types: BTreeSet<String>,
}

/// The headers that have functions, and the one that a program includes for them.
const FILES: [(&str, &str); 4] = [
    ("udat.h", "udat.h"),
    ("dat.h", "udat.h"),
    ("dat_registry.h", "dat_registry.h"),
    ("dat_ib_extensions.h", "dat_ib_extensions.h"),
];

pub fn headers(version: Version) -> Headers {
    let mut found = Headers {
        functions: BTreeMap::new(),
        macros: BTreeMap::new(),
        types: BTreeSet::new(),
    };
    let folder = version.folder();
    for (file, included) in FILES {
        if version == Version::V1 && file == "dat_ib_extensions.h" {
            continue;
        }
        let header = format!("{folder}/{included}");
        let text = plain(&read(&format!("include/{folder}/{file}")));
        for statement in text.split(';') {
            let Some((head, rest)) = statement.split_once("DAT_RETURN dat") else {
                continue;
            };
            let declared =
                head.trim_end().ends_with("extern") || head.trim_end().ends_with("DAT_EXPORT");
            let (Some((name, list)), true) = (rest.split_once('('), declared) else {
                continue;
            };
            let list = list.rsplit_once(')').map_or(list, |(list, _)| list);
            found.functions.insert(
                format!("dat{name}"),
                Prototype {
                    returns: "DAT_RETURN".to_owned(),
                    header: header.clone(),
                    parameters: parameters(list),
                },
            );
        }
        for line in text
            .lines()
            .filter_map(|line| line.strip_prefix("#define dat_"))
        {
            if let Some((name, rest)) = line.split_once('(')
                && !name.contains(' ')
                && let Some((list, _)) = rest.split_once(')')
            {
                let arguments = list.split(',').map(|word| word.trim().to_owned());
                let entry = (header.clone(), arguments.collect());
                found.macros.insert(format!("dat_{name}"), entry);
            }
        }
    }
    let declarations = found.functions.values().flat_map(|f| &f.parameters);
    found.types = declarations
        .flat_map(|p| {
            p.declaration
                .split(|c: char| !c.is_alphanumeric() && c != '_')
        })
        .filter(|word| word.starts_with("DAT_"))
        .map(str::to_owned)
        .collect();
    found
}
