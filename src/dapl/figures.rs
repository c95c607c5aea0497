//! What an open IA shows of itself and its objects to readers ([`crate::figures`]): names, states and
//! lengths of queues, and the counters where they are on. Nothing is kept for that: each object is asked
//! when a reader is there, and locked no longer than a query of the program would.

use std::sync::{Arc, Weak};

use rustix::time::{ClockId, clock_gettime};

use super::abi::Abi;
use super::counters::{Counters, IaCounters, names};
use super::ia::Ia;
use super::types::{Handle, HandleType};
use crate::device::Device;
use crate::figures::{self, Json, Source};

/// How many objects are looked up at a time.
const AT_ONCE: usize = 64;

/// The kinds of objects that have figures, and the names of their lists.
const KINDS: [(HandleType, &str); 3] = [
    (HandleType::Ep, "endpoints"),
    (HandleType::Evd, "evds"),
    (HandleType::Srq, "srqs"),
];

/// An open IA as readers see it.
struct OfIa<D: Device> {
    ia: Weak<Ia<D>>,
    /// The version of the API that the program uses: major and minor.
    api: (u32, u32),
}

/// Shows an IA to readers, until it is closed.
pub(super) fn offer<A: Abi, D: Device>(ia: &Arc<Ia<D>>) {
    let api = (A::MAJOR, A::MINOR);
    let source = OfIa {
        ia: Arc::downgrade(ia),
        api,
    };
    ia.set_offer(figures::offer(Arc::new(source)));
}

impl<D: Device> Source for OfIa<D> {
    fn write(&self, list: &mut Json) {
        if let Some(ia) = self.ia.upgrade() {
            list.item(|json| write_ia(&ia, self.api, json));
        }
    }
}

fn write_ia<D: Device>(ia: &Ia<D>, (major, minor): (u32, u32), json: &mut Json) {
    json.text("name", ia.name().to_string_lossy());
    json.text("device", D::NAME);
    json.text("address", ia.device.address().ip());
    json.text("api", format_args!("{major}.{minor}"));
    write_handle(ia.handle(), json);
    // By which a reader calculates rates, whenever the figures arrive there.
    let now = clock_gettime(ClockId::Monotonic);
    json.number(
        "time_ns",
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
    );
    write_counters(ia.counters().map(IaCounters::values), &names::IA, json);
    for (kind, name) in KINDS {
        json.list(name, |list| write_objects(ia, kind, list));
    }
}

fn write_objects<D: Device>(ia: &Ia<D>, kind: HandleType, list: &mut Json) {
    let mut last = None;
    loop {
        let some = ia.children(kind, last, AT_ONCE);
        let Some((handle, _)) = some.last() else {
            return;
        };
        last = Some(*handle);
        for (handle, object) in some {
            if let Some(object) = object {
                list.item(|json| {
                    write_handle(handle, json);
                    object.figures(json);
                });
            }
        }
    }
}

fn write_handle(handle: Handle, json: &mut Json) {
    json.text("handle", format_args!("{:#x}", handle.0.addr()));
}

/// Writes the counters of an object, if there are any; null otherwise.
pub(super) fn write_counters(counters: Option<&Counters>, names: &[&str], json: &mut Json) {
    let Some(counters) = counters else {
        return json.text_or_null("counters", None::<&str>);
    };
    json.member("counters", |json| {
        for (counter, name) in names.iter().enumerate() {
            json.number(name, counters.read(counter, false));
        }
    });
}
