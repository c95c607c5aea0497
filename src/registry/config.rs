//! The source of the static registry's entries: a `dat.conf`, or the built-in table.
//!
//! * `DAT_OVERRIDE` names the only file. If it cannot be read the registry is empty, as entries of
//!   another file would not be the ones that the user selected.
//! * Otherwise the first default file that can be read is used. If no entry of it is for the
//!   built-in soft provider, that provider's IAs are appended. Programs that try all entries of a
//!   file written for hardware that this machine lacks then find one that opens.
//! * Otherwise the built-in table is used: the IAs that the built-in providers discover.
//!
//! An entry with the name `*` serves every name that no other entry can serve. `DAT_FALLBACK` adds one for
//! the soft provider.
//!
//! Every faulty line is reported once on standard error and skipped. So are parameters that are in the wrong field,
//! but their line is not skipped.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::key::Key;
use super::parse::{self, Line};
use super::{Adapters, Setup, replaced};
use crate::error::{Result, Version};
use crate::log_sink::STATIC_REGISTRY;
use crate::reserve::{self, NoMemory};

/// The environment variable that names the only configuration file.
pub const OVERRIDE: &str = "DAT_OVERRIDE";
/// The environment variable that adds an entry of the soft provider for every name.
pub const FALLBACK: &str = "DAT_FALLBACK";
/// The name of an entry that serves every name which no other entry can serve.
const EVERY_NAME: &CStr = c"*";
/// What the library field begins with when it names a built-in provider.
const BUILTIN_PREFIX: &[u8] = b"builtin:";
/// The provider that works on every machine.
const SOFT: &str = "soft";
/// The most bytes of a file that are read; sites have some hundred entries of 100 bytes.
const FILE_MAX: u64 = 1 << 20;
/// The most faults of one file that are reported.
const FAULTS_MAX: usize = 100;

/// The default files of a version, in the order in which they are tried: those of illumos, Red Hat
/// and OpenFabrics.
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

/// The version of the API of a library, which is the only one that its built-in providers support.
pub fn api_version(version: Version) -> (u32, u32) {
    match version {
        Version::V1 => (1, 2),
        Version::V2 => (2, 0),
    }
}

/// The provider of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A built-in provider, by name.
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

    /// Whether a built-in provider may serve the entry. Those serve both values of thread safety,
    /// and replace some libraries where these are not installed.
    pub fn may_be_builtin(&self) -> bool {
        match self {
            Target::Builtin(_) => true,
            Target::Library(library) => replaced::is_replaced(library),
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

/// The place where an entry was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A file and the number of a line, from 1.
    File(Arc<str>, usize),
    /// The built-in table.
    Builtin,
    /// A variable of the environment.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path, line) => write!(f, "{path}:{line}"),
            Origin::Builtin => f.write_str("built-in"),
            Origin::Variable(name) => f.write_str(name),
        }
    }
}

/// An entry of the static registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key by which a program opens it.
    pub key: Key,
    /// The provider.
    pub target: Target,
    /// The parameters for the provider's init function.
    pub ia_params: CString,
    /// The place where the entry was found.
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

impl Entry {
    /// Whether the entry is for every name.
    pub fn is_for_every_name(&self) -> bool {
        *self.key.name == *EVERY_NAME
    }

    /// Whether the entry is for every name, that of the key included.
    pub fn serves_any(&self, key: &Key) -> bool {
        let version = (self.key.major, self.key.minor) == (key.major, key.minor);
        let safety = self.target.may_be_builtin() || self.key.thread_safe == key.thread_safe;
        self.is_for_every_name() && version && safety
    }
}

/// Adds the entry that `DAT_FALLBACK` asks for; `value` is the value of the variable, if it is set.
///
/// # Errors
///
/// `DAT_INSUFFICIENT_RESOURCES`.
pub fn add_fallback<P>(
    setup: &Setup<P>,
    value: Option<&OsStr>,
    entries: &mut Vec<Entry>,
) -> Result<()> {
    match value.and_then(OsStr::to_str) {
        None if value.is_none() => return Ok(()),
        Some("" | "off") => return Ok(()),
        Some(SOFT) => {}
        _ => {
            log::error!("{FALLBACK} is off or {SOFT}");
            return Ok(());
        }
    }
    let (major, minor) = api_version(setup.version);
    entries.try_reserve(1)?;
    entries.push(Entry {
        key: Key {
            name: EVERY_NAME.to_owned(),
            major,
            minor,
            thread_safe: true,
        },
        target: Target::Builtin(SOFT.into()),
        ia_params: CString::default(),
        origin: Origin::Variable(FALLBACK),
    });
    Ok(())
}

