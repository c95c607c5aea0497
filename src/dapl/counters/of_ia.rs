//! The counters of an IA.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Counters;
use super::hardware::Hardware;
use crate::abi::v2::*;
use crate::device::{Device, HardwareCounter};

/// The counters of an IA, and which of their groups count.
pub struct IaCounters {
    values: Counters,
    /// Those of connections count.
    connections: AtomicBool,
    hardware: Hardware,
}

impl Default for IaCounters {
    /// All 0. Those that the hardware keeps do not count yet.
    fn default() -> Self {
        IaCounters {
            values: Counters::new(DCNT_IA_ALL_COUNTERS),
            connections: AtomicBool::new(true),
            hardware: Hardware::default(),
        }
    }
}

impl IaCounters {
    /// The values.
    pub fn values(&self) -> &Counters {
        &self.values
    }

    /// Counts one more.
    pub fn count(&self, counter: DAT_IA_COUNTERS) {
        let of_connections = (DCNT_IA_CM_LISTEN..=DCNT_IA_CM_ERR_UNEXPECTED).contains(&counter);
        if !of_connections || self.connections.load(Ordering::Relaxed) {
            self.values.add(counter, 1);
        }
    }

    /// The counters of connections are 0, and count from now on.
    pub fn start_connections(&self) {
        for counter in DCNT_IA_CM_LISTEN..=DCNT_IA_CM_ERR_UNEXPECTED {
            self.values.set(counter, 0);
        }
        self.connections.store(true, Ordering::Relaxed);
    }

    /// The counters of connections keep their values.
    pub fn stop_connections(&self) {
        self.connections.store(false, Ordering::Relaxed);
    }

    /// The counters of a group of the hardware are 0, and count from now on.
    pub fn start_hardware<D: Device>(&self, device: &D, which: HardwareCounter) {
        let read = |of, name: &str| device.hardware_counter(of, name);
        self.hardware.start(&read, &self.values, which);
    }

    /// The counters of a group of the hardware keep their values.
    pub fn stop_hardware<D: Device>(&self, device: &D, which: HardwareCounter) {
        let read = |of, name: &str| device.hardware_counter(of, name);
        self.hardware.stop(&read, &self.values, which);
    }

    /// Brings the counters of the hardware up to date. Those whose numbers are in `reset` count from here.
    pub fn refresh<D: Device>(&self, device: &D, reset: &Range<usize>) {
        let read = |of, name: &str| device.hardware_counter(of, name);
        self.hardware.refresh(&read, &self.values, reset);
    }
}
