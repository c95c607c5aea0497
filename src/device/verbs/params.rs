//! The `ia_params` field of a `dat.conf` entry of this device, and the port of an RDMA device that
//! it leads to.
//!
//! ```text
//! netdev [number] [key=value ...]      eth0 0
//! device [port]   [key=value ...]      mlx5_0 1
//! address         [key=value ...]      10.0.0.1
//! ```
//!
//! The first two are what OpenFabrics' files have for their providers "cma" and "scm". A number
//! behind the name of a network interface is ignored, as there.

use std::net::SocketAddr;

use super::adapter::{DevicePort, Probe};
use super::tuning::{KEYS, Tuning};
use crate::device::local_address::{named_address, rank};
use crate::device::netif::{Interface, interfaces};
use crate::device::params::unknown;

/// The parameters of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Params {
    /// Network interface, RDMA device or address.
    name: String,
    /// Port of the RDMA device, where the name is that of one.
    port: Option<u8>,
    /// How queue pairs send and connect.
    pub tuning: Tuning,
}

impl Params {
    /// Reads the field.
    ///
    /// # Errors
    /// What is wrong with it, for the log.
    pub fn parse(text: &str) -> Result<Params, String> {
        let mut params = Params {
            name: String::new(),
            port: None,
            tuning: Tuning::of_environment(),
        };
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => match params.tuning.set(key, value) {
                    Some(result) => result?,
                    None => return Err(unknown(key, KEYS)),
                },
                None if params.name.is_empty() => params.name = word.into(),
                None => match (word.parse(), params.port) {
                    (Ok(port), None) => params.port = Some(port),
                    _ => return Err(format!("unexpected \"{word}\"")),
                },
            }
        }
        if params.name.is_empty() {
            return Err("the parameters name no network interface or RDMA device".into());
        }
        Ok(params)
    }

    /// The address of the IA and its port.
    ///
    /// # Errors
    /// Why there is no such IA, for the log.
    pub fn find_port(&self, probe: &Probe) -> Result<(SocketAddr, DevicePort), String> {
        let all = interfaces();
        if let Some(found) = self.on_device(probe, &all) {
            return Ok(found);
        }
        let address = named_address(&self.name)?;
        match probe.port_of(address) {
            Some(port) => Ok((address, port)),
            None => Err(format!(
                "{} ({}) has no RDMA device",
                self.name,
                address.ip()
            )),
        }
    }

    /// If the name is that of an RDMA device: an address that leads there.
    fn on_device(&self, probe: &Probe, all: &[Interface]) -> Option<(SocketAddr, DevicePort)> {
        // Checked, since the name becomes part of a path.
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let path = std::path::Path::new("/sys/class/infiniband").join(&self.name);
        if !self.name.chars().all(plain) || !path.exists() {
            return None;
        }
        let mut usable: Vec<SocketAddr> = all.iter().filter(|i| i.up).map(|i| i.address).collect();
        usable.sort_by_key(rank);
        usable.into_iter().find_map(|address| {
            let found = probe.port_of(address)?;
            let wanted = self.port.is_none_or(|port| port == found.port);
            (found.device == self.name && wanted).then_some((address, found))
        })
    }
}

/// The IAs of this machine: one for every network interface with an address that leads to an
/// RDMA device. They are named as OpenFabrics' files name them, `ofa-v2-NETDEV`.
pub(super) fn discover(probe: &Probe) -> Vec<(String, String)> {
    let mut all = interfaces();
    all.sort_by_key(|i| rank(&i.address));
    let mut found: Vec<(String, String)> = Vec::new();
    for interface in all.iter().filter(|i| i.up && !i.loopback) {
        let name = format!("ofa-v2-{}", interface.name);
        let new = found.iter().all(|entry| entry.0 != name);
        if new && probe.port_of(interface.address).is_some() {
            found.push((name, format!("{} 0", interface.name)));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_openfabrics_files() {
        let p = Params::parse("eth0 0").unwrap();
        assert_eq!((p.name.as_str(), p.port), ("eth0", Some(0)));
        let p = Params::parse("mlx5_0 1 retry=3 rnr_retry=0").unwrap();
        assert_eq!((p.name.as_str(), p.port), ("mlx5_0", Some(1)));
        assert_eq!((p.tuning.retry, p.tuning.rnr_retry), (3, 0));
        let p = Params::parse("10.0.0.1").unwrap();
        assert_eq!((p.port, p.tuning), (None, Tuning::default()));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("", "no network interface"),
            ("eth0 x", "unexpected"),
            ("eth0 0 0", "unexpected"),
            ("eth0 retry=8", "0..7"),
            ("eth0 speed=9", "known: retry"),
        ] {
            let error = Params::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