/// The entries of the registry, in their order.
///
/// `override_file` is the value of `DAT_OVERRIDE`, if it is set; `default_files` are tried in
/// order if it is not.
///
/// # Errors
///
/// `DAT_INSUFFICIENT_RESOURCES`: then no part of a file counts.
pub fn entries<P: AsRef<Adapters>, F: AsRef<Path>>(
    setup: &Setup<P>,
    override_file: Option<&OsStr>,
    default_files: &[F],
) -> Result<Vec<Entry>> {
    if let Some(file) = override_file {
        let path = Path::new(file);
        return match read(path) {
            Ok(text) => file_entries(path, &text),
            Err(error) if is_no_memory(&error) => Err(NoMemory.into()),
            Err(error) => {
                log::error!(
                    "{}: {error} (the file that {OVERRIDE} names)",
                    path.display()
                );
                Ok(Vec::new())
            }
        };
    }
    for path in default_files {
        let path = path.as_ref();
        match read(path) {
            Ok(text) => {
                let mut entries = file_entries(path, &text)?;
                append_soft(setup, &mut entries)?;
                return Ok(entries);
            }
            Err(error) if is_no_memory(&error) => return Err(NoMemory.into()),
            Err(error) if is_absent(&error) => {}
            Err(error) => log::error!("{}: {error}", path.display()),
        }
    }
    let builtins = setup.builtins.iter();
    Ok(builtins
        .flat_map(|builtin| discovered(setup.version, builtin.as_ref()))
        .collect())
}

/// The entries of the text of a file.
///
/// # Errors
///
/// `DAT_INSUFFICIENT_RESOURCES`.
fn file_entries(path: &Path, text: &[u8]) -> Result<Vec<Entry>> {
    let file: Arc<str> = path.to_string_lossy().into();
    let mut entries = Vec::new();
    let mut faults = 0;
    let mut report = |number, fault: fmt::Arguments<'_>| {
        faults += 1;
        if faults <= FAULTS_MAX {
            log::error!("{file}:{number}: {fault}");
        }
    };
    for (number, line) in parse::parse(text) {
        // There may be any number of lines.
        reserve::check()?;
        match line {
            Ok(line) if line.installed() => {
                let has_platform_params = line.has_platform_params;
                let entry = Entry::from_line(line, &file, number);
                if has_platform_params && matches!(entry.target, Target::Builtin(_)) {
                    let provider = &entry.target;
                    let fault = format_args!(
                        "field 8 (platform parameters) is ignored; parameters of {provider} are in field 7"
                    );
                    report(number, fault);
                }
                log::debug!(
                    target: STATIC_REGISTRY,
                    "{file}:{number}: {} is {}", entry.key, entry.target
                );
                entries.try_reserve(1)?;
                entries.push(entry);
            }
            Ok(_) => log::debug!(
                target: STATIC_REGISTRY,
                "{file}:{number}: not for user-level programs, or not a default"
            ),
            Err(fault) => report(number, format_args!("{fault}; the line is ignored")),
        }
    }
    if faults > FAULTS_MAX {
        log::error!(
            "{file}: {} more faults are not reported",
            faults - FAULTS_MAX
        );
    }
    Ok(entries)
}

/// Appends the IAs of the soft provider, unless an entry that this version can open is for that
/// provider or has the name of the IA.
///
/// # Errors
///
/// `DAT_INSUFFICIENT_RESOURCES`.
fn append_soft<P: AsRef<Adapters>>(setup: &Setup<P>, entries: &mut Vec<Entry>) -> Result<()> {
    let Some(soft) = setup.builtin(SOFT) else {
        return Ok(());
    };
    let (major, minor) = api_version(setup.version);
    let ours = |entry: &&Entry| (entry.key.major, entry.key.minor) == (major, minor);
    let is_soft = |entry: &Entry| matches!(&entry.target, Target::Builtin(name) if name == SOFT);
    if entries.iter().filter(ours).any(is_soft) {
        return Ok(());
    }
    let mut more: Vec<Entry> = discovered(setup.version, soft.as_ref());
    more.retain(|new| {
        let mut ours = entries.iter().filter(ours);
        ours.all(|entry| entry.key.name != new.key.name)
    });
    entries.try_reserve(more.len())?;
    entries.append(&mut more);
    Ok(())
}

/// The IAs that a built-in provider offers on this machine, as entries.
fn discovered(version: Version, adapters: &Adapters) -> Vec<Entry> {
    let (major, minor) = api_version(version);
    (adapters.discover)()
        .into_iter()
        .filter_map(|ia| {
            Some(Entry {
                key: Key {
                    name: CString::new(ia.name).ok()?,
                    major,
                    minor,
                    thread_safe: true,
                },
                target: Target::Builtin(adapters.name.into()),
                ia_params: CString::new(ia.params).ok()?,
                origin: Origin::Builtin,
            })
        })
        .collect()
}

/// Opens a file whose reads do not block.
fn open(path: &Path) -> io::Result<File> {
    // Before the open, which would wake a writer of a FIFO, and has side effects on devices.
    check_kind(&fs::metadata(path)?)?;
    // The kernel also has regular files that block, such as /proc/kmsg.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // The name may refer to another file by now.
    check_kind(&file.metadata()?)?;
    Ok(file)
}

/// Whether the libraries read that file.
///
/// # Errors
/// Why they do not.
pub fn check_file(path: &Path) -> io::Result<()> {
    open(path).map(drop)
}

/// Refuses everything but regular files and `/dev/null`, which users name to have no entries.
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

/// The content of a file, up to [`FILE_MAX`].
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut file = open(path)?.take(FILE_MAX);
    file.read_to_end(&mut text)?;
    if text.len() as u64 == FILE_MAX && file.into_inner().read(&mut [0])? > 0 {
        log::error!(
            "{}: larger than {FILE_MAX} bytes; the rest is ignored",
            path.display()
        );
        // The last line is incomplete.
        let end = text.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
        text.truncate(end);
    }
    Ok(text)
}

fn is_no_memory(error: &io::Error) -> bool {
    error.kind() == ErrorKind::OutOfMemory
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;
