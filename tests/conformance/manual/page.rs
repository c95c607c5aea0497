//! The manual page of a function: its source, its prototypes and its rows put together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::markup::{Names, escape};
use super::prototypes::{Direction, Headers, Prototype, Version, headers, parameters};
use super::sections::{events, library, programs, return_values, see_also, standards, synopsis};
use super::source::{Source, all};
use crate::rows::{COVERAGE, Row, excluded, read};

/// The date of the pages.
const DATE: &str = "November 24, 2026";

/// Everything that pages are made of.
pub struct Manual<'a> {
    pub sources: Vec<Source>,
    pub rows: &'a [Row<'a>],
    pub headers: BTreeMap<Version, Headers>,
    /// Functions that are in this library and in no other, with the macro that tells so.
    pub added: BTreeMap<String, String>,
    functions: BTreeSet<String>,
    types: BTreeSet<String>,
    /// Rows that no caller can cause on the soft provider, with the reason.
    excluded: BTreeMap<String, String>,
}

/// The functions of the version node LIBDAT_2.0, and the macros of the header that name them.
fn added() -> BTreeMap<String, String> {
    let header = read("include/dat2/udat.h");
    let macros: Vec<(&str, Vec<&str>)> = header
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("#define LIBDAT_HAS_")?;
            let (name, comment) = rest.split_once(" 1")?;
            let names = comment
                .trim()
                .trim_start_matches("/*")
                .trim_end_matches("*/");
            Some((name, names.split(',').map(str::trim).collect()))
        })
        .collect();
    let functions = read("abi/added-2.0.txt");
    let named = functions.lines().map(|function| {
        let of = |name: &&str| match name.strip_suffix('*') {
            Some(prefix) => function.starts_with(prefix),
            None => *name == function,
        };
        let found = macros.iter().find(|(_, names)| names.iter().any(of));
        let (name, _) = found.unwrap_or_else(|| panic!("no macro LIBDAT_HAS_ names {function}"));
        (function.to_owned(), format!("LIBDAT_HAS_{name}"))
    });
    named.collect()
}

/// A prototype that the source of a page declares.
fn declared(text: &str, header: &str) -> (String, Prototype) {
    let (head, list) = text.split_once('(').unwrap_or((text, ""));
    let (returns, name) = head.rsplit_once(' ').unwrap_or(("", head));
    let list = list.trim().trim_end_matches(')');
    let prototype = Prototype {
        returns: returns.to_owned(),
        header: header.to_owned(),
        parameters: parameters(list),
    };
    (name.to_owned(), prototype)
}

