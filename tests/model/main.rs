//! Random walks through the API beside a reference model of its rules.
//!
//! Each walk is a sequence of calls that two parties make, which connect with each other, over one
//! path of the soft device. After each call the library and the model have to agree: on what the
//! call returned, on the events that are there and on their order, on every byte. A walk that ends
//! in a difference is made shorter as long as the difference stays, and printed as calls.
//!
//! `dat-model OUT`, with the libraries and the agents in `OUT` (`build/release`). `MODEL_STEPS` says
//! how many steps all walks have together, `MODEL_SEED` with which number they begin, `MODEL_RUNS`
//! on which versions and adapters: `dat:soft dat2:soft-tcp`, `MODEL_SHRINK` how often a walk may be
//! made shorter.

mod agent;
mod library;
mod rules;
mod steps;
mod walk;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use library::{Library, Run};
use walk::Walk;

/// Steps of the longest walk.
const LONGEST: usize = 300;
/// What has to happen happens within this time, on a machine that has a lot to do.
const PATIENT: Duration = Duration::from_secs(20);
/// The same while a walk is made shorter, most of whose parts fail by waiting in vain.
const IMPATIENT: Duration = Duration::from_millis(400);

fn main() -> ExitCode {
    let Some(out) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: dat-model OUT");
        return ExitCode::from(2);
    };
    let steps = setting("MODEL_STEPS", 1_000_000);
    let seed = setting("MODEL_SEED", 1);
    let runs = runs();
    println!("1..{}", runs.len());
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(runs.len()) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !check(&out, run, steps / runs.len(), seed) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn setting(name: &str, otherwise: usize) -> usize {
    match std::env::var(name) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
        Err(_) => otherwise,
    }
}

/// Every path, and each version of the API on the two that differ most.
fn runs() -> Vec<Run> {
    let runs = std::env::var("MODEL_RUNS").unwrap_or_else(|_| {
        "dat2:soft dat2:soft-shm dat2:soft-tcp dat:soft-shared dat:soft-tcp".into()
    });
    let runs = runs.split_whitespace().map(|run| {
        let (api, ia) = run.split_once(':').expect("a run is API:IA");
        Run {
            api: api.into(),
            ia: ia.into(),
        }
    });
    runs.collect()
}

/// Makes walks of so many steps together. Says whether there was no difference.
fn check(out: &Path, run: &Run, steps: usize, seed: usize) -> bool {
    let start = Instant::now();
    let name = format!("{}/{}", run.api, run.ia);
    let made = Cell::new(0);
    let walks = Cell::new(0);
    let patience = Cell::new(PATIENT);
    let library: RefCell<Option<Library>> = RefCell::new(None);
    let try_walk = |walk: &Vec<steps::Step>| -> Result<(), String> {
        // Processes that have done something else than the model are of no use any more.
        let mut process = match library.borrow_mut().take() {
            Some(process) => process,
            None => Library::start(out, run)?,
        };
        match Walk::make(&mut process, walk, patience.get()) {
            Ok(steps) => {
                made.set(made.get() + steps);
                walks.set(walks.get() + 1);
                *library.borrow_mut() = Some(process);
                Ok(())
            }
            Err(why) => {
                patience.set(IMPATIENT);
                Err(format!("{why}\n{}", process.trace.join("\n")))
            }
        }
    };
    let mut batch = 0u64;
    let mut result = Ok(());
    while made.get() < steps && result.is_ok() {
        let config = Config {
            cases: 50,
            failure_persistence: None,
            max_shrink_time: 600_000,
            verbose: 0,
            max_shrink_iters: setting("MODEL_SHRINK", 4000) as u32,
            ..Config::default()
        };
        // Each batch of walks has numbers of its own, which depend on nothing else.
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(seed as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&batch.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        batch += 1;
        let mut runner = TestRunner::new_with_rng(config, rng);
        result = runner.run(&steps::walks(LONGEST), |walk| {
            try_walk(&walk).map_err(TestCaseError::fail)
        });
    }
    let seconds = start.elapsed().as_secs_f64();
    let (made, walks) = (made.get(), walks.get());
    match result {
        Ok(()) => {
            println!("# {made} steps in {walks} walks, {seconds:.0} s\nok - model/{name}");
            true
        }
        Err(error) => {
            let text = match error {
                TestError::Fail(reason, walk) => format!("{walk:#?}\n{reason}"),
                TestError::Abort(reason) => reason.to_string(),
            };
            for line in text.lines() {
                println!("# {line}");
            }
            println!("# seed {seed}, after {made} steps\nnot ok - model/{name}");
            false
        }
    }
}
