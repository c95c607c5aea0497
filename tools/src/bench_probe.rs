//! `bench-probe`: limits of the machine that `make bench` compares with, and how near two
//! processors are to each other at the moment. Not installed.
//!
//! Each prints nanoseconds: the median of all samples and their mean, in one line. A and B are
//! processors.
//!
//! - `line A B`: a cache line, one way.
//! - `wake A B`: from a wake-up on A until the woken thread of B is seen to run, once that has gone on for
//!   a tenth of a second.
//! - `copy A BYTES`: a `memcpy` with warm memory.
//! - `vmread A BYTES`: the kernel's copy between processes.
//! - `exchange A B BYTES`: a message that is copied into memory which the other thread polls, one way.
//! - `tcp A B BYTES plain|crc`: a message over a socket, one way, without a checksum of its own or
//!   with a pass over it at each end.
//! - `connect A B COUNT`: one of so many connections over sockets that are made one after the other and
//!   stay.
//! - `stream A B BYTES plain|crc`: one of many such messages in one direction.

mod probe;

use std::env;
use std::process::ExitCode;

use probe::{Figures, copy, line, tcp};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match measure(&words) {
        Some(Figures { median, mean }) => {
            println!("{median:.1} {mean:.1}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!(
                "usage: bench-probe line|wake A B, copy|vmread A BYTES, exchange A B BYTES, \
                 connect A B COUNT, \
                 tcp|stream A B BYTES plain|crc"
            );
            ExitCode::FAILURE
        }
    }
}

fn measure(words: &[&str]) -> Option<Figures> {
    let number = |text: &str| text.parse::<usize>().ok();
    let crc = |text: &str| match text {
        "plain" => Some(false),
        "crc" => Some(true),
        _ => None,
    };
    match *words {
        ["line", a, b] => line::line(number(a)?, number(b)?),
        ["wake", a, b] => line::wake(number(a)?, number(b)?),
        ["copy", a, size] => copy::copy(number(a)?, number(size)?),
        ["vmread", a, size] => copy::vmread(number(a)?, number(size)?),
        // The other process of `vmread`: it holds memory until its standard input ends.
        ["hold", size] => copy::hold(number(size)?),
        ["exchange", a, b, size] => line::exchange(number(a)?, number(b)?, number(size)?),
        ["connect", a, b, count] => tcp::connections(number(a)?, number(b)?, number(count)?),
        ["tcp", a, b, size, sum] => tcp::latency(number(a)?, number(b)?, number(size)?, crc(sum)?),
        ["stream", a, b, size, sum] => {
            tcp::stream(number(a)?, number(b)?, number(size)?, crc(sum)?)
        }
        _ => None,
    }
}
