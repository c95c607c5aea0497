//! Which file is read, and the entries that result.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::fake::{entry, setup};
use super::*;

/// A directory that is removed at the end of its test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("dat-config-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const HARDWARE: &str = "ib0 u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"ib0 0\" \"\"\n";

/// Names and origins of the entries from default files.
fn defaults(version: Version, files: &[PathBuf]) -> Vec<String> {
    show(entries(&setup(version), None, files).unwrap())
}

fn show(entries: Vec<Entry>) -> Vec<String> {
    let show = |entry: Entry| {
        let line = match &entry.origin {
            Origin::File(_, line) => line.to_string(),
            origin => origin.to_string(),
        };
        let (key, target) = (&entry.key, &entry.target);
        format!("{key} {target} {line}")
    };
    entries.into_iter().map(show).collect()
}

/// The paths that dat.conf(5) lists for a version.
fn documented(version: &str) -> Vec<&'static str> {
    let page = include_str!("../../../man/dat.conf.5");
    let (_, list) = page.split_once(&format!(".It {version}\n")).unwrap();
    let paths = list.lines().map_while(|line| line.strip_prefix(".Pa "));
    paths.map(|path| path.trim_end_matches(" ,")).collect()
}

#[test]
fn the_default_files_are_those_of_the_page() {
    assert_eq!(default_files(Version::V1), documented("DAT 1.2"));
    assert_eq!(default_files(Version::V2), documented("DAT 2.0"));
}

const BUILTIN_2_0: &str = "`soft' u2.0 threadsafe builtin:soft built-in";

#[test]
fn no_file_at_all_is_the_built_in_table() {
    let dir = Dir::new();
    let files = [dir.0.join("none"), dir.file("plain", "").join("below")];
    assert_eq!(defaults(Version::V2, &files), [BUILTIN_2_0]);
    assert_eq!(
        defaults(Version::V1, &files),
        ["`soft' u1.2 threadsafe builtin:soft built-in"]
    );
}

#[test]
fn the_first_file_that_opens_is_the_only_one() {
    let dir = Dir::new();
    let soft = HARDWARE
        .replace("ib0 u", "s u")
        .replace("libdaplofa.so.2", "builtin:soft");
    let files = [
        dir.0.join("none"),
        dir.file("first", &soft),
        dir.file("second", HARDWARE),
    ];
    assert_eq!(
        defaults(Version::V2, &files),
        ["`s' u2.0 nonthreadsafe builtin:soft 1"]
    );
}

#[test]
fn a_file_without_a_soft_entry_gets_one_at_its_end() {
    let dir = Dir::new();
    let ib0 = "`ib0' u2.0 nonthreadsafe libdaplofa.so.2 1";
    let file = dir.file("a", HARDWARE);
    assert_eq!(defaults(Version::V2, &[file]), [ib0, BUILTIN_2_0]);
    // An empty file counts as a file.
    assert_eq!(defaults(Version::V2, &[dir.file("b", "")]), [BUILTIN_2_0]);
    // A soft entry of the other version cannot be opened here.
    let other = "soft u1.2 threadsafe default builtin:soft d.1.2 \"\" \"\"\n";
    let file = dir.file("c", format!("{HARDWARE}{other}"));
    assert_eq!(
        defaults(Version::V2, std::slice::from_ref(&file)),
        [ib0, "`soft' u1.2 threadsafe builtin:soft 2", BUILTIN_2_0]
    );
    assert_eq!(defaults(Version::V1, &[file]).len(), 2);
    // An entry keeps its name.
    let taken = HARDWARE.replace("ib0 u", "soft u");
    let file = dir.file("d", taken);
    assert_eq!(
        defaults(Version::V2, &[file]),
        ["`soft' u2.0 nonthreadsafe libdaplofa.so.2 1"]
    );
}

#[test]
fn the_override_is_strict() {
    let dir = Dir::new();
    let setup = setup(Version::V2);
    let good = dir.file("good", HARDWARE);
    let found = entries(&setup, Some(good.as_os_str()), std::slice::from_ref(&good)).unwrap();
    assert_eq!(show(found), ["`ib0' u2.0 nonthreadsafe libdaplofa.so.2 1"]);
    for bad in [dir.0.join("none"), dir.0.clone(), PathBuf::new()] {
        let found = entries(&setup, Some(bad.as_os_str()), std::slice::from_ref(&good)).unwrap();
        assert_eq!(found, []);
    }
}

/// Reads a file in another thread, and waits for it with a limit that no read reaches.
fn read_in_time(path: &Path) -> io::Result<Vec<u8>> {
    let (result, arrives) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || result.send(read(&path)));
    let limit = std::time::Duration::from_secs(20);
    arrives.recv_timeout(limit).expect("the read ends")
}

