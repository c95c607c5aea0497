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

/// An entry for a version that no library has is shown with the nearest one.
#[test]
fn entries_of_no_version() {
    let config = Config::new(
        "versions",
        "early u1.1 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n\
         late u3.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n",
    );
    let output = dat_info(&[], Some(&config));
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    let (first, second) = text.split_once("\nDAT 2.0").unwrap();
    for (listing, name, api) in [(first, "early", "1.1"), (second, "late", "3.0")] {
        let row = listing.lines().find(|line| line.starts_with(name));
        let row = row.unwrap_or_else(|| panic!("no {name}: {text}"));
        assert!(row.contains(&format!("  {api}  ")), "{row}");
        assert!(row.ends_with("  programs ask for DAT 1.2 or 2.0"), "{row}");
        assert_eq!(text.matches(name).count(), 1);
    }
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
    for mistake in [
        &["--api", "3.0"][..],
        &["--env", "--api", "1.2"],
        &["-v", "--json"],
        &["x"],
    ] {
        assert_eq!(dat_info(mistake, None).status.code(), Some(2));
    }
}

#[test]
fn all_attributes() {
    let config = Config::new(
        "verbose",
        "here u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1 counters=on\" \"\"\n",
    );
    let text = stdout(&dat_info(&["-v", "--api", "2.0"], Some(&config)));
    let (_, attributes) = text.split_once("\nhere\n").expect(&text);
    let value = |name: &str| {
        let line = attributes
            .lines()
            .find(|line| line.trim().starts_with(name));
        line.map(|line| line.trim()[name.len()..].trim().to_owned())
    };
    assert_eq!(value("provider_name").as_deref(), Some("libdat-soft"));
    assert_eq!(value("max_message_size").as_deref(), Some("1073741824"));
    let counters = value("provider_specific_attr DAT_COUNTERS");
    assert!(counters.is_some(), "{attributes}");
}

#[test]
fn as_json() {
    let config = Config::new(
        "json",
        "here u1.2 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n\
         here u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n\
         gone u2.0 threadsafe default builtin:soft v.1.0 \"no_such_netdev\" \"\"\n",
    );
    let read = |arguments: &[&str]| -> serde_json::Value {
        let output = dat_info(arguments, Some(&config));
        assert_eq!(output.status.code(), Some(0));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let all = read(&["--json", "--check"]);
    assert_eq!(all["version"], env!("CARGO_PKG_VERSION"));
    let host = all["host"].as_array().unwrap();
    assert!(
        host.iter().any(|f| f["what"] == "shared memory"),
        "{host:?}"
    );
    for (index, api) in ["1.2", "2.0"].into_iter().enumerate() {
        let listing = &all["apis"][index];
        assert_eq!(listing["api"], api);
        let here = &listing["adapters"][0];
        assert_eq!(here["name"], "here");
        assert_eq!(here["usable"], true);
        assert_eq!(here["origin"], format!("{}:{}", config.name(), index + 1));
        assert_eq!(here["attributes"]["max_eps"], 65536);
    }
    let gone = &all["apis"][1]["adapters"][1];
    assert_eq!(gone["usable"], false);
    assert!(gone["fault"].as_str().unwrap().contains("no_such_netdev"));
    assert!(gone["attributes"].is_null());
    let one = read(&["--json", "--api", "2.0"]);
    assert_eq!(one["apis"][0], all["apis"][1]);
    assert!(one["host"].is_null());
    let settings = read(&["--json", "--env"]);
    assert_eq!(settings[0]["settings"][0]["name"], "DAT_OVERRIDE");
}

#[test]
fn what_the_machine_is_like() {
    let config = Config::new("check", "");
    let output = dat_info(&["--check"], Some(&config));
    let text = stdout(&output);
    assert!(text.starts_with("HOST "), "{text}");
    let file = format!("{} (DAT_OVERRIDE)", config.name());
    let line = |what: &str| {
        let line = text.lines().find(|line| line.starts_with(what));
        line.unwrap_or_else(|| panic!("no {what}: {text}"))
    };
    assert!(
        line("dat.conf").ends_with(&format!("  ok     {file}")),
        "{text}"
    );
    assert!(line("open files").contains("  ok  "), "{text}");
    // Once, although each version has its own process.
    assert_eq!(text.matches("HOST ").count(), 1);
    assert_eq!(text.matches("\nDAT ").count(), 2);
}

/// The libraries do not read such a file, nor wait for somebody who writes to it.
#[test]
fn a_configuration_that_is_no_file() {
    let config = Config::new("pipe", "");
    fs::remove_file(&config.0).unwrap();
    let made = Command::new("mkfifo").arg(&config.0).status().unwrap();
    assert!(made.success());
    let output = dat_info(&["--check"], Some(&config));
    let text = stdout(&output);
    let line = text.lines().find(|line| line.starts_with("dat.conf"));
    let expected = format!(
        "{} (DAT_OVERRIDE): it is a FIFO, not a regular file",
        config.name()
    );
    assert!(
        line.unwrap().ends_with(&format!("  bad    {expected}")),
        "{text}"
    );
}

/// Lists, as JSON, an IA of a provider library for DAT 2.0 that begins so.
fn json_of_provider(name: &str, init: &str) -> (serde_json::Value, String) {
    let directory = std::env::temp_dir().join(format!("dat-info-{}-{name}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (source, library) = (directory.join("p.c"), directory.join("libprovider.so"));
    let text = format!(
        "#include <stdio.h>\n#include <stdlib.h>\n\
         void dat_provider_init(void *a, char *b) {{ {init}; }}\n\
         void dat_provider_fini(void *a) {{ }}\n"
    );
    fs::write(&source, text).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(built.success());
    let entry = format!(
        "ia u2.0 threadsafe default {} v.1.0 \"\" \"\"\n",
        library.display()
    );
    let config = Config::new(name, &entry);
    let output = dat_info(&["--json"], Some(&config));
    fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

/// What a provider library prints is not between the rows.
#[test]
fn providers_that_print() {
    let (all, said) = json_of_provider("prints", "puts(\"noise of a provider\")");
    assert!(said.contains("noise of a provider"), "{said}");
    assert_eq!(all["apis"][1]["adapters"][0]["name"], "ia");
}

/// A provider that crashes takes the listing of its version alone.
#[test]
fn providers_that_crash() {
    let (all, _) = json_of_provider("crashes", "abort()");
    assert_eq!(all["apis"][0]["api"], "1.2");
    assert_eq!(all["apis"][0]["adapters"], serde_json::json!([]));
    assert_eq!(all["apis"][1]["api"], "2.0");
    let error = all["apis"][1]["error"].as_str().unwrap();
    assert!(error.contains("signal: 6"), "{error}");
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
