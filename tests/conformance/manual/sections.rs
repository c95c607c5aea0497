//! Sections of a page that need nothing of the whole manual.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::markup::{Names, page as reference};
use super::prototypes::{Prototype, Version};
use super::source::Source;
use crate::rows::Row;

/// Which libraries have the functions.
pub fn library(prototypes: &[(String, Version, Prototype)]) -> String {
    if prototypes.is_empty() {
        return String::new();
    }
    let mut page = ".Sh LIBRARY\n".to_owned();
    let versions: BTreeSet<Version> = prototypes.iter().map(|(_, v, _)| *v).collect();
    for (i, version) in versions.iter().enumerate() {
        let end = if i + 1 < versions.len() { " ," } else { "" };
        let (library, flag) = match version {
            Version::V1 => ("libdat.so.1", "ldat"),
            Version::V2 => ("libdat2.so.2", "ldat2"),
        };
        let _ = writeln!(
            page,
            ".Pa {library}\n.Pq {}, Fl {flag}{end}",
            version.name()
        );
    }
    page
}

pub fn synopsis(prototypes: &[(String, Version, Prototype)]) -> String {
    let mut page = ".Sh SYNOPSIS\n".to_owned();
    if prototypes.is_empty() {
        return page + ".In dat/udat.h\n.Pp\nor\n.Pp\n.In dat2/udat.h\n";
    }
    let shape = |p: &Prototype| (p.returns.clone(), p.parameters.clone());
    let of = |version| {
        let functions = prototypes.iter().filter(move |(_, v, _)| *v == version);
        functions
            .map(|(name, _, p)| (name, shape(p)))
            .collect::<Vec<_>>()
    };
    let (first, second) = (of(Version::V1), of(Version::V2));
    let both = !first.is_empty() && !second.is_empty();
    let same = !both || first == second;
    for version in Version::ALL {
        let functions: Vec<_> = prototypes
            .iter()
            .filter(|(_, v, _)| *v == version)
            .collect();
        let Some((_, _, prototype)) = functions.first() else {
            continue;
        };
        if both {
            let paragraph = if version == Version::V1 { "" } else { ".Pp\n" };
            let _ = writeln!(page, "{paragraph}{}:", version.name());
        }
        if !prototype.header.is_empty() {
            let _ = writeln!(page, ".In {}", prototype.header);
        }
        // Where both versions have the same functions these stand once, behind both headers.
        if same && both {
            match version {
                Version::V1 => continue,
                Version::V2 => page.push_str(".Pp\nBoth:\n"),
            }
        }
        for (name, _, prototype) in functions {
            let _ = writeln!(page, ".Ft {}\n.Fo {name}", prototype.returns);
            for parameter in &prototype.parameters {
                let _ = writeln!(page, ".Fa \"{}\"", parameter.declaration);
            }
            page.push_str(".Fc\n");
        }
    }
    page
}

pub fn events(names: &Names, rows: &[&Row]) -> String {
    let events: Vec<_> = rows.iter().filter(|row| row.kind == "event").collect();
    if events.is_empty() {
        return String::new();
    }
    let mut page = ".Ss Events\n.Bl -tag -width Ds\n".to_owned();
    for row in events {
        page.push_str(&names.item(row.what));
        page.push_str(&names.condition(row));
    }
    page + ".El\n"
}

/// What is accepted against the letter.
pub fn programs(names: &Names, rows: &[&Row]) -> String {
    let rows: Vec<_> = rows.iter().filter(|row| row.kind == "program").collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut page =
        ".Ss Rules of programs\nUnless the entry in\n.Xr dat.conf 5\nhas\n.Ql rules=pages ,\n\
                    this is accepted, too, as other libraries do:\n.Bl -bullet\n"
            .to_owned();
    for row in rows {
        let _ = write!(page, ".It\n{}", names.sentence(row.condition));
    }
    page + ".El\n"
}

pub fn return_values(
    names: &Names,
    rows: &[&Row],
    source: &Source,
    prototypes: &[(String, Version, Prototype)],
) -> String {
    let is_code = |what: &str| what.starts_with("DAT_");
    let (codes, rules): (Vec<&&Row>, Vec<_>) = rows
        .iter()
        .filter(|row| matches!(row.kind, "return" | "rule"))
        .partition(|row| is_code(row.what));
    let mut page = String::new();
    if !rules.is_empty() {
        page.push_str(".Ss Rules\n.Bl -bullet\n");
        for row in &rules {
            let _ = write!(page, ".It\n{}", names.sentence(row.condition));
        }
        page.push_str(".El\n");
    }
    if prototypes.iter().all(|(_, _, p)| p.returns == "void") {
        return page;
    }
    page.push_str(".Sh RETURN VALUES\n");
    page.push_str(&names.paragraphs(&source.returns));
    page.push_str(".Bl -tag -width Ds\n");
    if !codes.iter().any(|row| row.what == "DAT_SUCCESS") {
        page.push_str(&names.item("DAT_SUCCESS"));
        page.push_str("It is done, or, of an operation, posted.\n");
    }
    let mut order: Vec<&str> = Vec::new();
    for row in &codes {
        if !order.contains(&row.what) {
            order.push(row.what);
        }
    }
    order.sort_by_key(|code| *code != "DAT_SUCCESS");
    for code in order {
        page.push_str(&names.item(code));
        for row in codes.iter().filter(|row| row.what == code) {
            page.push_str(&names.condition(row));
        }
    }
    page.push_str(
        ".El\n.Pp\nAn error has a class and a subtype beside its type:\n.Fn DAT_GET_TYPE\n",
    );
    page + &names.text("gives the codes of this list, and dat_strerror names both.")
}

pub fn see_also(source: &Source) -> String {
    let mut pages: Vec<(String, String)> = source
        .see
        .iter()
        .map(|word| match reference(word) {
            Some((name, section)) => (section.to_owned(), name.to_owned()),
            None => ("3".to_owned(), word.to_owned()),
        })
        .collect();
    pages.push(("7".to_owned(), "libdat".to_owned()));
    pages.sort();
    pages.dedup();
    let mut page = ".Sh SEE ALSO\n".to_owned();
    let last = pages.len() - 1;
    for (i, (section, name)) in pages.iter().enumerate() {
        let comma = if i < last { " ," } else { "" };
        let _ = writeln!(page, ".Xr {name} {section}{comma}");
    }
    page
}

pub fn standards(prototypes: &[(String, Version, Prototype)], source: &Source) -> String {
    let versions: BTreeSet<Version> = prototypes.iter().map(|(_, v, _)| *v).collect();
    let text = match (
        versions.contains(&Version::V1),
        versions.contains(&Version::V2),
    ) {
        _ if source.name.starts_with("dat_ib_") || source.name == "dat_extension_op" => {
            "The extensions of OpenFabrics to the DAT API, version 2.0."
        }
        (true, true) | (false, false) => "The user-level DAT API (uDAPL), versions 1.2 and 2.0.",
        (true, false) => "The user-level DAT API (uDAPL), version 1.2.",
        _ => "The user-level DAT API (uDAPL), version 2.0.",
    };
    format!(".Sh STANDARDS\n{text}\n")
}
