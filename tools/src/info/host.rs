//! What of this machine decides how the IAs work: `dat-info --check`.

use std::env;
use std::ffi::CStr;
use std::fs;
use std::io::{self, Error};
use std::os::fd::AsRawFd;
use std::path::Path;

use dat_core::error::Version;
use dat_core::registry::config;
use dat_core::settings;
use serde_json::{Value, json};

use crate::table;

/// How serious a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// As it should be.
    Ok,
    /// Something works less well than it could, or is not there.
    Note,
    /// Something is wrong.
    Bad,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Bad => "bad",
        }
    }
}

/// One thing that was found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    what: String,
    level: Level,
    text: String,
}

impl Finding {
    fn new(what: &str, level: Level, text: impl Into<String>) -> Finding {
        Finding {
            what: what.to_owned(),
            level,
            text: text.into(),
        }
    }

    /// As an object.
    pub fn to_json(&self) -> Value {
        json!({ "what": self.what, "level": self.level.name(), "text": self.text })
    }
}

/// All findings. The process has one thread: some are found by children of it.
pub fn findings() -> Vec<Finding> {
    let mut all = vec![shared_memory(), moved_memory()];
    all.extend(limits());
    all.push(rdma_core());
    all.extend(devices(Path::new("/sys/class/infiniband")));
    all.extend(configuration());
    all.extend(unknown_variables(
        env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()),
    ));
    all
}

/// The findings as a table.
pub fn to_text(findings: &[Finding]) -> String {
    let row = |f: &Finding| [f.what.clone(), f.level.name().to_owned(), f.text.clone()];
    let rows: Vec<[String; 3]> = findings.iter().map(row).collect();
    table::render(["HOST", "STATE", ""], &rows)
}

// --- memory ----------------------------------------------------------------------------------------

/// The number in a file of one line.
fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Whether processes of the user reach each other's memory, as shared memory needs it.
fn shared_memory() -> Finding {
    const WHAT: &str = "shared memory";
    let scope = number_in("/proc/sys/kernel/yama/ptrace_scope").unwrap_or(0);
    match (reach_sibling(scope == 1), scope) {
        (Ok(()), 1) => Finding::new(
            WHAT,
            Level::Ok,
            "used between processes, unless ptracer=none: kernel.yama.ptrace_scope is 1",
        ),
        (Ok(()), _) => Finding::new(WHAT, Level::Ok, "used between processes of one user"),
        (Err(error), scope) => {
            let why = match scope {
                2.. => format!("kernel.yama.ptrace_scope is {scope}"),
                _ => format!("process_vm_readv: {error}"),
            };
            let text = format!("not used, processes of this host are connected over TCP: {why}");
            Finding::new(WHAT, Level::Note, text)
        }
    }
}

