//! Link step of the shared libraries, used by the build scripts of `libdat`, `libdat2` and `providers/*`.
//!
//! A shared library of this project has a SONAME and one version node that every symbol is
//! bound to, as binaries built against OpenFabrics' library expect. rustc passes a version
//! script of its own, and GNU ld takes only one; lld takes both. So the symbols get their version
//! from `.symver` directives beside the functions (`dat_core::entry_points!`), a second script
//! declares the node, and lld links.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::{env, fs};

/// Passes the linker arguments that give the library its `soname` and the version `nodes`.
#[allow(dead_code)]
pub fn library(soname: &str, nodes: &[&str]) {
    let script = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("version.map");
    let declared = nodes.iter().map(|node| format!("{node} {{ }};\n"));
    fs::write(&script, declared.collect::<String>()).expect("OUT_DIR is writable");

    arg("-fuse-ld=lld");
    match lld() {
        Lld::System => {}
        Lld::Toolchain(dir) => arg(&format!("-B{}", dir.display())),
        Lld::Missing => {
            println!(
                "cargo::error={soname} needs the linker lld: GNU ld takes only one version \
                 script. Install it (Debian: apt install lld) and build again."
            );
            exit(1);
        }
    }
    arg(&format!("-Wl,--version-script={}", script.display()));
    common(soname);
}

/// Passes the linker arguments of a provider library, whose symbols have no version.
#[allow(dead_code)]
pub fn provider(soname: &str) {
    common(soname);
}

/// Passes the arguments that all libraries have.
fn common(soname: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    arg(&format!("-Wl,-soname,{soname}"));
    // By which debuggers find the debug information that `make install` puts apart.
    arg("-Wl,--build-id=sha1");
    // The runtime of a sanitizer comes with the program.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if !flags.contains("-Zsanitizer") {
        arg("-Wl,-z,defs");
    }
    arg("-Wl,-z,now");
    arg("-Wl,-z,nodelete");
}

fn arg(text: &str) {
    println!("cargo::rustc-cdylib-link-arg={text}");
}

/// Where an lld can be had from.
enum Lld {
    /// The C compiler driver finds one.
    System,
    /// The Rust toolchain has one, in this directory.
    Toolchain(PathBuf),
    Missing,
}

fn lld() -> Lld {
    let driver = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let works = Command::new(driver)
        .args(["-fuse-ld=lld", "-Wl,--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if works {
        return Lld::System;
    }
    let host = env::var("HOST").expect("set by cargo");
    let rustc = env::var_os("RUSTC").expect("set by cargo");
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let dir = Path::new(&sysroot.unwrap_or_default())
        .join("lib/rustlib")
        .join(host)
        .join("bin/gcc-ld");
    match dir.join("ld.lld").exists() {
        true => Lld::Toolchain(dir),
        false => Lld::Missing,
    }
}
