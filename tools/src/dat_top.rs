//! `dat-top`: what the DAT programs of this user do at the moment.
//!
//! It reads what the libraries in these programs offer, over local sockets, and uses no library itself.

mod arguments;
mod figures;
#[allow(dead_code, reason = "dat-info breaks lines too")]
mod table;
mod top;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use top::processes::Processes;
use top::screen::{Next, Screen};
use top::view::{self, Form};

/// Exit status after an error.
const FAILED: u8 = 1;
/// Exit status after wrong options.
const MISUSE: u8 = 2;
/// Lines of a terminal that are not rows of objects, for each process.
const LINES: usize = 6;

/// Show what DAT programs do: their endpoints, EVDs and SRQs, with rates.
///
/// Programs of this user are shown that were started with DAT_COUNTERS=states or DAT_COUNTERS=on, or that
/// have an IA with counters=on in dat.conf. Exit status: 0, or 1 after an error.
#[derive(Parser)]
#[command(name = "dat-top", version)]
struct Options {
    /// Only this process
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Show what there is now, with totals in place of rates, and end
    #[arg(long)]
    once: bool,
    /// As JSON, an object for each reading
    #[arg(long)]
    json: bool,
    /// Time between two readings, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    delay: Duration,
}

/// A time between readings.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("from 0.1 to 3600".into()),
    }
}

fn main() -> ExitCode {
    let options: Options = match arguments::parse(MISUSE, FAILED) {
        Ok(options) => options,
        Err(status) => return status,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "dat-top: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let mut screen = Screen::open(!options.once && !options.json)?;
    let mut processes = Processes::new(options.pid);
    let mut rounds = 0u64;
    loop {
        processes.read()?;
        if let Some(pid) = options.pid
            && processes.libraries().is_empty()
        {
            return match rounds {
                0 => Err(io::Error::other(processes.why_missing(pid))),
                _ => Ok(()),
            };
        }
        let text = match (options.json, options.once) {
            (true, true) => format!("{:#}\n", processes.json()),
            (true, false) => format!("{}\n", processes.json()),
            (false, totals) => text(&processes, totals, &screen, rounds),
        };
        let shown = screen.show(&text)?;
        rounds += 1;
        if shown.is_none() || options.once || screen.wait(options.delay) == Next::End {
            return Ok(());
        }
    }
}

/// The tables. Those that follow each other on paper have an empty line between them.
fn text(processes: &Processes, totals: bool, screen: &Screen, rounds: u64) -> String {
    let all = processes.libraries().len();
    let rows = match screen.rows() {
        // Half of the lines of a process for its endpoints, the others for its EVDs.
        Some(rows) => (rows / all.max(1)).saturating_sub(LINES) / 2,
        None => usize::MAX,
    };
    let form = Form {
        totals,
        rows: rows.max(2),
    };
    let text = view::text(processes, form);
    match screen.rows() {
        None if rounds > 0 => format!("\n{text}"),
        _ => text,
    }
}