/// Lets a child read the memory of another one, with the exception for Yama that the library makes.
fn reach_sibling(with_exception: bool) -> io::Result<()> {
    static WORD: u64 = 0x6c69_6264_6174;
    let (reader, writer) = io::pipe()?;
    let (told, tells) = io::pipe()?;
    let target = fork(|| {
        // SAFETY: open, and the child does nothing with it.
        unsafe { libc::close(writer.as_raw_fd()) };
        if with_exception {
            // SAFETY: two numbers, as the call takes them.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
        }
        let _ = io::Write::write(&mut &tells, b"x");
        // Until the parent has closed its end.
        let _ = io::Read::read(&mut &reader, &mut [0]);
        0
    })?;
    // The exception is there.
    let _ = io::Read::read(&mut &told, &mut [0]);
    let child = fork(|| {
        let mut found = 0u64;
        let local = libc::iovec {
            iov_base: (&raw mut found).cast(),
            iov_len: size_of_val(&found),
        };
        let remote = libc::iovec {
            iov_base: (&raw const WORD).cast_mut().cast(),
            iov_len: size_of_val(&WORD),
        };
        // SAFETY: a range of ours that may be written; the other one is checked by the kernel.
        let n = unsafe { libc::process_vm_readv(target, &local, 1, &remote, 1, 0) };
        match n {
            8 if found == WORD => 0,
            _ => Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    });
    let code = child.and_then(wait);
    drop(writer);
    wait(target)?;
    match code? {
        0 => Ok(()),
        errno => Err(Error::from_raw_os_error(errno)),
    }
}

/// Runs a function in a child; its result is the exit status.
fn fork(child: impl FnOnce() -> i32) -> io::Result<libc::pid_t> {
    // SAFETY: the process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()),
        0 => {
            let status = child();
            // SAFETY: ends the child, without what the parent has registered for its own end.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid),
    }
}

/// The exit status of a child; that of one that a signal has ended is an error.
fn wait(pid: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: a local to fill.
    while unsafe { libc::waitpid(pid, &mut status, 0) } == -1 {
        let error = Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match libc::WIFEXITED(status) {
        true => Ok(libc::WEXITSTATUS(status)),
        false => Err(Error::other("the child was killed")),
    }
}

/// Whether registered memory can move to where peers map it.
fn moved_memory() -> Finding {
    const WHAT: &str = "memory=shared";
    let device = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    let result = device.map(drop).or_else(|_| {
        // SAFETY: a flag.
        match unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } {
            -1 => Err(Error::last_os_error()),
            fd => {
                // SAFETY: made by the call, and not used any more.
                unsafe { libc::close(fd as libc::c_int) };
                Ok(())
            }
        }
    });
    match result {
        Ok(()) => Finding::new(
            WHAT,
            Level::Ok,
            "userfaultfd is permitted; Linux 6.8 is needed",
        ),
        Err(error) => Finding::new(
            WHAT,
            Level::Note,
            format!("registered memory stays private: userfaultfd: {error}"),
        ),
    }
}

// --- limits ----------------------------------------------------------------------------------------

fn limits() -> Vec<Finding> {
    const MIB: u64 = 1 << 20;
    [
        // What each is in, the least that does, and what lacks with less.
        (
            "locked memory",
            libc::RLIMIT_MEMLOCK,
            64 * MIB,
            "RLIMIT_MEMLOCK: an RDMA device registers no more memory than that",
        ),
        (
            "file size",
            libc::RLIMIT_FSIZE,
            64 * MIB,
            "RLIMIT_FSIZE: applies to shared memory",
        ),
        (
            "open files",
            libc::RLIMIT_NOFILE,
            1024,
            "RLIMIT_NOFILE: a connection needs up to three",
        ),
    ]
    .into_iter()
    .map(|(what, resource, least, text)| {
        let mut limit = libc::rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: a local to fill.
        unsafe { libc::getrlimit64(resource, &mut limit) };
        match limit.rlim_cur {
            libc::RLIM64_INFINITY => Finding::new(what, Level::Ok, "no limit"),
            n if n < least => Finding::new(what, Level::Note, format!("{n}: {text}")),
            n => Finding::new(what, Level::Ok, n.to_string()),
        }
    })
    .collect()
}

// --- RDMA ------------------------------------------------------------------------------------------

fn rdma_core() -> Finding {
    let absent: Vec<&str> = [c"libibverbs.so.1", c"librdmacm.so.1"]
        .into_iter()
        .filter(|name| !can_load(name))
        .map(|name| name.to_str().unwrap_or_default())
        .collect();
    match absent[..] {
        [] => Finding::new("rdma-core", Level::Ok, "installed"),
        _ => Finding::new(
            "rdma-core",
            Level::Note,
            format!(
                "not installed: {}; RDMA devices need both",
                absent.join(", ")
            ),
        ),
    }
}

fn can_load(name: &CStr) -> bool {
    // SAFETY: a C string; the library stays.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) }.is_null()
}

/// The ports of the RDMA devices, and whether programs of this user may use them.
fn devices(class: &Path) -> Vec<Finding> {
    let names = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let mut all = Vec::new();
    for device in names(class) {
        let ports = class.join(&device).join("ports");
        for port in names(&ports) {
            let read = |file: &str| {
                let text = fs::read_to_string(ports.join(&port).join(file)).unwrap_or_default();
                // "4: ACTIVE"
                text.trim()
                    .rsplit(": ")
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            };
            let state = read("state");
            let level = match state.as_str() {
                "ACTIVE" => Level::Ok,
                _ => Level::Note,
            };
            let text = format!("{state}, {}", read("link_layer"));
            all.push(Finding::new(&format!("{device} {port}"), level, text));
        }
    }
    if all.is_empty() {
        return vec![Finding::new("RDMA devices", Level::Note, "there is none")];
    }
    let manager = "/dev/infiniband/rdma_cm";
    if let Err(error) = fs::File::options().read(true).write(true).open(manager) {
        let text = format!("{manager}: {error}");
        all.push(Finding::new("RDMA devices", Level::Bad, text));
    }
    all
}

// --- configuration ---------------------------------------------------------------------------------

/// Which files the libraries read.
fn configuration() -> Vec<Finding> {
    if let Some(path) = env::var_os(config::OVERRIDE) {
        let text = format!("{} ({})", path.to_string_lossy(), config::OVERRIDE);
        return vec![match config::check_file(Path::new(&path)) {
            Ok(()) => Finding::new("dat.conf", Level::Ok, text),
            Err(error) => Finding::new("dat.conf", Level::Bad, format!("{text}: {error}")),
        }];
    }
    let mut all = Vec::new();
    for (version, name) in [(Version::V1, "1.2"), (Version::V2, "2.0")] {
        let files = config::default_files(version);
        let is_read = |file: &&&str| config::check_file(Path::new(file)).is_ok();
        let text = match files.iter().find(is_read) {
            Some(file) => format!("DAT {name}: {file}"),
            None => format!("DAT {name}: none, the built-in entries hold"),
        };
        all.push(Finding::new("dat.conf", Level::Ok, text));
    }
    all
}

/// Variables of the environment that look like ours, and are none.
fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<Finding> {
    let known: Vec<&str> = settings::all()
        .into_iter()
        .flat_map(|(_, settings)| settings)
        .map(|setting| setting.name)
        .collect();
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with("DAT_") && !known.contains(&name.as_str()))
        .collect();
    unknown.sort();
    unknown
        .into_iter()
        .map(|name| {
            Finding::new(
                &name,
                Level::Note,
                "no variable of the libraries; --env lists them",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_devices() {
        let class = env::temp_dir().join(format!("dat-info-class-{}", std::process::id()));
        let port = class.join("mlx5_0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), "1: DOWN\n").unwrap();
        fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
        let found = devices(&class);
        fs::remove_dir_all(&class).unwrap();
        let expected = Finding::new("mlx5_0 1", Level::Note, "DOWN, Ethernet");
        assert_eq!(found[0], expected);
        assert_eq!(
            devices(&class),
            [Finding::new("RDMA devices", Level::Note, "there is none")]
        );
    }

    #[test]
    fn variables_that_are_misspelt() {
        let names = ["DAT_OVERRIDE", "DAT_OVERIDE", "PATH"];
        let found = unknown_variables(names.into_iter().map(str::to_owned));
        let names: Vec<&str> = found.iter().map(|f| f.what.as_str()).collect();
        assert_eq!(names, ["DAT_OVERIDE"]);
    }
}
