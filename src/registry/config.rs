//! Where the static registry's entries come from: a `dat.conf`, or the built-in table.
//!
//! * `DAT_OVERRIDE` names the only file. If it cannot be read the registry is empty: a program
//!   that was told where to look must not find something else.
//! * Otherwise the first default file that can be read. If no entry of it is for our soft
//!   provider, that provider's IAs are appended: programs that walk the list of a file written
//!   for hardware that this machine lacks still find one that opens.
//! * Otherwise the built-in table: the IAs that every built-in provider discovers.
//!
//! Every faulty line is named once on standard error and skipped.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::key::Key;
use super::parse::{self, Line};
use super::{Builtin, Setup, load};
use crate::error::Version;
use crate::log_sink::STATIC_REGISTRY;

/// The environment variable that names the only configuration file.
pub const OVERRIDE: &str = "DAT_OVERRIDE";
/// What the library field begins with when it names a built-in provider.
const BUILTIN_PREFIX: &[u8] = b"builtin:";
/// The provider that works on every machine.
const SOFT: &str = "soft";
/// Most of a file that is read, in bytes; sites have some hundred entries of 100 bytes.
const FILE_MAX: u64 = 1 << 20;
/// Most faults of one file that are named.
const FAULTS_MAX: usize = 100;

/// The default files of a version, in the order in which they are tried: where illumos, Red Hat
/// and OpenFabrics have them.
pub fn default_files(version: Version) -> &'static [&'static str] {
    match version {
        Version::V1 => &[
            "/etc/dat/dat.conf",
            "/etc/rdma/compat-dapl/dat.conf",
            "/etc/dat.conf",
        ],
        Version::V2 => &["/etc/dat.conf", "/etc/rdma/dat.conf"],
    }
}

/// The version of the API that a build of ours speaks, and the only one under which its own
/// providers answer.
pub fn api_version(version: Version) -> (u32, u32) {
    match version {
        Version::V1 => (1, 2),
        Version::V2 => (2, 0),
    }
}

/// What serves an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A provider of ours, by name.
    Builtin(String),
    /// A provider library, for `dlopen`.
    Library(CString),
}

impl Target {
    fn new(library: CString) -> Target {
        match library.to_bytes().strip_prefix(BUILTIN_PREFIX) {
            Some(name) => Target::Builtin(String::from_utf8_lossy(name).into_owned()),
            None => Target::Library(library),
        }
    }

    /// Whether the target may answer for the other value of thread safety too: our providers
    /// do, and they stand in for OpenFabrics' libraries.
    pub fn may_be_ours(&self) -> bool {
        match self {
            Target::Builtin(_) => true,
            Target::Library(library) => load::is_openfabrics(library),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Builtin(name) => write!(f, "builtin:{name}"),
            Target::Library(library) => f.write_str(&library.to_string_lossy()),
        }
    }
}

/// Where an entry stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In a file, at a line counted from 1.
    File(Arc<str>, usize),
    /// In no file: the built-in table.
    Builtin,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path, line) => write!(f, "{path}:{line}"),
            Origin::Builtin => f.write_str("built-in"),
        }
    }
}

/// An entry of the static registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What finds it.
    pub key: Key,
    /// What serves it.
    pub target: Target,
    /// What the provider's init function gets.
    pub ia_params: CString,
    /// Where it stands.
    pub origin: Origin,
}

impl Entry {
    fn from_line(line: Line, file: &Arc<str>, number: usize) -> Entry {
        Entry {
            key: Key {
                name: line.name,
                major: line.major,
                minor: line.minor,
                thread_safe: line.thread_safe,
            },
            target: Target::new(line.library),
            ia_params: line.ia_params,
            origin: Origin::File(file.clone(), number),
        }
    }
}