#[test]
fn only_regular_files_are_read() {
    let dir = Dir::new();
    let fifo = dir.0.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    let socket = dir.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let [around, to_fifo] = [dir.0.join("around"), dir.0.join("to-fifo")];
    std::os::unix::fs::symlink(&around, &around).unwrap();
    std::os::unix::fs::symlink(&fifo, &to_fifo).unwrap();
    for (path, what) in [
        (&fifo, "it is a FIFO, not a regular file"),
        (&to_fifo, "it is a FIFO, not a regular file"),
        (&socket, "it is a socket, not a regular file"),
        (&dir.0, "it is a directory, not a regular file"),
        (
            &PathBuf::from("/dev/zero"),
            "it is a device, not a regular file",
        ),
        (
            &around,
            &std::io::Error::from_raw_os_error(libc::ELOOP).to_string(),
        ),
    ] {
        let error = read_in_time(path).unwrap_err();
        assert_eq!(error.to_string(), what, "{path:?}");
        let setup = setup(Version::V2);
        assert_eq!(entries(&setup, Some(path.as_os_str()), &[""]), Ok(vec![]));
        // A default file is skipped like an absent one, but reported.
        let good = dir.file("good", HARDWARE);
        assert_eq!(defaults(Version::V2, &[path.clone(), good]).len(), 2);
    }
}

/// Users name it to have no entries.
#[test]
fn the_null_device_is_an_empty_file() {
    let null = Path::new("/dev/null");
    assert_eq!(read(null).unwrap(), b"");
    let found = entries(&setup(Version::V2), Some(null.as_os_str()), &[""]).unwrap();
    assert_eq!(found, []);
    let found = defaults(Version::V2, &[null.to_owned()]);
    assert_eq!(found, [BUILTIN_2_0]);
}

#[test]
fn a_link_to_a_regular_file_is_followed() {
    let dir = Dir::new();
    let file = dir.file("a", HARDWARE);
    let link = dir.0.join("link");
    std::os::unix::fs::symlink(file, &link).unwrap();
    assert_eq!(read(&link).unwrap(), HARDWARE.as_bytes());
}

#[test]
fn only_user_level_defaults_are_installed() {
    let dir = Dir::new();
    let kernel = HARDWARE.replace("u2.0", "k2.0");
    let other = HARDWARE.replace(" default", " nondefault");
    let text = format!("{kernel}{other}not an entry\n{HARDWARE}");
    let file = dir.file("a", text);
    let found = entries(&setup(Version::V2), Some(file.as_os_str()), &[""]).unwrap();
    assert_eq!(show(found), ["`ib0' u2.0 nonthreadsafe libdaplofa.so.2 4"]);
}

#[test]
fn a_huge_file_is_cut_at_a_line() {
    let dir = Dir::new();
    let count = FILE_MAX as usize / HARDWARE.len() + 10;
    let file = dir.file("a", HARDWARE.repeat(count));
    let found = entries(&setup(Version::V2), Some(file.as_os_str()), &[""]).unwrap();
    assert_eq!(found.len(), FILE_MAX as usize / HARDWARE.len());
}

/// What is left of the line could be an entry, as the last field may be of any length.
#[test]
fn the_line_that_the_limit_cuts_is_no_entry() {
    let dir = Dir::new();
    let last = HARDWARE
        .replace("ib0 u", "ib1 u")
        .replace("\"\"\n", "parameters");
    let blank = "\n".repeat(FILE_MAX as usize - HARDWARE.len() - last.len());
    for (more, names) in [("", &["ib0", "ib1"][..]), ("x", &["ib0"])] {
        let file = dir.file("a", format!("{HARDWARE}{blank}{last}{more}"));
        let found = entries(&setup(Version::V2), Some(file.as_os_str()), &[""]).unwrap();
        let found: Vec<_> = found.iter().map(|e| e.key.name.to_str().unwrap()).collect();
        assert_eq!(found, names);
    }
}

#[test]
fn a_file_of_faults_gives_nothing() {
    let dir = Dir::new();
    let file = dir.file("a", "\"\n".repeat(3 * FAULTS_MAX));
    let found = entries(&setup(Version::V2), Some(file.as_os_str()), &[""]).unwrap();
    assert_eq!(found, []);
}

/// The built-in providers are thread safe, and serve programs that do not ask for that, too.
#[test]
fn an_entry_for_every_name_serves_its_own_version_and_thread_safety() {
    let key = |minor, thread_safe| Key {
        name: c"ib0".to_owned(),
        major: 2,
        minor,
        thread_safe,
    };
    let serves = |line: &str| {
        let entry = entry(line);
        [(0, true), (0, false), (1, true)].map(|(minor, safe)| entry.serves_any(&key(minor, safe)))
    };
    let library = r#"* u2.0 nonthreadsafe default libother.so p.1.0 "" """#;
    assert_eq!(serves(library), [false, true, false]);
    let soft = r#"* u2.0 nonthreadsafe default builtin:soft p.1.0 "" """#;
    assert_eq!(serves(soft), [true, true, false]);
    let named = r#"ib0 u2.0 nonthreadsafe default builtin:soft p.1.0 "" """#;
    assert_eq!(serves(named), [false; 3]);
}
