//! A program that has both libraries, as one that uses DAT 2.0 and a library for DAT 1.2.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../common/libs.rs"]
mod libs;

use std::fs;
use std::path::Path;
use std::process::Command;

use libs::{DAT_1_2, DAT_2_0};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn cc(arguments: &[&str]) {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra"]);
    command.args(["-Werror", &format!("-I{ROOT}/include")]);
    command.arg(format!("-I{ROOT}/tests-c")).args(arguments);
    assert!(command.status().unwrap().success(), "{command:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn each_finds_its_faults_beside_the_handlers_of_the_other_and_of_the_program() {
    for profile in libs::profiles() {
        let libraries = libs::directory(profile);
        let source = |name: &str| format!("{ROOT}/tests/two_libraries/{name}.c");
        // A module for each, since a function is bound to one library by each module.
        let modules = [DAT_1_2, DAT_2_0].map(|library| {
            let module = libraries.join(format!("end-{}.so", library.version));
            let flag = format!("-DDAT{}", &library.version[..1]);
            let name = format!("-Wl,-soname,end-{}.so", library.version);
            let dat = libraries.join(library.file);
            let output = ["-shared", "-fPIC", &flag, &name, "-o", text(&module)];
            cc(&[&output[..], &[&source("end"), text(&dat)]].concat());
            module
        });
        let program = libraries.join("both");
        let [first, second] = modules.each_ref().map(|module| text(module));
        let beside = format!("-Wl,-rpath-link,{}", libraries.display());
        let (program_c, output) = (source("program"), text(&program));
        cc(&["-o", output, &program_c, first, second, &beside]);

        let conf = libraries.join("dat.conf");
        let entry =
            |version| format!("a u{version} threadsafe default builtin:soft v.1.0 \"lo\" \"\"\n");
        fs::write(&conf, entry("1.2") + &entry("2.0")).unwrap();
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &libraries);
        let output = command.env("DAT_OVERRIDE", conf).output().unwrap();
        assert!(output.status.success(), "{profile:?}: {output:?}");
    }
}