impl<'a> Manual<'a> {
    pub fn new(rows: &'a [Row<'a>]) -> Self {
        let sources = all();
        let headers: BTreeMap<_, _> = Version::ALL.map(|v| (v, headers(v))).into();
        let mut manual = Manual {
            functions: BTreeSet::new(),
            types: headers.values().flat_map(|h| h.types.clone()).collect(),
            added: added(),
            excluded: excluded(&read(COVERAGE))
                .into_iter()
                .map(|(id, reason)| (id.to_owned(), reason.to_owned()))
                .collect(),
            sources,
            rows,
            headers,
        };
        let functions = manual.sources.iter().flat_map(|s| manual.functions_of(s));
        manual.functions = functions.collect();
        manual
    }

    /// The prototypes of a page: function, version, prototype.
    pub fn prototypes(&self, source: &Source) -> Vec<(String, Version, Prototype)> {
        let mut found = Vec::new();
        for version in Version::ALL {
            for entry in &source.declared {
                if entry.version.is_none_or(|only| only == version) {
                    let header = source.header.as_deref().unwrap_or("udat.h");
                    if version == Version::V1 && header == "dat_ib_extensions.h" {
                        continue;
                    }
                    let header = match header {
                        "none" => String::new(),
                        header => format!("{}/{header}", version.folder()),
                    };
                    let (name, prototype) = declared(&entry.prototype, &header);
                    found.push((name, version, prototype));
                }
            }
            if let Some(prototype) = self.headers[&version].functions.get(&source.name) {
                found.push((source.name.clone(), version, prototype.clone()));
            }
        }
        found
    }

    /// The functions of a page.
    pub fn functions_of(&self, source: &Source) -> Vec<String> {
        let mut names = Vec::new();
        for (name, _, _) in self.prototypes(source) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The names of the parameters of a page.
    pub fn parameters_of(&self, source: &Source) -> BTreeSet<String> {
        let prototypes = self.prototypes(source).into_iter();
        let parameters = prototypes.flat_map(|(_, _, prototype)| prototype.parameters);
        parameters
            .map(|p| p.name)
            .filter(|name| !matches!(name.as_str(), "..." | ""))
            .collect()
    }

    /// The rows of a page.
    pub fn rows_of(&self, source: &Source) -> Vec<&'a Row<'a>> {
        let claims =
            |source: &Source, row: &Row| source.rows.iter().any(|p| row.id.starts_with(p.as_str()));
        let of_page = |row: &&Row| match source.rows.is_empty() {
            _ if source.also.iter().any(|id| id == row.id) => true,
            false => claims(source, row),
            true => row.subject == source.name && !self.sources.iter().any(|s| claims(s, row)),
        };
        self.rows.iter().filter(of_page).collect()
    }

    /// The page.
    pub fn page(&self, source: &Source) -> String {
        let own = self.functions_of(source);
        let names = Names {
            own: &own,
            functions: &self.functions,
            parameters: self.parameters_of(source),
            types: &self.types,
            excluded: &self.excluded,
        };
        let rows = self.rows_of(source);
        let prototypes = self.prototypes(source);
        let mut page = format!(
            ".\\\" SPDX-License-Identifier: MIT OR Apache-2.0\n\
             .\\\" Made of man/functions/{}.txt, tests-c/conformance/rows.tsv and the headers by\n\
             .\\\" UPDATE_DOCS=1 cargo test --test conformance.\n\
             .Dd {DATE}\n.Dt {} 3\n.Os\n.Sh NAME\n",
            source.name,
            source.name.to_uppercase()
        );
        let commas = |i: usize| if i + 1 < own.len() { " ," } else { "" };
        for (i, name) in own.iter().enumerate() {
            let _ = writeln!(page, ".Nm {name}{}", commas(i));
        }
        if own.is_empty() {
            let _ = writeln!(page, ".Nm {}", source.name);
        }
        let _ = writeln!(page, ".Nd {}", source.summary);
        page.push_str(&library(&prototypes));
        page.push_str(&synopsis(&prototypes));
        page.push_str(".Sh DESCRIPTION\n");
        page.push_str(&names.paragraphs(&source.description));
        if let Some(name) = self.added.get(&source.name) {
            let _ = writeln!(
                page,
                ".Pp\nOther libraries of DAT 2.0 declare this function and do not have it.\n\
                 A program that is to be compiled for them, too, tests\n.Dv {name} ."
            );
        }
        for (prefix, title) in &source.tables {
            page.push_str(&self.table(&names, prefix, title));
        }
        page.push_str(&self.parameter_section(source, &names, &rows, &prototypes));
        page.push_str(&self.states(source, &names));
        page.push_str(&events(&names, &rows));
        if !source.completion.is_empty() {
            page.push_str(".Ss What a completion means\n");
            page.push_str(&names.paragraphs(&source.completion));
        }
        page.push_str(&programs(&names, &rows));
        page.push_str(&return_values(&names, &rows, source, &prototypes));
        for (i, example) in source.examples.iter().enumerate() {
            if i == 0 {
                page.push_str(".Sh EXAMPLES\n");
            }
            if let Some(version) = example.version {
                let _ = writeln!(page, "With {}:", version.name());
            }
            page.push_str(".Bd -literal -offset indent\n");
            for line in example.code.lines() {
                let _ = writeln!(page, "{}", escape(line));
            }
            page.push_str(".Ed\n");
        }
        page.push_str(&see_also(source));
        page.push_str(&standards(&prototypes, source));
        page
    }

    /// The rows whose ids begin with `prefix` and go on with the name of a constant.
    fn table(&self, names: &Names, prefix: &str, title: &str) -> String {
        let mut page = format!(".Ss {title}\n.Bl -tag -width Ds\n");
        for row in self.rows {
            let Some(name) = row.id.strip_prefix(prefix) else {
                continue;
            };
            if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                page.push_str(&names.item(if row.what == "-" { name } else { row.what }));
                page.push_str(&names.condition(row));
            }
        }
        page + ".El\n"
    }

    fn parameter_section(
        &self,
        source: &Source,
        names: &Names,
        rows: &[&Row],
        prototypes: &[(String, Version, Prototype)],
    ) -> String {
        let mut order: Vec<(&str, Direction, Vec<Version>)> = Vec::new();
        // In the order of the newest version.
        let mut newest: Vec<_> = prototypes.iter().collect();
        newest.sort_by_key(|(_, version, _)| std::cmp::Reverse(*version));
        for (_, version, prototype) in newest {
            for parameter in &prototype.parameters {
                if !names.parameters.contains(&parameter.name) {
                    continue;
                }
                match order.iter_mut().find(|(name, ..)| *name == parameter.name) {
                    Some((_, _, versions)) => versions.push(*version),
                    None => order.push((&parameter.name, parameter.direction, vec![*version])),
                }
            }
        }
        let versions: BTreeSet<Version> = prototypes.iter().map(|(_, v, _)| *v).collect();
        let rows: Vec<&&Row> = rows.iter().filter(|row| row.kind == "parameter").collect();
        let mut page = String::new();
        if !order.is_empty() {
            page.push_str(".Ss Parameters\n.Bl -tag -width Ds\n");
            for (name, direction, of) in order {
                let way = match direction {
                    Direction::In => "",
                    Direction::Out => " Pq out",
                    Direction::InOut => " Pq in and out",
                };
                let only = match &of[..] {
                    [version, ..] if versions.len() > 1 && of.iter().all(|v| v == version) => {
                        format!(" Pq {} only", version.name())
                    }
                    _ => String::new(),
                };
                let _ = writeln!(page, ".It Fa {name}{way}{only}");
                for (_, text) in source.parameters.iter().filter(|(n, _)| n == name) {
                    page.push_str(&names.paragraphs(text));
                }
                for row in rows.iter().filter(|row| row.what == name) {
                    page.push_str(&names.sentence(row.condition));
                }
            }
            page.push_str(".El\n");
        }
        let (mut tagged, mut rest) = (String::new(), String::new());
        for row in rows
            .iter()
            .filter(|row| !names.parameters.contains(row.what))
        {
            // Members of structures have a name to look for; other rules are read one by one.
            match row.what.contains('_') {
                true => {
                    let _ = write!(
                        tagged,
                        ".It Va {}\n{}",
                        row.what,
                        names.sentence(row.condition)
                    );
                }
                false => {
                    let _ = write!(rest, ".It\n{}", names.sentence(row.condition));
                }
            }
        }
        for (list, items) in [("-tag -width Ds", tagged), ("-bullet", rest)] {
            if !items.is_empty() {
                if list.starts_with("-tag") {
                    page.push_str(".Pp\nMembers of what is written:\n");
                }
                let _ = write!(page, ".Bl {list}\n{items}.El\n");
            }
        }
        page
    }

    /// The states in which a call is valid, and what they become.
    fn states(&self, source: &Source, names: &Names) -> String {
        let mentions = |row: &&Row| {
            let mut words = row
                .condition
                .split(|c: char| !c.is_alphanumeric() && c != '_');
            row.subject == "ep_state_machine" && words.any(|word| word == source.name)
        };
        let rules: Vec<&Row> = self.rows.iter().filter(mentions).collect();
        let mut page = names.paragraphs(&source.states);
        let allowed = rules.iter().filter(|row| row.id.starts_with("allowed."));
        for row in allowed {
            page.push_str(&names.sentence(row.condition));
        }
        let transitions: Vec<_> = rules
            .iter()
            .filter(|row| row.kind == "transition")
            .collect();
        if !transitions.is_empty() {
            page.push_str(".Bl -tag -width Ds\n");
            for row in transitions {
                let _ = writeln!(page, ".It {}", escape(row.what));
                page.push_str(&names.sentence(row.condition));
            }
            page.push_str(".El\n");
        }
        match page.is_empty() {
            true => page,
            false => format!(".Ss Valid states\n{page}"),
        }
    }
}
