//! A test program that starts itself again, to run one of its tests in a process of its own. The
//! two talk by lines over the standard input and output of the child.
#![allow(dead_code)] // Not every test program needs all of this.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The command that runs the test of this name alone.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// A process of [`command`], which is killed when this is dropped.
pub struct Itself {
    pub child: Child,
    /// `None` once the input has ended.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Itself {
    pub fn start(mut command: Command) -> std::io::Result<Itself> {
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Ok(Itself {
            child,
            input,
            output,
        })
    }

    /// The next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap();
        assert!(read > 0, "the process has ended");
        line.trim_end().to_string()
    }

    /// The rest of the next line that begins like that.
    pub fn line_of(&mut self, beginning: &str) -> String {
        loop {
            if let Some(rest) = self.line().strip_prefix(beginning) {
                return rest.trim().to_string();
            }
        }
    }

    /// The numbers in the next line that begins like that.
    pub fn numbers<T: std::str::FromStr<Err: std::fmt::Debug>>(
        &mut self,
        beginning: &str,
    ) -> Vec<T> {
        let line = self.line_of(beginning);
        line.split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect()
    }

    pub fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Ends the input, which ends the process.
    pub fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Itself {
    fn drop(&mut self) {
        self.kill();
    }
}
