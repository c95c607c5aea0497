//! `dat-perf`: how fast a DAT interface adapter is.
//!
//! A DAT program like any other: it uses the functions that `libdat2.so.2` exports, and from the
//! library crate only the C types and the search for the file.

mod arguments;
mod figures;
mod loader;
mod output;
mod perf;

use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use perf::api::Api;
use perf::client::{self, Client};
use perf::failure::{Failure, Result, catch_signals};
use perf::ia::Ia;
use perf::link::{self, Link};
use perf::loopback::{self, Loopback};
use perf::options::Options;
use perf::plan::Plan;
use perf::report::Report;
use perf::server::Server;

/// Exit status after an error.
const FAILED: u8 = 1;
/// Exit status after wrong options.
const MISUSE: u8 = 2;
/// Exit status after an interrupt, as shells have it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options: Options = match arguments::parse(MISUSE, FAILED) {
        Ok(options) => options,
        Err(status) => return status,
    };
    catch_signals();
    link::ask_for_states();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Interrupted) => {
            say("interrupted");
            ExitCode::from(INTERRUPTED)
        }
        Err(Failure::Error(message)) => {
            say(&message);
            ExitCode::from(FAILED)
        }
    }
}

/// Tells the user something that is no result.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "dat-perf: {text}");
}

fn run(options: &Options) -> Result<()> {
    let ia = Rc::new(Ia::open(Api::load()?, &options.ia)?);
    let result = match &options.client {
        _ if options.server => serve(&ia, options),
        Some(host) => measure(&ia, options, host),
        None => in_one(&ia, options),
    };
    result.and_then(|()| ia.close())
}

fn serve(ia: &Rc<Ia>, options: &Options) -> Result<()> {
    let server = Server::new(ia, options)?;
    let at = match ia.address() {
        Some(address) => format!(" ({address})"),
        None => String::new(),
    };
    say(&format!(
        "serving on IA {}{at}, qualifier {}",
        ia.name, server.qualifier
    ));
    loop {
        match server.session() {
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            // The next client may have more luck.
            Err(Failure::Error(text)) if !options.once => say(&text),
            Ok(()) if !options.once => {}
            result => return result,
        }
    }
}

/// Prints what there is of the results, also if it is not all.
fn reported(
    options: &Options,
    link: Link,
    connecting: Option<Duration>,
    measure: impl FnOnce(&mut Report) -> Result<()>,
) -> Result<()> {
    let mut report = Report::new(options, link, connecting);
    let result = measure(&mut report);
    let finished = report.finish();
    result.and(finished)
}

fn plan(ia: &Ia, options: &Options) -> Result<Plan> {
    Plan::new(
        options,
        ia.limits.max_message_size.min(ia.limits.max_rdma_size),
    )
}

fn measure(ia: &Rc<Ia>, options: &Options, host: &str) -> Result<()> {
    let plan = plan(ia, options)?;
    let mut client = Client::connect(ia, options, &plan, host)?;
    let connecting = Some(client.connecting);
    reported(options, client.link(), connecting, |report| {
        client::measure(options, &plan, &mut client, client::trips, report)
    })?;
    client.close()
}

fn in_one(ia: &Rc<Ia>, options: &Options) -> Result<()> {
    let plan = plan(ia, options)?;
    let mut loopback = Loopback::connect(ia, options, &plan)?;
    reported(options, loopback.link(), None, |report| {
        client::measure(options, &plan, &mut loopback, loopback::trips, report)
    })
}