/// The entries of the registry in force, in their order.
///
/// `override_file` is the value of `DAT_OVERRIDE`, if it is set; `default_files` are tried in
/// order if it is not.
pub fn entries<P: AsRef<Path>>(
    setup: &Setup,
    override_file: Option<&OsStr>,
    default_files: &[P],
) -> Vec<Entry> {
    if let Some(file) = override_file {
        let path = Path::new(file);
        return match read(path) {
            Ok(text) => file_entries(path, &text),
            Err(error) => {
                log::error!(
                    "{}: {error} (the file that {OVERRIDE} names)",
                    path.display()
                );
                Vec::new()
            }
        };
    }
    for path in default_files {
        let path = path.as_ref();
        match read(path) {
            Ok(text) => {
                let mut entries = file_entries(path, &text);
                append_soft(setup, &mut entries);
                return entries;
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => log::error!("{}: {error}", path.display()),
        }
    }
    setup
        .builtins
        .iter()
        .flat_map(|b| discovered(setup, b))
        .collect()
}

/// The entries of the text of a file.
fn file_entries(path: &Path, text: &[u8]) -> Vec<Entry> {
    let file: Arc<str> = path.to_string_lossy().into();
    let mut entries = Vec::new();
    let mut faults = 0;
    for (number, line) in parse::parse(text) {
        match line {
            Ok(line) if line.installed() => {
                let entry = Entry::from_line(line, &file, number);
                log::debug!(
                    target: STATIC_REGISTRY,
                    "{file}:{number}: {} is {}", entry.key, entry.target
                );
                entries.push(entry);
            }
            Ok(_) => log::debug!(
                target: STATIC_REGISTRY,
                "{file}:{number}: not for user-level programs, or not a default"
            ),
            Err(fault) => {
                faults += 1;
                if faults <= FAULTS_MAX {
                    log::error!("{file}:{number}: {fault}; the line is ignored");
                }
            }
        }
    }
    if faults > FAULTS_MAX {
        log::error!(
            "{file}: {} more faulty lines are ignored",
            faults - FAULTS_MAX
        );
    }
    entries
}

/// Appends the IAs of our soft provider, unless an entry that this version can open is for it
/// or has the name.
fn append_soft(setup: &Setup, entries: &mut Vec<Entry>) {
    let Some(soft) = setup.builtins.iter().find(|builtin| builtin.name == SOFT) else {
        return;
    };
    let (major, minor) = api_version(setup.version);
    let ours: Vec<&Entry> = entries
        .iter()
        .filter(|entry| (entry.key.major, entry.key.minor) == (major, minor))
        .collect();
    if ours
        .iter()
        .any(|entry| entry.target == Target::Builtin(SOFT.into()))
    {
        return;
    }
    let mut more: Vec<Entry> = discovered(setup, soft);
    more.retain(|new| ours.iter().all(|entry| entry.key.name != new.key.name));
    entries.append(&mut more);
}

/// What a built-in provider offers on this machine.
fn discovered(setup: &Setup, builtin: &Builtin) -> Vec<Entry> {
    let (major, minor) = api_version(setup.version);
    (builtin.discover)()
        .into_iter()
        .filter_map(|ia| {
            Some(Entry {
                key: Key {
                    name: CString::new(ia.name).ok()?,
                    major,
                    minor,
                    thread_safe: true,
                },
                target: Target::Builtin(builtin.name.into()),
                ia_params: CString::new(ia.params).ok()?,
                origin: Origin::Builtin,
            })
        })
        .collect()
}

/// Opens a file that can be read without waiting for anybody.
fn open(path: &Path) -> io::Result<File> {
    // Before it is opened: that alone wakes a writer of a FIFO, and does things to devices.
    check_kind(&fs::metadata(path)?)?;
    // The kernel also has regular files that keep their reader waiting, such as /proc/kmsg.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // The name may have got to another file meanwhile.
    check_kind(&file.metadata()?)?;
    Ok(file)
}

/// Refuses everything but regular files and `/dev/null`, by which users say that they want no
/// entries.
fn check_kind(metadata: &fs::Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_char_device() && metadata.rdev() == libc::makedev(1, 3) {
        return Ok(());
    }
    let what = if kind.is_dir() {
        "directory"
    } else if kind.is_fifo() {
        "FIFO"
    } else if kind.is_socket() {
        "socket"
    } else {
        "device"
    };
    Err(io::Error::other(format!(
        "it is a {what}, not a regular file"
    )))
}

/// The content of a file, as far as [`FILE_MAX`].
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut file = open(path)?.take(FILE_MAX);
    file.read_to_end(&mut text)?;
    if text.len() as u64 == FILE_MAX && file.into_inner().read(&mut [0])? > 0 {
        log::error!(
            "{}: larger than {FILE_MAX} bytes; the rest is ignored",
            path.display()
        );
        // The last line is cut somewhere.
        let end = text.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        text.truncate(end);
    }
    Ok(text)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
