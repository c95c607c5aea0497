//! The rows of the listing: what is known of each IA.

use dat_core::registry::config::Target;
use dat_core::registry::inspect::Report;
use dat_core::registry::key::Key;
use serde_json::{Value, json};

use super::attributes::Attributes;
use crate::library::{Library, Opened};

/// The columns of the listing.
pub const HEADS: [&str; 6] = ["NAME", "API", "PROVIDER", "ADDRESS", "ORIGIN", "STATE"];

/// An IA of the listing.
pub struct Row {
    /// What programs ask for.
    pub key: Key,
    /// The built-in provider or the provider library that serves the name.
    pub provider: String,
    /// The address of the IA.
    pub address: Option<String>,
    /// File and line of the entry, or where else it comes from.
    pub origin: String,
    /// Why the IA cannot be used.
    pub fault: Option<String>,
    /// What users have to know of an IA that is usable.
    pub note: Option<&'static str>,
    /// What the IA can do, if it is usable.
    pub attributes: Option<Attributes>,
}

impl Row {
    /// What programs pass to `dat_ia_open`.
    pub fn name(&self) -> String {
        self.key.name.to_string_lossy().into_owned()
    }

    /// The row as an object.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name(),
            "api": format!("{}.{}", self.key.major, self.key.minor),
            "thread_safe": self.key.thread_safe,
            "provider": self.provider,
            "address": self.address,
            "origin": self.origin,
            "usable": self.fault.is_none(),
            "fault": self.fault,
            "note": self.note,
            "attributes": self.attributes.as_ref().map(Attributes::to_json),
        })
    }
}

/// The IAs that the library lists for its version, each opened.
pub fn opened(library: &Library, reports: &[Report], version: (u32, u32)) -> Vec<Row> {
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
    let (address, attributes, fault) = match result {
        Ok(opened) => (opened.address, Some(opened.attributes), None),
        Err(code) => {
            let fault = why.map_or(code.clone(), |why| format!("{code} ({why})"));
            (None, None, Some(fault))
        }
    };
    // What serves in the place of an entry has nothing of it.
    let note = report
        .and_then(|report| report.note)
        .filter(|_| fallback.is_none());
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
        note,
        attributes,
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

/// The version of the API that an entry is for.
pub fn version(key: &Key) -> (u32, u32) {
    (key.major, key.minor)
}

/// Whether an entry, which is not for `version`, is for no library that there is: it is shown with the
/// version that is nearest.
pub fn is_of_no_library(key: &Key, (major, _): (u32, u32)) -> bool {
    let of_first = key.major < 2;
    !matches!(version(key), (1, 2) | (2, 0)) && of_first == (major < 2)
}

/// An entry that no program asks for.
pub fn of_another_version(report: &Report) -> Row {
    Row {
        address: None,
        fault: Some("programs ask for DAT 1.2 or 2.0".into()),
        ..unopened(report)
    }
}

/// An entry that cannot be opened because the DAT library itself is not there.
pub fn unopened(report: &Report) -> Row {
    Row {
        key: report.entry.key.clone(),
        provider: report.provider.clone(),
        address: report.state.clone().ok().flatten(),
        origin: report.entry.origin.to_string(),
        fault: Some("not tried, there is no library".into()),
        note: report.note,
        attributes: None,
    }
}

/// The cells of the row, in the order of [`HEADS`].
pub fn cells(row: &Row) -> [String; 6] {
    [
        row.name(),
        format!("{}.{}", row.key.major, row.key.minor),
        row.provider.clone(),
        row.address.clone().unwrap_or("-".into()),
        row.origin.clone(),
        match (&row.fault, row.note) {
            (Some(fault), _) => fault.clone(),
            (None, Some(note)) => format!("ok, {note}"),
            (None, None) => "ok".into(),
        },
    ]
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
            note: None,
        }
    }

    fn opened(provider_name: &str) -> Result<Opened, String> {
        Ok(Opened {
            address: Some("127.0.0.1".into()),
            provider_name: provider_name.into(),
            attributes: Attributes::default(),
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
    fn an_ia_that_its_users_have_to_know_of() {
        let mut report = report("a", 1, Ok(None));
        report.note = Some("connects otherwise");
        let reports = [report];
        let state = |result| cells(&row(key("a"), result, &reports))[5].clone();
        assert_eq!(state(opened("libdat soft")), "ok, connects otherwise");
        assert_eq!(state(Err("dat_ia_open: CODE".into())), "dat_ia_open: CODE");
    }

    #[test]
    fn a_usable_ia() {
        let reports = [report("b", 1, Ok(None)), report("a", 2, Ok(None))];
        let row = row(key("a"), opened("libdat soft"), &reports);
        let expected = ["a", "2.0", "builtin:soft", "127.0.0.1", "file:2", "ok"];
        assert_eq!(cells(&row), expected);
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
        assert_eq!(cells(&found)[..5], expected);
        let found = row(key("a"), Err("dat_ia_open: CODE".into()), &reports);
        let fault = found.fault.as_deref();
        assert_eq!(fault, Some("dat_ia_open: CODE (no netdev)"));
        let unknown = row(key("b"), Err("dat_ia_open: CODE".into()), &reports);
        let expected = ["b", "2.0", "builtin", "-", "built-in", "dat_ia_open: CODE"];
        assert_eq!(cells(&unknown), expected);
    }
}
