//! What connects the two ends: the path and the peer, as the library shows them to `dat-top`.

use std::env;
use std::time::{Duration, Instant};

use dat_core::abi::common::DAT_EP_HANDLE;
use serde_json::Value;

use crate::figures::{self, Place, Reader};

/// How long the library may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The variable that lets the library show its states.
const VARIABLE: &str = "DAT_COUNTERS";

/// The path and the peer of connections; `None` where the library does not say.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Link {
    /// How the two ends reach each other. Several paths have commas between them.
    pub path: Option<String>,
    /// The address of the peer, without its port.
    pub peer: Option<String>,
}

/// Lets the library show its states, unless the user has said what it shows. To be called before there are
/// threads.
pub fn ask_for_states() {
    if env::var_os(VARIABLE).is_none() {
        // SAFETY: there is no other thread.
        unsafe { env::set_var(VARIABLE, "states") };
    }
}

impl Link {
    /// That of endpoints of this process.
    pub fn of(endpoints: &[DAT_EP_HANDLE]) -> Link {
        let own = std::process::id();
        let places = figures::places().unwrap_or_default();
        let places = places.iter().filter(|place| place.pid() == Some(own));
        let all: Vec<Value> = places.filter_map(read).collect();
        Link::in_figures(&all, endpoints)
    }

    fn in_figures(figures: &[Value], endpoints: &[DAT_EP_HANDLE]) -> Link {
        let handles: Vec<String> = endpoints
            .iter()
            .map(|endpoint| format!("{:#x}", endpoint.addr()))
            .collect();
        let ias = figures
            .iter()
            .flat_map(|figures| figures["ias"].as_array().into_iter().flatten());
        let shown: Vec<&Value> = ias
            .flat_map(|ia| ia["endpoints"].as_array().into_iter().flatten())
            .filter(|endpoint| handles.iter().any(|handle| endpoint["handle"] == **handle))
            .collect();
        let different = |texts: &mut dyn Iterator<Item = &str>| {
            let mut different: Vec<&str> = texts.collect();
            different.sort_unstable();
            different.dedup();
            (!different.is_empty()).then(|| different.join(", "))
        };
        let texts = |key: &'static str| shown.iter().filter_map(move |shown| shown[key].as_str());
        // Each endpoint has a port of its own.
        let host = |address: &'static str| {
            texts(address).map(|peer| peer.rsplit_once(':').map_or(peer, |(host, _)| host))
        };
        Link {
            path: different(&mut texts("path")),
            peer: different(&mut host("peer")),
        }
    }
}

/// What the library shows at one of its sockets.
fn read(place: &Place) -> Option<Value> {
    let deadline = Instant::now() + PATIENCE;
    let mut reader = Reader::connect(place).ok()?;
    if !reader.is_own() || reader.pid != std::process::id() {
        return None;
    }
    loop {
        if let Some(figures) = reader.advance().ok()? {
            return Some(figures);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        figures::wait(std::iter::once(&reader), left.as_millis() as u64 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::ptr::without_provenance_mut;

    #[test]
    fn paths_of_our_endpoints() {
        let endpoint = |handle: &str, path: &str, peer: &str| json!({"handle": handle, "path": path, "peer": peer});
        let figures = json!({"ias": [{"endpoints": [
            endpoint("0x10", "TCP", "[fe80::1%2]:17"),
            endpoint("0x20", "TCP", "[fe80::1%2]:18"),
            endpoint("0x30", "loopback", "10.0.0.1:1"),
        ]}]});
        let link = |handles: &[usize]| {
            let handles: Vec<_> = handles
                .iter()
                .map(|at| without_provenance_mut(*at))
                .collect();
            let Link { path, peer } = Link::in_figures(std::slice::from_ref(&figures), &handles);
            (path, peer)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(link(&[0x10, 0x20]), (text("TCP"), text("[fe80::1%2]")));
        assert_eq!(link(&[0x30, 0x10]).0, text("TCP, loopback"));
        assert_eq!(link(&[0x40]), (None, None));
    }
}
