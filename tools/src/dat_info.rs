//! `dat-info`: the interface adapters that DAT programs find on this machine.
//!
//! It is a DAT program itself: names come from `dat_registry_list_providers`, and every IA is
//! opened. What the C API does not tell (file and line, why an entry is of no use) comes from
//! the library crate. Each version of the API has a process of its own, because provider
//! libraries look for one DAT library in the global scope; so a provider that crashes does not
//! take the other listing with it.

mod arguments;
mod info;
mod library;
mod loader;
mod output;
mod table;

use std::env;
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, ValueEnum};
use dat_core::registry::config::api_version;
use dat_core::registry::inspect::{self, Report};
use dat_core::registry::{Adapters, Setup};
use dat_core::{settings, setup};
use serde_json::{Value, json};

use info::host::{self, Finding};
use info::row::{self, Row};
use library::Library;
use output::{OwnOutput, print};

/// Exit status if no IA is usable.
const NONE_USABLE: u8 = 1;
/// Exit status after wrong options.
const MISUSE: u8 = 2;
/// Columns of a terminal, for the text of `--env`.
const COLUMNS: usize = 80;
/// The member of the JSON that has a listing for each version of the API.
const APIS: &str = "apis";

/// Show the interface adapters (IAs) that DAT programs find.
///
/// Exit status: 0 if an IA is usable, 1 if none is.
#[derive(Parser)]
#[command(name = "dat-info", version)]
struct Options {
    /// Only this version of the DAT API
    #[arg(long, value_name = "VERSION")]
    api: Option<Api>,
    /// Show all attributes and limits of each IA too
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Show what of this machine decides how the IAs work too
    #[arg(long)]
    check: bool,
    /// As JSON, with all attributes
    #[arg(long)]
    json: bool,
    /// Show the environment variables and dat.conf parameters that are known
    #[arg(long, conflicts_with_all = ["api", "verbose", "check"])]
    env: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Api {
    #[value(name = "1.2")]
    V1,
    #[value(name = "2.0")]
    V2,
}

impl Api {
    fn setup(self) -> Setup<Adapters> {
        match self {
            Api::V1 => setup::LIST_1_2,
            Api::V2 => setup::LIST_2_0,
        }
    }
}

fn main() -> ExitCode {
    let options: Options = match arguments::parse(MISUSE, NONE_USABLE) {
        Ok(options) => options,
        Err(status) => return status,
    };
    let result = match options.api {
        _ if options.env && options.json => {
            print(&format!("{:#}\n", settings_json())).map(|()| true)
        }
        _ if options.env => print(&settings_text()).map(|()| true),
        Some(api) => one(api, &options),
        None => both(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NONE_USABLE),
        Err(error) => {
            let _ = writeln!(io::stderr(), "dat-info: {error}");
            ExitCode::from(NONE_USABLE)
        }
    }
}

/// What the machine is like, if that is asked for.
fn host(options: &Options) -> Vec<Finding> {
    match options.check {
        true => host::findings(),
        false => Vec::new(),
    }
}

/// Shows one version. Whether an IA is usable.
fn one(api: Api, options: &Options) -> io::Result<bool> {
    let findings = host(options);
    let mut out = OwnOutput::take()?;
    let listing = Listing::of(&api.setup())?;
    if options.json {
        out.print(&document(&findings, vec![listing.to_json()]))?;
    } else {
        if options.check {
            out.print(&format!("{}\n", host::to_text(&findings)))?;
        }
        out.print(&listing.to_text(options.verbose))?;
    }
    Ok(listing.usable())
}

/// Shows both versions, each in a process of its own. Whether an IA is usable.
fn both(options: &Options) -> io::Result<bool> {
    let findings = host(options);
    let mut usable = false;
    let mut apis = Vec::new();
    if options.check && !options.json {
        print(&format!("{}\n", host::to_text(&findings)))?;
    }
    for (index, version) in ["1.2", "2.0"].into_iter().enumerate() {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--api", version]);
        if options.json {
            let output = command.arg("--json").stderr(Stdio::inherit()).output()?;
            usable |= output.status.success();
            let mut shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let listing = shown.get_mut(APIS).and_then(|apis| apis.get_mut(0));
            apis.push(match listing {
                Some(listing) => listing.take(),
                None => json!({ "api": version, "error": output.status.to_string() }),
            });
            continue;
        }
        if index > 0 {
            print("\n")?;
        }
        if options.verbose {
            command.arg("--verbose");
        }
        let status = command.status()?;
        if status.code().is_none() {
            writeln!(io::stderr(), "dat-info: listing of DAT {version}: {status}")?;
        }
        usable |= status.success();
    }
    if options.json {
        print(&document(&findings, apis))?;
    }
    Ok(usable)
}

/// The text of `--json`.
fn document(findings: &[Finding], apis: Vec<Value>) -> String {
    let mut all = json!({ "version": env!("CARGO_PKG_VERSION"), APIS: apis });
    if !findings.is_empty() {
        all["host"] = findings.iter().map(Finding::to_json).collect();
    }
    format!("{all:#}\n")
}

/// The IAs of one version of the API.
struct Listing {
    /// Major and minor number of the version.
    version: (u32, u32),
    /// The file of the library, or why it cannot be loaded.
    library: Result<String, String>,
    rows: Vec<Row>,
}

impl Listing {
    /// Opens all IAs.
    fn of(setup: &Setup<Adapters>) -> io::Result<Listing> {
        let version = api_version(setup.version);
        // Provider libraries find the DAT library in the global scope, so it goes first.
        let library = Library::open(setup.version);
        let reports = inspect::reports(setup).map_err(io::Error::other)?;
        let (reports, others): (Vec<Report>, Vec<Report>) = reports
            .into_iter()
            .partition(|report| row::version(&report.entry.key) == version);
        let (library, mut rows) = match library {
            Ok(library) => {
                let rows = row::opened(&library, &reports, version);
                (Ok(library.path()), rows)
            }
            Err(why) => (
                Err(format!(
                    "cannot load {}: {why}",
                    loader::soname(setup.version)
                )),
                reports.iter().map(row::unopened).collect(),
            ),
        };
        let others = others
            .iter()
            .filter(|r| row::is_of_no_library(&r.entry.key, version));
        rows.extend(others.map(row::of_another_version));
        Ok(Listing {
            version,
            library,
            rows,
        })
    }

