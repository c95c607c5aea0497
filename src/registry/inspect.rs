//! Inspection of the registry, for `dat-info`: the source and the provider of each entry, and
//! whether the provider is available. No IA is opened and no provider is initialised.

use super::config::{self, Entry, Target, api_version};
use super::load::{self, LoadError};
use super::statics::VERBS;
use super::{Adapters, Setup, override_file, replaced};
use crate::{environment, error};

/// An entry of the static registry, explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The entry.
    pub entry: Entry,
    /// The provider: `builtin:NAME` or the library.
    pub provider: String,
    /// The address or device, if the provider reports it without an open IA; or why the entry
    /// cannot be used.
    pub state: Result<Option<String>, String>,
    /// What users have to know of an IA that is usable.
    pub note: Option<&'static str>,
}

/// The entries of the registry that a program started now in this environment would have.
/// Provider libraries are loaded to check their functions, so the symbols that they import have to
/// be in the global scope.
///
/// # Errors
/// `DAT_INSUFFICIENT_RESOURCES`.
pub fn reports<P: AsRef<Adapters>>(setup: &Setup<P>) -> error::Result<Vec<Report>> {
    let file = override_file::path();
    let defaults = config::default_files(setup.version);
    let mut entries = config::entries(setup, file.as_deref(), defaults)?;
    let fallback = environment::variable(config::FALLBACK);
    config::add_fallback(setup, fallback.as_deref(), &mut entries)?;
    let reports = entries.into_iter().map(|entry| report(setup, entry));
    Ok(reports.collect())
}

/// Explains one entry.
pub fn report<P: AsRef<Adapters>>(setup: &Setup<P>, entry: Entry) -> Report {
    let mut provider = entry.target.to_string();
    let mut note = None;
    let state = match &entry.target {
        Target::Builtin(name) => probe(setup, &entry, name),
        Target::Library(library) => match load::probe(library) {
            Ok(()) => Ok(None),
            Err(LoadError::NotInstalled(_)) if replaced::is_replaced(library) => {
                if setup.builtin(VERBS).is_some() {
                    provider = format!("builtin:{VERBS} for {provider}");
                    note = replaced::note(library);
                }
                probe(setup, &entry, VERBS)
                    .map_err(|why| format!("{} is not installed; {why}", entry.target))
            }
            Err(error) => Err(error.into_text()),
        },
    };
    Report {
        entry,
        provider,
        state,
        note,
    }
}

fn probe<P: AsRef<Adapters>>(
    setup: &Setup<P>,
    entry: &Entry,
    name: &str,
) -> Result<Option<String>, String> {
    let (major, minor) = api_version(setup.version);
    if (entry.key.major, entry.key.minor) != (major, minor) {
        return Err(format!("this library supports DAT {major}.{minor}"));
    }
    let Some(builtin) = setup.builtin(name) else {
        return Err(format!("this build has no builtin:{name}"));
    };
    let params = replaced::parameters(entry, &entry.key.name);
    (builtin.as_ref().probe)(&params.to_string_lossy()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::fake::{entry, setup};
    use super::*;
    use crate::error::Version;

    fn state(version: Version, line: &str) -> (String, Result<Option<String>, String>) {
        let report = report(&setup(version), entry(line));
        (report.provider, report.state)
    }

    #[test]
    fn builtin_entries_are_probed() {
        let line =
            |api, params| format!("a {api} threadsafe default builtin:soft v.1.0 {params} \"\"");
        let (provider, found) = state(Version::V2, &line("u2.0", "lo"));
        assert_eq!(provider, "builtin:soft");
        assert_eq!(found, Ok(Some("address of lo".into())));
        let (_, found) = state(Version::V2, &line("u2.0", "bad"));
        assert_eq!(found, Err("no netdev bad".into()));
        let (_, found) = state(Version::V2, &line("u1.2", "lo"));
        assert_eq!(found, Err("this library supports DAT 2.0".into()));
    }

    #[test]
    fn libraries_that_are_not_there() {
        let line = |library| format!("a u2.0 threadsafe default {library} v.1.0 lo \"\"");
        let (provider, found) = state(Version::V2, &line("/no/such/libdaplofa.so.2"));
        assert_eq!(provider, "/no/such/libdaplofa.so.2");
        assert!(
            found
                .unwrap_err()
                .contains("is not installed; this build has no")
        );
        let (provider, found) = state(Version::V2, &line("/no/such/lib.so"));
        assert_eq!(provider, "/no/such/lib.so");
        let why = found.unwrap_err();
        assert!(why.contains("/no/such/lib.so"), "{why}");
        // That one is for libraries of OpenFabrics alone.
        assert!(!why.contains("builtin:verbs"), "{why}");
        let (_, found) = state(Version::V2, &line("libc.so.6"));
        assert!(found.unwrap_err().contains("dat_provider_init"));
    }
}
