//! Runs the C and C++ compilers on sources that the tests write.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a source is compiled as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    C90,
    C11,
    C23,
    Cxx98,
    Cxx17,
    Cxx20,
}

impl Language {
    /// Those that programs are written in: the oldest, a usual and the newest one.
    pub const ALL: [Language; 6] = [
        Language::C90,
        Language::C11,
        Language::C23,
        Language::Cxx98,
        Language::Cxx17,
        Language::Cxx20,
    ];

    fn command(self, source: &Path) -> Command {
        let standard = match self {
            Language::C90 => "-std=c90",
            Language::C11 => "-std=c11",
            Language::C23 => "-std=c2x",
            Language::Cxx98 => "-std=c++98",
            Language::Cxx17 => "-std=c++17",
            Language::Cxx20 => "-std=c++20",
        };
        let (variable, default) = match self.extension() {
            "c" => ("CC", "cc"),
            _ => ("CXX", "c++"),
        };
        let compiler = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
        command.arg(source);
        command
    }

    fn extension(self) -> &'static str {
        match self {
            Language::C90 | Language::C11 | Language::C23 => "c",
            Language::Cxx98 | Language::Cxx17 | Language::Cxx20 => "cc",
        }
    }
}

/// Writes a source file of the given name for the compiler; tests run side by side, so each
/// needs names of its own.
fn write(name: &str, language: Language, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let path = path.with_extension(language.extension());
    std::fs::write(&path, text).expect("the temporary directory is writable");
    path
}

fn output(mut command: Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "{command:?}\n{}{}",
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

/// Compiles without making a file; the error is what the compiler says.
pub fn check(name: &str, language: Language, text: &str) -> Result<(), String> {
    let mut command = language.command(&write(name, language, text));
    command.arg("-fsyntax-only");
    output(command).map(drop)
}

/// Preprocesses; `-dM` in `flags` lists the macros instead.
pub fn preprocess(name: &str, text: &str, flags: &[&str]) -> String {
    let mut command = Language::C11.command(&write(name, Language::C11, text));
    command.arg("-E").args(flags);
    output(command).unwrap_or_else(|e| panic!("{e}"))
}

/// Compiles, links and runs a C program; what it prints.
pub fn run(name: &str, text: &str) -> String {
    let source = write(name, Language::C11, text);
    let program = source.with_extension("");
    let mut command = Language::C11.command(&source);
    command.arg("-o").arg(&program);
    output(command).unwrap_or_else(|e| panic!("{e}"));
    output(Command::new(program)).unwrap_or_else(|e| panic!("{e}"))
}
