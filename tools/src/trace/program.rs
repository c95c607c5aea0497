//! Whether a program will load `libdat.so.1` or `libdat2.so.2` as they are here.

use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The libraries that write traces.
const LIBRARIES: [&str; 2] = ["libdat.so.1", "libdat2.so.2"];
/// What such a library has in it.
const MARK: &[u8] = b"DAT_TRACE_FILE";

/// Why there may be no trace of a program, or not of its own calls; `None` if there will be one, and if
/// there is no such program.
pub fn doubt(program: &Path) -> Option<String> {
    let path = find(program)?;
    let name = path.display();
    if has_more_rights(&path) {
        return Some(format!(
            "{name} has more rights than its user, and so ignores DAT_TRACE: nothing of it is traced"
        ));
    }
    let interpreter = match interpreter(&path) {
        Ok(Some(interpreter)) => interpreter,
        Ok(None) => {
            return Some(format!(
                "{name} loads no libraries, or is a script: only what it starts can be traced"
            ));
        }
        // The attempt to execute it says why.
        Err(_) => return None,
    };
    // What `ldd` does. The program itself is not executed.
    let listed = Command::new(interpreter)
        .arg("--list")
        .arg(&path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut found = false;
    for line in listed.lines().map(str::trim) {
        let Some((soname, rest)) = line.split_once(" => ") else {
            continue;
        };
        if !LIBRARIES.contains(&soname) {
            continue;
        }
        found = true;
        let file = rest.rsplit_once(" (").map_or(rest, |(file, _)| file);
        if rest.starts_with('/') && !is_ours(Path::new(file)) {
            return Some(format!(
                "{name} loads {file}, which is not libdat's: its calls are not traced \
                 (LD_LIBRARY_PATH chooses another)"
            ));
        }
    }
    (!found).then(|| {
        format!(
            "{name} is not linked with libdat.so.1 or libdat2.so.2: only calls of what it loads or \
             starts can be traced"
        )
    })
}

/// The file that is executed for a program.
fn find(program: &Path) -> Option<PathBuf> {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return program.exists().then(|| program.to_owned());
    }
    let paths = env::var_os("PATH")?;
    let mut candidates = env::split_paths(&paths).map(|folder| folder.join(program));
    candidates.find(|file| {
        let executable = |m: fs::Metadata| m.is_file() && m.permissions().mode() & 0o111 != 0;
        file.metadata().is_ok_and(executable)
    })
}

/// Set-user-ID, set-group-ID or file capabilities.
fn has_more_rights(file: &Path) -> bool {
    const SET_ID: u32 = 0o6000;
    let set_id = |m: fs::Metadata| m.permissions().mode() & SET_ID != 0;
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability".as_ptr();
    // SAFETY: two C strings; nothing is written to a buffer of length 0.
    let size = unsafe { libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0) };
    file.metadata().is_ok_and(set_id) || size > 0
}

/// The dynamic loader of an ELF program of 64 bits; `None` if it has none, or is no such program.
fn interpreter(file: &Path) -> io::Result<Option<PathBuf>> {
    const PT_INTERP: u32 = 3;
    let mut file = fs::File::open(file)?;
    let mut header = [0; 64];
    if file.read_exact(&mut header).is_err() || !header.starts_with(b"\x7fELF\x02") {
        return Ok(None);
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    let (table, size, count) = (word(&header, 32), half(54), half(56));
    for i in 0..u64::from(count) {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table + i * u64::from(size))?;
        if u32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]) != PT_INTERP {
            continue;
        }
        let longest = usize::try_from(word(&entry, 32)).unwrap_or(0).min(4096);
        let mut path = vec![0; longest];
        file.read_exact_at(&mut path, word(&entry, 8))?;
        let end = path
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(path.len());
        path.truncate(end);
        return Ok(Some(OsString::from_vec(path).into()));
    }
    Ok(None)
}

/// Whether a library writes traces. One that cannot be read is given the benefit of the doubt.
fn is_ours(library: &Path) -> bool {
    let Ok(library) = fs::read(library) else {
        return true;
    };
    let (all, mark) = (library.as_ptr().cast(), MARK.as_ptr().cast());
    // SAFETY: two slices with their lengths.
    !unsafe { libc::memmem(all, library.len(), mark, MARK.len()) }.is_null()
}
