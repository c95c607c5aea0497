//! The figures of the process for `dat-top`: what the open IAs show of themselves to another process of
//! the same user.
//!
//! Nothing is written down while the program works. A thread of its own ([`server`]) sleeps until a
//! reader connects to its socket, asks each [`Source`] then, and sends one JSON object. There is such a
//! thread only while there are sources, and a source is offered only where the configuration says so.

mod json;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use json::Json;

use self::server::Server;
use crate::lock::Mutex;
use crate::process::PerProcess;

/// Something that has figures.
pub trait Source: Send + Sync {
    /// Writes its object to the list, unless the source is no more. The caller holds no lock.
    fn write(&self, list: &mut Json);
}

/// What is offered to readers.
#[derive(Default)]
struct Offers {
    /// The number of the next source.
    next: u64,
    /// The sources, in the order in which they were offered.
    sources: BTreeMap<u64, Arc<dyn Source>>,
    /// Serves the readers while there are sources.
    server: Option<Server>,
}

static OFFERS: PerProcess<Mutex<Offers>> = PerProcess::new(Mutex::default);

/// The offer of a source, which the drop withdraws.
pub struct Offer(u64);

/// Offers a source to readers. The first one starts the thread that serves them.
pub fn offer(source: Arc<dyn Source>) -> Offer {
    let mut offers = OFFERS.lock();
    let number = offers.next;
    offers.next += 1;
    offers.sources.insert(number, source);
    if offers.server.is_none() {
        match Server::start(snapshot) {
            Ok(server) => offers.server = Some(server),
            Err(error) => log::error!("dat-top cannot read this process: {error}"),
        }
    }
    Offer(number)
}

impl Drop for Offer {
    fn drop(&mut self) {
        // A forked child has sources of its own, and nothing of its parent.
        let Some(offers) = OFFERS.made() else {
            return;
        };
        let mut offers = offers.lock();
        let withdrawn = offers.sources.remove(&self.0);
        let server = match offers.sources.is_empty() {
            true => offers.server.take(),
            false => None,
        };
        drop(offers);
        // The thread may wait for the lock at the moment.
        drop(server);
        drop(withdrawn);
    }
}

/// The figures of all sources at the moment.
fn snapshot() -> Option<Vec<u8>> {
    let sources: Vec<Arc<dyn Source>> = OFFERS.lock().sources.values().cloned().collect();
    Json::object_of(|json| {
        json.number("format", FORMAT);
        json.text("version", env!("CARGO_PKG_VERSION"));
        json.number("pid", std::process::id());
        json.list("ias", |list| {
            for source in &sources {
                source.write(list);
            }
        });
    })
}

/// The number of the form of what readers get. A change that they would not understand has a new one.
const FORMAT: u32 = 1;