    /// Whether an IA is usable.
    fn usable(&self) -> bool {
        self.rows.iter().any(|row| row.fault.is_none())
    }

    fn to_text(&self, verbose: bool) -> String {
        let (major, minor) = self.version;
        let title = match &self.library {
            Ok(text) | Err(text) => text,
        };
        let cells: Vec<[String; 6]> = self.rows.iter().map(row::cells).collect();
        let mut text = format!("DAT {major}.{minor}: {title}\n");
        text.push_str(&match cells.is_empty() {
            true => "no interface adapter is registered\n".to_owned(),
            false => table::render(row::HEADS, &cells),
        });
        if verbose {
            for row in &self.rows {
                if let Some(attributes) = &row.attributes {
                    text.push_str(&format!("\n{}\n{}", row.name(), attributes.to_text()));
                }
            }
        }
        text
    }

    fn to_json(&self) -> Value {
        let (major, minor) = self.version;
        json!({
            "api": format!("{major}.{minor}"),
            "library": self.library.as_ref().ok(),
            "error": self.library.as_ref().err(),
            "adapters": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }
}

/// What can be set, for `--env`.
fn settings_text() -> String {
    let mut text = String::new();
    for (title, settings) in settings::all() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("{title}\n"));
        for setting in settings {
            text.push_str(&format!(
                "\n  {} ({}; default: {})\n",
                setting.name, setting.kind, setting.default
            ));
            for line in table::wrap(setting.help, COLUMNS - 6) {
                text.push_str(&format!("      {line}\n"));
            }
        }
    }
    text
}

/// The same for `--env --json`.
fn settings_json() -> Value {
    let group = |(title, settings): (&str, Vec<settings::Setting>)| {
        let settings = settings.iter().map(
            |s| json!({ "name": s.name, "values": s.kind, "default": s.default, "help": s.help }),
        );
        json!({ "of": title, "settings": settings.collect::<Vec<_>>() })
    };
    settings::all().into_iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_shown() {
        let text = settings_text();
        for setting in settings::all()
            .into_iter()
            .flat_map(|(_, settings)| settings)
        {
            assert!(text.contains(setting.name));
        }
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS));
    }
}
