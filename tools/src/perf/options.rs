//! The command line.

use std::str::FromStr;

use clap::{ArgGroup, Parser, ValueEnum};

use super::order::{Data, Op, Test};

/// Where a server listens unless told otherwise.
pub const QUALIFIER: u64 = 18520;

/// The most operations of a measurement: with the rest of a window less than [`super::order::COUNT_LIMIT`].
const COUNT_MAX: u64 = 1_000_000_000_000;

/// Measure what a DAT (uDAPL) interface adapter does: latency, bandwidth, message rate.
///
/// One end serves, the other one measures; or one process is both. Exit status: 0 if all went
/// well, 1 if not, 2 for a mistake in the command line, 130 after an interrupt.
#[derive(Clone, Debug, Parser)]
#[command(name = "dat-perf", version)]
#[command(group(ArgGroup::new("mode").required(true).args(["server", "client", "loopback"])))]
pub struct Options {
    /// Serve clients until interrupted
    #[arg(long)]
    pub server: bool,
    /// Measure with the server on this host
    #[arg(long, value_name = "HOST")]
    pub client: Option<String>,
    /// Measure between two endpoints of this process
    #[arg(long)]
    pub loopback: bool,
    /// The interface adapter; dat-info lists them
    #[arg(short, long, value_name = "NAME", default_value = "soft")]
    pub ia: String,
    /// Connection qualifier of the server; 0 lets the server take any
    #[arg(short, long, value_name = "NUMBER", default_value_t = QUALIFIER)]
    pub qualifier: u64,
    /// Serve one client only
    #[arg(long, conflicts_with_all = ["client", "loopback"])]
    pub once: bool,
    /// What to measure
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "latency,bandwidth,rate"
    )]
    pub test: Vec<Test>,
    /// With which operations
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "send,write,read,write-poll"
    )]
    pub op: Vec<Op>,
    /// Sizes, such as 8,4K,1M, or a range in powers of two, such as 8-4M
    /// [default: 8 to 4M; for the rate: 8]
    #[arg(short, long, value_name = "SIZES")]
    pub size: Option<Sizes>,
    /// Operations of each measurement [default: what fills its time]
    #[arg(short = 'n', long, value_name = "NUMBER",
          value_parser = clap::value_parser!(u64).range(1..=COUNT_MAX))]
    pub count: Option<u64>,
    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = seconds)]
    pub time: f64,
    /// Operations before each measurement that do not count
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub warm_up: u64,
    /// Operations in flight on each endpoint when bandwidth and rate are measured
    #[arg(short, long, value_name = "NUMBER", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub window: u16,
    /// Operations that are posted at once when there is room [default: half a window]
    #[arg(long, value_name = "NUMBER")]
    pub burst: Option<u16>,
    /// Connected endpoints, used in turn, on one pair of event dispatchers
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=16384))]
    pub endpoints: u16,
    /// Wait for completions (dat_evd_wait) and do not poll (dat_evd_dequeue): at both ends, or at
    /// the server alone
    #[arg(long, value_name = "WHO", num_args = 0..=1, require_equals = true,
          default_missing_value = "both")]
    pub wait: Option<Wait>,
    /// RDMA: the server makes no call while the client measures
    #[arg(long)]
    pub passive: bool,
    /// Microseconds between operations when latency is measured, so that a waiting peer sleeps
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub pause: u64,
    /// Write each message before it is posted and read it after it has arrived, as programs do; the
    /// times include that
    #[arg(long)]
    pub touch: bool,
    /// Latency: use the endpoints of each round in another order, by chance
    #[arg(long)]
    pub random: bool,
    /// Register the memory of each message before it is posted, and free it when it has completed, at
    /// both ends; the times include that. With one endpoint, and sends only
    #[arg(long)]
    pub register: bool,
    /// Check all data; the times include that
    #[arg(long, conflicts_with = "touch")]
    pub verify: bool,
    /// Print one JSON object and no table
    #[arg(long)]
    pub json: bool,
}

impl Options {
    /// What is done with the data.
    pub fn data(&self) -> Data {
        match (self.verify, self.touch) {
            (true, _) => Data::Verified,
            (_, true) => Data::Touched,
            _ => Data::Left,
        }
    }
}

/// Which end waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// Both ends
    Both,
    /// The server alone
    Server,
}

/// Sizes of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u32>);

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0 to 3600".into()),
    }
}

fn size(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("\"{text}\" is not a size")),
    };
    let number: u32 = match digits.parse() {
        Ok(number) if number > 0 => number,
        _ => return Err(format!("\"{text}\" is not a size")),
    };
    match number.checked_mul(1 << shift) {
        Some(size) => Ok(size),
        None => Err(format!("\"{text}\" is too large")),
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let Some((first, last)) = part.split_once('-') else {
                sizes.push(size(part)?);
                continue;
            };
            let (first, last) = (size(first)?, size(last)?);
            let steps = std::iter::successors(Some(first), |size| size.checked_mul(2));
            sizes.extend(steps.take_while(|&size| size <= last));
        }
        match sizes.is_empty() {
            true => Err(format!("\"{text}\" holds no size")),
            false => Ok(Sizes(sizes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("8,64,4K,1m"), Ok(vec![8, 64, 4096, 1 << 20]));
        assert_eq!(sizes("8-64"), Ok(vec![8, 16, 32, 64]));
        assert_eq!(sizes("3G-4294967295"), Ok(vec![3 << 30]));
        for wrong in ["", "0", "8,", "x", "8-4", "8G", "-8", "4KK", "1 K"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn exactly_one_mode() {
        let parse = |arguments: &[&str]| {
            Options::try_parse_from(["dat-perf"].iter().chain(arguments)).is_ok()
        };
        assert!(parse(&["--loopback"]));
        assert!(parse(&["--client", "host", "-s", "8-4M", "--wait"]));
        assert!(parse(&["--server", "--once"]));
        assert!(!parse(&[]));
        assert!(!parse(&["--server", "--loopback"]));
        assert!(!parse(&["--loopback", "--once"]));
        assert!(!parse(&["--loopback", "--time", "-1"]));
        assert!(!parse(&["--loopback", "-n", "0"]));
        assert!(parse(&["--loopback", "-n", "1000000000000"]));
        assert!(!parse(&["--loopback", "-n", "1000000000001"]));
    }
}
