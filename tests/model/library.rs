//! The library under test: the agents of both parties, and a record of the calls that were made.

use std::path::Path;

use crate::agent::{Agent, Answer, CHUNK, Call};
use crate::rules::evd::Observed;
use crate::rules::memory;

/// What is tested: a version of the API, on an interface adapter.
#[derive(Clone, Debug)]
pub struct Run {
    /// Directory of the programs: `dat` or `dat2`.
    pub api: String,
    /// The adapter, of tests-c/dat.conf.
    pub ia: String,
}

impl Run {
    /// Whether both parties are in one process, and their connections never leave it.
    fn is_loopback(&self) -> bool {
        self.ia == "soft"
    }

    /// See [`World::early`](crate::rules::World::early).
    fn is_early(&self) -> bool {
        !self.is_loopback() && self.ia != "soft-tcp"
    }
}

/// Two parties with an open IA each.
pub struct Library {
    agents: Vec<Agent>,
    /// See [`World::early`](crate::rules::World::early).
    pub early: bool,
    /// Of each party: the key of its memory, and its address.
    pub targets: [(i64, i64); 2],
    /// The calls that were made, as a C program would make them.
    pub trace: Vec<String>,
}

impl Library {
    /// Starts the agents.
    pub fn start(out: &Path, run: &Run) -> Result<Library, String> {
        let program = out.join(&run.api).join("model_agent");
        let processes = if run.is_loopback() { 1 } else { 2 };
        let mut agents = Vec::new();
        for _ in 0..processes {
            agents.push(Agent::start(&program, &run.ia).map_err(|e| format!("{program:?}: {e}"))?);
        }
        Ok(Library {
            agents,
            early: run.is_early(),
            targets: [(0, 0); 2],
            trace: Vec::new(),
        })
    }

    /// Whether both parties are in one process.
    pub fn is_one_process(&self) -> bool {
        self.agents.len() == 1
    }

    /// Makes a call for a party.
    pub fn call(&mut self, call: Call, party: usize, args: &[i64]) -> Result<Answer, String> {
        let (agent, place) = match self.agents.len() {
            1 => (0, party),
            _ => (party, 0),
        };
        let answer = self.agents[agent].call(call, place, args)?;
        let line = format!("{party}: {call:?}{args:?} = {:?}", answer.code());
        // What is tried again and again is noted once.
        if self.trace.last() != Some(&line) {
            self.trace.push(line);
        }
        Ok(answer)
    }

    /// Opens the IA of a party, whose memory has the pattern then.
    pub fn open(&mut self, party: usize) -> Result<(), String> {
        let answer = self.call(Call::Open, party, &[])?;
        if answer.code() != crate::agent::Code::SUCCESS {
            return Err(format!("the party cannot open its IA: {:?}", answer.code()));
        }
        self.targets[party] = (answer.word(1), answer.word(2));
        self.write_memory(party, 0, &memory::pattern(0, memory::PATTERN))
    }

    /// Puts bytes into the memory of a party.
    pub fn write_memory(&mut self, party: usize, at: usize, bytes: &[u8]) -> Result<(), String> {
        for (i, chunk) in bytes.chunks(CHUNK).enumerate() {
            let mut args = vec![(at + i * CHUNK) as i64, chunk.len() as i64];
            args.extend(chunk.chunks(8).map(|word| {
                let mut padded = [0; 8];
                padded[..word.len()].copy_from_slice(word);
                i64::from_ne_bytes(padded)
            }));
            self.silently(Call::MemoryWrite, party, &args)?;
        }
        Ok(())
    }

    /// Bytes of the memory of a party.
    pub fn read_memory(&mut self, party: usize, at: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let next = CHUNK.min(len - bytes.len());
            let args = [(at + bytes.len()) as i64, next as i64];
            bytes.extend(self.silently(Call::MemoryRead, party, &args)?.bytes(next));
        }
        Ok(bytes)
    }

    /// A call that is not one of the library.
    fn silently(&mut self, call: Call, party: usize, args: &[i64]) -> Result<Answer, String> {
        let calls = self.trace.len();
        let answer = self.call(call, party, args);
        self.trace.truncate(calls);
        answer
    }
}

/// The event in the answer to a dequeue or a wait.
pub fn observed(answer: &Answer) -> Observed {
    Observed {
        number: answer.word(1),
        object: answer.word(3),
        cookie: answer.word(4),
        status: answer.word(5),
        length: answer.word(6),
    }
}
