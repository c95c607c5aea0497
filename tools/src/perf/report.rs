//! What was measured, as a table for people or as JSON for programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::failure::{Failure, Result};
use super::link::Link;
use super::options::Options;
use super::order::{Op, Test};
use super::plan::Item;
use super::samples::Latency;
use crate::output;

/// A measurement that has been made.
pub struct Row {
    /// What was measured.
    pub item: Item,
    /// Operations, all endpoints together.
    pub count: u64,
    /// How long they took.
    pub seconds: f64,
    /// Operations that were timed together, if each was.
    pub group: Option<u64>,
    /// Their latencies, if they were one at a time.
    pub latency: Option<Latency>,
}

/// Prints what was measured.
pub struct Report {
    json: bool,
    /// Both ends are in this process.
    loopback: bool,
    /// The name of the IA.
    ia: String,
    link: Link,
    head: Value,
    rows: Vec<Value>,
    started: bool,
}

const HEADS: &str = "test       op             size       count     \
                     mean      p50      p99    p99.9        MB/s     Mmsg/s";

impl Report {
    /// Of a run with these options.
    ///
    /// `connecting` is how long its connections took, if they were made one after the other.
    pub fn new(options: &Options, link: Link, connecting: Option<Duration>) -> Report {
        let mode = match options.loopback {
            true => "loopback",
            false => "client",
        };
        Report {
            json: options.json,
            loopback: options.loopback,
            ia: options.ia.clone(),
            head: json!({
                "program": "dat-perf",
                "version": env!("CARGO_PKG_VERSION"),
                "mode": mode,
                "ia": options.ia,
                "path": link.path,
                "peer": link.peer,
                "endpoints": options.endpoints,
                "connect_seconds": connecting.map(|took| took.as_secs_f64()),
                "window": options.window,
                "wait": options.wait.map(|wait| format!("{wait:?}").to_lowercase()),
                "passive": options.passive,
                "random": options.random,
                "registered": if options.register { "each" } else { "once" },
                "pause_us": options.pause,
                "verified": options.verify,
                "data": options.data().name(),
            }),
            link,
            rows: Vec::new(),
            started: false,
        }
    }

    /// Adds a row, and shows it at once if people read it.
    ///
    /// # Errors
    /// Why standard output takes nothing.
    pub fn add(&mut self, row: Row) -> Result<()> {
        if self.json {
            self.rows.push(as_json(&row, self.loopback));
            return Ok(());
        }
        if !self.started {
            self.started = true;
            let head = link_text(&self.ia, &self.link);
            print(&format!("{head}{:40}      latency [us]\n{HEADS}\n", ""))?;
        }
        print(&as_text(&row))
    }

    /// The end: the JSON object, if that is wanted.
    ///
    /// # Errors
    /// Why standard output takes nothing.
    pub fn finish(self) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut all = self.head;
        all["results"] = Value::Array(self.rows);
        print(&format!("{all:#}\n"))
    }
}

/// What connects the two ends, for people.
fn link_text(ia: &str, link: &Link) -> String {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    let (path, peer) = (known(&link.path), known(&link.peer));
    format!("IA {ia}, path {path}, peer {peer}\n")
}

fn print(text: &str) -> Result<()> {
    output::print(text).map_err(|error| Failure::Error(format!("standard output: {error}")))
}

fn per_second(row: &Row) -> f64 {
    row.count as f64 / row.seconds.max(1e-12)
}

/// What a latency is that of: completions of writes may be sooner than their arrival.
fn latency_of(op: Op, loopback: bool) -> &'static str {
    match op {
        _ if loopback => "operation",
        Op::Send | Op::WritePoll => "half round trip",
        Op::Write | Op::Read => "completion",
    }
}

fn as_json(row: &Row, loopback: bool) -> Value {
    let rate = per_second(row);
    let mut value = json!({
        "test": row.item.test.name(),
        "op": row.item.op.name(),
        "size": row.item.size,
        "count": row.count,
        "seconds": row.seconds,
    });
    let streams = row.item.test != Test::Latency;
    if let Some(latency) = &row.latency {
        value["latency_us"] = json!({
            "mean": latency.mean,
            "min": latency.min,
            "p50": latency.p50,
            "p99": latency.p99,
            "p99.9": latency.p999,
            "max": latency.max,
        });
        value["operations_per_sample"] = row.group.into();
        value["latency_of"] = latency_of(row.item.op, loopback).into();
    }
    if streams {
        value["bytes_per_second"] = json!(rate * f64::from(row.item.size));
        value["messages_per_second"] = json!(rate);
    }
    value
}

/// A size as people write it.
fn size_text(size: u32) -> String {
    match size {
        size if size.is_multiple_of(1 << 20) => format!("{}M", size >> 20),
        size if size.is_multiple_of(1 << 10) => format!("{}K", size >> 10),
        size => size.to_string(),
    }
}

fn as_text(row: &Row) -> String {
    let item = &row.item;
    let mut line = format!(
        "{:<10} {:<10} {:>8} {:>11}",
        item.test.name(),
        item.op.name(),
        size_text(item.size),
        row.count
    );
    match &row.latency {
        Some(l) => {
            for value in [l.mean, l.p50, l.p99, l.p999] {
                line.push_str(&format!(" {value:>8.3}"));
            }
        }
        None => line.push_str(&format!("{:36}", "")),
    }
    if item.test != Test::Latency {
        let rate = per_second(row) / 1e6;
        let bandwidth = rate * f64::from(item.size);
        line.push_str(&format!(" {bandwidth:>11.1} {rate:>10.4}"));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(latency: Option<Latency>) -> Row {
        Row {
            item: Item {
                test: match latency {
                    Some(_) => Test::Latency,
                    None => Test::Bandwidth,
                },
                op: Op::Send,
                size: 4096,
            },
            count: 1000,
            seconds: 0.5,
            group: Some(1),
            latency,
        }
    }

    #[test]
    fn a_latency() {
        let latency = Latency {
            p50: 1.25,
            ..Latency::default()
        };
        let text = as_text(&row(Some(latency)));
        assert!(
            text.starts_with("latency    send             4K        1000"),
            "{text}"
        );
        assert!(text.contains(" 1.250 "), "{text}");
        let value = as_json(&row(Some(latency)), false);
        assert_eq!(value["latency_us"]["p50"], 1.25);
        assert_eq!(value["latency_of"], "half round trip");
        assert_eq!(latency_of(Op::Write, false), "completion");
        assert_eq!(latency_of(Op::Write, true), "operation");
    }

    #[test]
    fn a_bandwidth() {
        let value = as_json(&row(None), false);
        assert_eq!(value["bytes_per_second"], 4096.0 * 2000.0);
        assert_eq!(value["messages_per_second"], 2000.0);
        assert!(as_text(&row(None)).ends_with("        8.2     0.0020\n"));
    }

    #[test]
    fn sizes_for_people() {
        let texts = [1, 1024, 1000, 4 << 20].map(size_text);
        assert_eq!(texts, ["1", "1K", "1000", "4M"]);
    }
}
