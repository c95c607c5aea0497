//! `dat-info`: the interface adapters that DAT programs find on this machine.
//!
//! It is a DAT program itself: names come from `dat_registry_list_providers`, and every IA is
//! opened. What the C API does not tell (file and line, why an entry is of no use) comes from
//! the library crate. Each version of the API has a process of its own, because provider
//! libraries look for one DAT library in the global scope; so a provider that crashes does not
//! take the other listing with it.

mod library;
mod loader;
mod output;
mod table;

use std::env;
use std::io::{self, Write};
use std::process::{Command, ExitCode};

use clap::{Parser, ValueEnum};
use dat_core::registry::Setup;
use dat_core::registry::config::{Target, api_version};
use dat_core::registry::inspect::{self, Report};
use dat_core::registry::key::Key;
use dat_core::{settings, setup};

use library::{Library, Opened};
use output::print;

/// Exit status if no IA is usable.
const NONE_USABLE: u8 = 1;
/// Columns of a terminal, for the text of `--env`.
const COLUMNS: usize = 80;

/// Show the interface adapters (IAs) that DAT programs find.
///
/// Exit status: 0 if an IA is usable, 1 if none is.
#[derive(Parser)]
#[command(name = "dat-info", version)]
struct Options {
    /// Only this version of the DAT API
    #[arg(long, value_name = "VERSION")]
    api: Option<Api>,
    /// Show the environment variables and dat.conf parameters that are known
    #[arg(long, conflicts_with = "api")]
    env: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Api {
    #[value(name = "1.2")]
    V1,
    #[value(name = "2.0")]
    V2,
}

impl Api {
    fn setup(self) -> Setup {
        match self {
            Api::V1 => setup::DAT_1_2,
            Api::V2 => setup::DAT_2_0,
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options {
        Options { env: true, .. } => print(&settings_text()).map(|()| true),
        Options { api: Some(api), .. } => list(&api.setup()),
        Options { .. } => both(),
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

/// Lists both versions, each in a process of its own. Whether an IA is usable.
fn both() -> io::Result<bool> {
    let mut usable = false;
    for (index, version) in ["1.2", "2.0"].into_iter().enumerate() {
        if index > 0 {
            print("\n")?;
        }
        let program = env::current_exe()?;
        let status = Command::new(program).args(["--api", version]).status()?;
        if status.code().is_none() {
            writeln!(io::stderr(), "dat-info: listing of DAT {version}: {status}")?;
        }
        usable |= status.success();
    }
    Ok(usable)
}

/// A line of the listing.
struct Row {
    key: Key,
    provider: String,
    address: Option<String>,
    origin: String,
    /// Why the IA cannot be used.
    fault: Option<String>,
}

/// Lists one version. Whether an IA is usable.
fn list(setup: &Setup) -> io::Result<bool> {
    let version = api_version(setup.version);
    // Provider libraries find the DAT library in the global scope, so it goes first.
    let library = Library::open(setup.version);
    let mut reports = inspect::reports(setup).map_err(io::Error::other)?;
    reports.retain(|report| (report.entry.key.major, report.entry.key.minor) == version);
    let (title, rows) = match library {
        Ok(library) => (library.path(), opened(&library, &reports, version)),
        Err(why) => (
            format!("cannot load {}: {why}", loader::soname(setup.version)),
            reports.iter().map(unopened).collect(),
        ),
    };
    let usable = rows.iter().any(|row| row.fault.is_none());
    let cells: Vec<[String; 6]> = rows.into_iter().map(cells).collect();
    let heads = ["NAME", "API", "PROVIDER", "ADDRESS", "ORIGIN", "STATE"];
    let listing = if cells.is_empty() {
        "no interface adapter is registered\n".to_owned()
    } else {
        table::render(heads, &cells)
    };
    let (major, minor) = version;
    print(&format!("DAT {major}.{minor}: {title}\n{listing}"))?;
    Ok(usable)
}

/// The IAs that the library lists for its version, each opened.
fn opened(library: &Library, reports: &[Report], version: (u32, u32)) -> Vec<Row> {
    let mut keys = library.providers();
    keys.retain(|key| (key.major, key.minor) == version);
    keys.into_iter()
        .map(|key| {
            let result = library.try_open(&key);
            row(key, result, reports)
        })
        .chain(
            reports
                .iter()
                .filter(|r| r.entry.is_for_every_name())
                .map(of_every_name),
        )
        .collect()
}

/// An entry that serves every name that no other entry can serve.
fn of_every_name(report: &Report) -> Row {
    let (address, fault) = match report.state.clone() {
        Ok(address) => (address, None),
        Err(why) => (None, Some(why)),
    };
    Row {
        address,
        fault,
        ..unopened(report)
    }
}

/// What is known of an IA: the result of opening it, and the report of its entry. Of several
/// entries with the key, one that is usable is the one that serves.
fn row(key: Key, result: Result<Opened, String>, reports: &[Report]) -> Row {
    let mut of_key = reports.iter().filter(|report| report.entry.key == key);
    let first = of_key.clone().next();
    let report = of_key.find(|report| report.state.is_ok()).or(first);
    let why = report.and_then(|report| report.state.clone().err());
    let fallback = result
        .as_ref()
        .ok()
        .and_then(|opened| fallback(opened, &key, reports));
    let (address, fault) = match result {
        Ok(opened) => (opened.address, None),
        Err(code) => {
            let fault = why.map_or(code.clone(), |why| format!("{code} ({why})"));
            (None, Some(fault))
        }
    };
    Row {
        key,
        provider: match (fallback, report) {
            (Some(fallback), Some(report)) => {
                format!("{} for {}", fallback.provider, report.provider)
            }
            (_, Some(report)) => report.provider.clone(),
            (_, None) => "builtin".into(),
        },
        origin: report.map_or("built-in".into(), |report| report.entry.origin.to_string()),
        address,
        fault,
    }
}

/// The entry for every name that serves an IA which is open, if no entry of its own does.
fn fallback<'a>(opened: &Opened, key: &Key, reports: &'a [Report]) -> Option<&'a Report> {
    let serves = |report: &&Report| match &report.entry.target {
        Target::Builtin(name) => opened.provider_name.contains(&**name),
        Target::Library(_) => false,
    };
    let own = |report: &&Report| report.entry.key == *key && serves(report);
    if reports.iter().any(|report| own(&report)) {
        return None;
    }
    reports
        .iter()
        .find(|report| report.entry.is_for_every_name() && serves(report))
}

/// An entry that cannot be opened because the DAT library itself is not there.
fn unopened(report: &Report) -> Row {
    Row {
        key: report.entry.key.clone(),
        provider: report.provider.clone(),
        address: report.state.clone().ok().flatten(),
        origin: report.entry.origin.to_string(),
        fault: Some("not tried, there is no library".into()),
    }
}

fn cells(row: Row) -> [String; 6] {
    [
        row.key.name.to_string_lossy().into_owned(),
        format!("{}.{}", row.key.major, row.key.minor),
        row.provider,
        row.address.unwrap_or("-".into()),
        row.origin,
        row.fault.unwrap_or("ok".into()),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;
    use dat_core::registry::config::{Entry, Origin};

    fn key(name: &str) -> Key {
        Key {
            name: std::ffi::CString::new(name).unwrap(),
            major: 2,
            minor: 0,
            thread_safe: true,
        }
    }

    fn report(name: &str, line: usize, state: Result<Option<String>, String>) -> Report {
        Report {
            entry: Entry {
                key: key(name),
                target: Target::Builtin("soft".into()),
                ia_params: c"".to_owned(),
                origin: Origin::File("file".into(), line),
            },
            provider: "builtin:soft".into(),
            state,
        }
    }

    fn opened(provider_name: &str) -> Result<Opened, String> {
        Ok(Opened {
            address: Some("127.0.0.1".into()),
            provider_name: provider_name.into(),
        })
    }

    #[test]
    fn an_ia_that_the_entry_for_every_name_serves() {
        let mut card = report("a", 1, Ok(None));
        card.entry.target = Target::Builtin("verbs".into());
        card.provider = "builtin:verbs".into();
        let reports = [card, report("b", 2, Ok(None)), report("*", 3, Ok(None))];
        let served = row(key("a"), opened("libdat soft"), &reports);
        assert_eq!(served.provider, "builtin:soft for builtin:verbs");
        assert_eq!(
            row(key("a"), opened("libdat verbs"), &reports).provider,
            "builtin:verbs"
        );
        assert_eq!(
            row(key("b"), opened("libdat soft"), &reports).provider,
            "builtin:soft"
        );
    }

    #[test]
    fn a_usable_ia() {
        let reports = [report("b", 1, Ok(None)), report("a", 2, Ok(None))];
        let row = row(key("a"), opened("libdat soft"), &reports);
        let expected = ["a", "2.0", "builtin:soft", "127.0.0.1", "file:2", "ok"];
        assert_eq!(cells(row), expected);
    }

    #[test]
    fn the_entry_of_a_chain_that_serves() {
        let reports = [
            report("a", 1, Err("broken".into())),
            report("a", 2, Ok(None)),
        ];
        assert_eq!(row(key("a"), opened("soft"), &reports).origin, "file:2");
        assert_eq!(
            row(key("a"), opened("soft"), &reports[..1]).origin,
            "file:1"
        );
    }

    #[test]
    fn why_an_ia_is_of_no_use() {
        let reports = [report("a", 1, Err("no netdev".into()))];
        let found = row(key("a"), Err("dat_ia_open: CODE".into()), &reports);
        let expected = ["a", "2.0", "builtin:soft", "-", "file:1"];
        assert_eq!(cells(found)[..5], expected);
        let found = row(key("a"), Err("dat_ia_open: CODE".into()), &reports);
        let fault = found.fault.as_deref();
        assert_eq!(fault, Some("dat_ia_open: CODE (no netdev)"));
        let unknown = row(key("b"), Err("dat_ia_open: CODE".into()), &reports);
        let expected = ["b", "2.0", "builtin", "-", "built-in", "dat_ia_open: CODE"];
        assert_eq!(cells(unknown), expected);
    }

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
