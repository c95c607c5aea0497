//! The processes that offer figures, read once in each round.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::figures::{self, Place, Reader};

/// How long a round waits for processes that do not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What became of the last attempt to read a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has answered.
    Running,
    /// It is stopped, by a signal or a debugger.
    Stopped,
    /// It does not answer.
    Silent,
    /// It has refused.
    Refused,
}

impl State {
    /// For people, and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Stopped => "stopped",
            State::Silent => "does not answer",
            State::Refused => "refused",
        }
    }
}

/// A socket with figures; a process has one for each DAT library.
struct Source {
    /// The process.
    pid: u32,
    /// The connection on which an answer is outstanding. A stopped process answers when it goes on.
    reader: Option<Reader>,
    state: State,
    /// The last figures.
    last: Option<Value>,
    /// Those before.
    before: Option<Value>,
}

/// What is known of one DAT library of a process.
pub struct Library<'a> {
    /// The process.
    pub pid: u32,
    /// What became of the last attempt.
    pub state: State,
    /// The last figures.
    pub last: Option<&'a Value>,
    /// The figures before, from which rates are calculated; `None` if the last ones are not of this
    /// round.
    pub before: Option<&'a Value>,
}

/// All processes of this user that offer figures.
#[derive(Default)]
pub struct Processes {
    sources: BTreeMap<Place, Source>,
    /// Only this process, if one was asked for.
    only: Option<u32>,
    /// The process that was asked for belongs to another user.
    foreign: bool,
}

impl Processes {
    /// All processes, or one.
    pub fn new(only: Option<u32>) -> Processes {
        Processes {
            only,
            ..Processes::default()
        }
    }

    /// Reads all processes once.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn read(&mut self) -> io::Result<()> {
        let places = self.wanted(figures::places()?);
        self.sources.retain(|place, _| places.contains(place));
        for place in places {
            self.connect(place);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            for source in self.sources.values_mut() {
                source.advance();
            }
            let waiting = || {
                let sources = self.sources.values();
                sources.filter(|source| source.state != State::Stopped)
            };
            let now = Instant::now();
            if deadline <= now || waiting().all(|source| source.reader.is_none()) {
                break;
            }
            let left = (deadline - now).as_millis() as u64 + 1;
            figures::wait(waiting().filter_map(|source| source.reader.as_ref()), left);
        }
        for source in self.sources.values_mut() {
            if source.reader.is_some() && source.state == State::Running {
                source.state = State::Silent;
            }
        }
        Ok(())
    }

    /// The sockets of the process that is wanted. Those whose names have its identifier are enough, if
    /// there are any: to connect to others costs their processes time.
    fn wanted(&self, places: Vec<Place>) -> Vec<Place> {
        let Some(only) = self.only else {
            return places;
        };
        let named = |place: &&Place| place.pid() == Some(only);
        match places.iter().any(|place| named(&place)) {
            true => places.iter().filter(named).cloned().collect(),
            false => places,
        }
    }

    fn connect(&mut self, place: Place) {
        let before = self.sources.get(&place);
        if before.is_some_and(|source| source.reader.is_some()) {
            let source = self.sources.get_mut(&place).into_iter();
            source.for_each(Source::check_stopped);
            return;
        }
        match Reader::connect(&place) {
            Ok(reader) => {
                let own = reader.is_own();
                let wanted = self.only.is_none_or(|only| only == reader.pid);
                if wanted && !own && self.only.is_some() {
                    self.foreign = true;
                }
                if !wanted || !own {
                    self.sources.remove(&place);
                    return;
                }
                let source = self.sources.entry(place).or_insert(Source {
                    pid: reader.pid,
                    reader: None,
                    state: State::Running,
                    last: None,
                    before: None,
                });
                source.reader = Some(reader);
                source.state = State::Running;
                source.check_stopped();
            }
            // Its queue is full of readers.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if let Some(source) = self.sources.get_mut(&place) {
                    source.state = State::Silent;
                    source.check_stopped();
                }
            }
            Err(_) => {
                self.sources.remove(&place);
            }
        }
    }

    /// What was read, in the order of the processes.
    pub fn libraries(&self) -> Vec<Library<'_>> {
        let mut libraries: Vec<_> = self.sources.values().map(Source::library).collect();
        libraries.sort_by_key(|library| library.pid);
        libraries
    }

    /// Why the process that was asked for is not among them.
    pub fn why_missing(&self, pid: u32) -> String {
        let exists = fs::exists(format!("/proc/{pid}")).unwrap_or(false);
        match exists {
            _ if self.foreign => format!("process {pid} belongs to another user"),
            true => format!(
                "process {pid} offers no figures; it does with DAT_COUNTERS=states or \
                 DAT_COUNTERS=on in its environment, once it has opened an IA"
            ),
            false => format!("there is no process {pid}"),
        }
    }

    /// What was read, for programs.
    pub fn json(&self) -> Value {
        let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut processes: Vec<Value> = Vec::new();
        for library in self.libraries() {
            let mut ias = match library.last {
                Some(figures) => figures["ias"].as_array().cloned(),
                None => None,
            }
            .unwrap_or_default();
            match processes.last_mut() {
                Some(process) if process["pid"] == library.pid => {
                    if let Some(all) = process["ias"].as_array_mut() {
                        all.append(&mut ias);
                    }
                }
                _ => processes.push(json!({
                    "pid": library.pid,
                    "program": program(library.pid),
                    "state": library.state.name(),
                    "ias": ias,
                })),
            }
        }
        json!({
            "time": since_epoch.as_secs_f64(),
            "processes": processes,
        })
    }
}

impl Source {
    fn advance(&mut self) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        match reader.advance() {
            Ok(None) => return,
            Ok(Some(figures)) => {
                self.before = self.last.replace(figures);
                self.state = State::Running;
            }
            Err(_) => self.state = State::Refused,
        }
        self.reader = None;
    }

    fn check_stopped(&mut self) {
        match process_state(self.pid) {
            Some('T' | 't') => self.state = State::Stopped,
            _ if self.state == State::Stopped => self.state = State::Running,
            _ => {}
        }
    }

    fn library(&self) -> Library<'_> {
        let fresh = self.reader.is_none() && self.state == State::Running;
        Library {
            pid: self.pid,
            state: self.state,
            last: self.last.as_ref(),
            before: self.before.as_ref().filter(|_| fresh),
        }
    }
}

/// The letter of a process's state in `/proc`.
fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name, in brackets, may have brackets and blanks itself.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The name of a process's program.
pub fn program(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    // A name of control characters would change the terminal.
    let name = name.trim_end().replace(char::is_control, "?");
    match name.is_empty() {
        true => "?".to_owned(),
        false => name,
    }
}
