//! `dat-info` as a user runs it, with the libraries of this tree.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../../tests/common/libs.rs"]
mod libs;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A configuration file that goes away at the end of its test.
struct Config(PathBuf);

impl Config {
    fn new(name: &str, text: &str) -> Config {
        let file = format!("dat-info-{}-{name}.conf", std::process::id());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, text).unwrap();
        Config(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs dat-info with the libraries built.
fn dat_info(arguments: &[&str], config: Option<&Config>) -> Output {
    for profile in libs::profiles() {
        libs::directory(profile);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-info"));
    command.args(arguments).env_remove("DAT_DBG_TYPE");
    if let Some(config) = config {
        command.env("DAT_OVERRIDE", &config.0);
    }
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn entries_that_cannot_be_used_are_explained() {
    let config = Config::new(
        "unusable",
        "# two versions, no provider\n\
         ib0 u2.0 nonthreadsafe default /no/such/libdaplofa.so.2 dapl.2.0 \"ib0 0\" \"\"\n\
         old u1.2 nonthreadsafe default /no/such/provider.so v.1.2 \"\" \"\"\n",
    );
    let output = dat_info(&[], Some(&config));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let row = |name: &str| {
        let row = text.lines().find(|line| line.starts_with(name));
        row.unwrap_or_else(|| panic!("no row for {name}: {text}"))
    };
    let ib0 = row("ib0 ");
    assert!(ib0.contains("  2.0  "), "{ib0}");
    assert!(ib0.contains(&format!("{}:2  ", config.name())), "{ib0}");
    assert!(ib0.contains("  dat_ia_open: "), "{ib0}");
    let old = row("old ");
    assert!(old.contains("  1.2  /no/such/provider.so  -  "), "{old}");
    assert!(old.contains(&format!("{}:3  ", config.name())), "{old}");
    assert!(
        old.contains("DAT_PROVIDER_NOT_FOUND DAT_NAME_NOT_REGISTERED (/no/such/provider.so"),
        "{old}"
    );
    // Each under its own version.
    assert_eq!(text.matches("\nib0 ").count(), 1);
    assert_eq!(text.matches("\nold ").count(), 1);
}

#[test]
fn the_soft_provider_is_usable() {
    let config = Config::new(
        "usable",
        "gone u2.0 threadsafe default builtin:soft v.1.0 \"no_such_netdev\" \"\"\n\
         here u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n",
    );
    let output = dat_info(&[], Some(&config));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let cells = |name: &str| -> Vec<&str> {
        let row = text.lines().find(|line| line.starts_with(name)).unwrap();
        row.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    };
    let origin = format!("{}:2", config.name());
    let expected = ["here", "2.0", "builtin:soft", "127.0.0.1", &origin, "ok"];
    assert_eq!(cells("here "), expected);
    let gone = cells("gone ");
    assert_eq!(gone[3], "-");
    assert!(gone[5].contains("no_such_netdev"), "{gone:?}");
    assert!(
        text.contains("\nno interface adapter is registered\n"),
        "{text}"
    );
}

#[test]
fn one_version_alone() {
    let config = Config::new("one", "");
    let output = dat_info(&["--api", "2.0"], Some(&config));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("DAT 2.0: "), "{text}");
    assert!(text.contains("libdat2.so\nno interface adapter is registered\n"));
    assert!(!text.contains("DAT 1.2"));
}

#[test]
fn faults_of_the_file_are_said_once_a_version() {
    let config = Config::new("faulty", "nonsense\n");
    let output = dat_info(&["--api", "1.2"], Some(&config));
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "libdat: {}:1: only 1 of the 8 fields of an entry; the line is ignored\n",
        config.name()
    );
    assert_eq!(said, expected);
}

#[test]
fn settings_version_and_mistakes() {
    let output = dat_info(&["--env"], None);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(text.contains("\n  DAT_OVERRIDE (path; default: not set)\n"));
    assert!(text.contains("\n  crc (on|off; default: on)\n"));
    let output = dat_info(&["--version"], None);
    let expected = format!("dat-info {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&output), expected);
    for mistake in [&["--api", "3.0"][..], &["--env", "--api", "1.2"], &["x"]] {
        assert_eq!(dat_info(mistake, None).status.code(), Some(2));
    }
}

/// A full disk is an error; a pipe whose reader has seen enough is none.
#[test]
fn standard_output_that_takes_nothing() {
    for full in [true, false] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dat-info"));
        command.arg("--env");
        if full {
            command.stdout(fs::File::create("/dev/full").unwrap());
        } else {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            command.stdout(writer);
        }
        let output = command
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), !full, "{said}");
        assert_eq!(said.contains("No space left"), full, "{said}");
    }
}
