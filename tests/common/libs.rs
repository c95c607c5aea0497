//! The shared libraries, built for the tests that need the files.
//!
//! `cargo test` holds no lock while its tests run, so they may call cargo.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{fs, os};

/// A shared library of this project.
pub struct Library {
    /// Version of the DAT API, and what follows `DAT_` in the version node of every symbol.
    pub version: &'static str,
    /// File that cargo makes, which is also the name that the linker looks for.
    pub file: &'static str,
    /// Name that programs ask the loader for.
    pub soname: &'static str,
}

/// The library of DAT 1.2.
pub const DAT_1_2: Library = Library {
    version: "1.2",
    file: "libdat.so",
    soname: "libdat.so.1",
};

/// The library of DAT 2.0.
pub const DAT_2_0: Library = Library {
    version: "2.0",
    file: "libdat2.so",
    soname: "libdat2.so.2",
};

/// The profile of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Not optimised, with all checks.
    Dev,
    /// What is installed.
    Release,
}

impl Profile {
    /// The one that the running test was built in.
    fn current() -> Self {
        match cfg!(debug_assertions) {
            true => Profile::Dev,
            false => Profile::Release,
        }
    }

    fn index(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        ["dev", "release"][self.index()]
    }

    fn directory(self) -> &'static str {
        ["debug", "release"][self.index()]
    }
}

/// Whether a switch of the tests is on in the environment.
pub fn demanded(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// What to test: the profile of this test run, and with `DAT_CHECK_RELEASE=1` what is installed.
pub fn profiles() -> Vec<Profile> {
    match (Profile::current(), demanded("DAT_CHECK_RELEASE")) {
        (Profile::Dev, true) => vec![Profile::Dev, Profile::Release],
        (current, _) => vec![current],
    }
}

/// A directory with both libraries under the names that the loader and the linker look for.
pub fn directory(profile: Profile) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    BUILT[profile.index()]
        .get_or_init(|| build(profile))
        .clone()
}

fn build(profile: Profile) -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = temporary
        .parent()
        .expect("tmp is inside the target directory");
    // This program is in a profile's directory, in `deps`. With CARGO_BUILD_TARGET the directories of
    // the profiles are not in `target` itself.
    let program = std::env::current_exe().expect("this program has a file");
    let profiles = program.ancestors().nth(3).expect("this is deep enough");
    // With the flags of a release build; other flags would be another build.
    let mut command = match profile {
        Profile::Dev => Command::new(env!("CARGO")),
        Profile::Release => {
            let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
            let mut scripts = above.map(|dir| dir.join("scripts/remap.sh"));
            let script = scripts.find(|file| file.exists());
            let mut command = Command::new(script.expect("this is in the workspace"));
            command.arg(env!("CARGO"));
            command
        }
    };
    let status = command
        .args(["build", "--quiet", "--package=libdat", "--package=libdat2"])
        .args(["--profile", profile.name()])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the libraries do not build");

    // One directory a test program, as several may run at once.
    let dir = temporary
        .join(env!("CARGO_CRATE_NAME"))
        .join(profile.name());
    fs::create_dir_all(&dir).expect("the target directory is writable");
    for library in [DAT_1_2, DAT_2_0] {
        let file = profiles.join(profile.directory()).join(library.file);
        assert!(file.exists(), "{file:?} was not built");
        for name in [library.soname, library.file] {
            let link = dir.join(name);
            let _ = fs::remove_file(&link);
            os::unix::fs::symlink(&file, &link).expect("a fresh name in our own directory");
        }
    }
    dir
}
