//! Counters of an IA that its port and its adapter keep: those of the group `DCNT_IA_LNK` and
//! `DCNT_IA_DIAG`. They count from `dat_ib_start_counter` to `dat_ib_stop_counter`.

use std::ops::Range;

use super::Counters;
use crate::abi::v2::*;
use crate::device::HardwareCounter;
use crate::lock::Mutex;

/// Counters with the names that the InfiniBand specification, or the adapter, has for them.
type Group = &'static [(DAT_IA_COUNTERS, &'static str)];

/// Errors of the port (InfiniBand specification, volume 1, PortCounters).
const LINK: Group = &[
    (DCNT_IA_LNK_ERR_RCV, "port_rcv_errors"),
    (
        DCNT_IA_LNK_ERR_RCV_REM_PHYS,
        "port_rcv_remote_physical_errors",
    ),
    (DCNT_IA_LNK_ERR_RCV_CONSTRAINT, "port_rcv_constraint_errors"),
    (DCNT_IA_LNK_ERR_XMT_DISCARDS, "port_xmit_discards"),
    (DCNT_IA_LNK_ERR_XMT_CONTRAINT, "port_xmit_constraint_errors"),
    (DCNT_IA_LNK_ERR_INTEGRITY, "local_link_integrity_errors"),
    (
        DCNT_IA_LNK_ERR_EXC_BUF_OVERRUN,
        "excessive_buffer_overrun_errors",
    ),
    (
        DCNT_IA_LNK_WARN_RCV_SW_RELAY,
        "port_rcv_switch_relay_errors",
    ),
    (DCNT_IA_LNK_WARN_XMT_WAIT, "port_xmit_wait"),
];

/// Errors of responders (`rq`) and requesters (`sq`) of the adapter: remote access, out of sequence,
/// remote invalid request, datagrams without a receive, and retries exceeded.
const DIAGNOSTIC: Group = &[
    (DCNT_IA_DIAG_ERR_RQ_RAE, "rq_num_rae"),
    (DCNT_IA_DIAG_ERR_RQ_OOS, "rq_num_oos"),
    (DCNT_IA_DIAG_ERR_RQ_RIRE, "rq_num_rire"),
    (DCNT_IA_DIAG_ERR_RQ_UDSDPRD, "rq_num_udsdprd"),
    (DCNT_IA_DIAG_ERR_SQ_RAE, "sq_num_rae"),
    (DCNT_IA_DIAG_ERR_SQ_OOS, "sq_num_oos"),
    (DCNT_IA_DIAG_ERR_SQ_RIRE, "sq_num_rire"),
    (DCNT_IA_DIAG_ERR_SQ_RREE, "sq_num_rree"),
    (DCNT_IA_DIAG_ERR_SQ_TREE, "sq_num_tree"),
];

/// The counters of a group and what they were when they were started or reset; `None` while the group is
/// stopped.
struct Started {
    group: Group,
    of: HardwareCounter,
    begin: Mutex<Option<Vec<u64>>>,
}

/// The two groups.
pub struct Hardware([Started; 2]);

impl Default for Hardware {
    fn default() -> Self {
        let stopped = |group, of| Started {
            group,
            of,
            begin: Mutex::default(),
        };
        Hardware([
            stopped(LINK, HardwareCounter::Port),
            stopped(DIAGNOSTIC, HardwareCounter::Adapter),
        ])
    }
}

/// Reads a counter of the hardware, which has this name.
type Read<'a> = &'a dyn Fn(HardwareCounter, &str) -> u64;

impl Hardware {
    /// The counters of a group are 0, and count from now on.
    pub fn start(&self, read: Read<'_>, counters: &Counters, which: HardwareCounter) {
        for started in self.0.iter().filter(|started| started.of == which) {
            let read = |&(counter, name): &(u32, &str)| {
                counters.set(counter, 0);
                read(which, name)
            };
            *started.begin.lock() = Some(started.group.iter().map(read).collect());
        }
    }

    /// The counters of a group keep their values.
    pub fn stop(&self, read: Read<'_>, counters: &Counters, which: HardwareCounter) {
        self.refresh(read, counters, &(0..0));
        for started in self.0.iter().filter(|started| started.of == which) {
            *started.begin.lock() = None;
        }
    }

    /// Reads the counters of the groups that are started. Those whose numbers are in `reset` count from here.
    pub fn refresh(&self, read: Read<'_>, counters: &Counters, reset: &Range<usize>) {
        for Started { group, of, begin } in &self.0 {
            let Some(begin) = &mut *begin.lock() else {
                continue;
            };
            for ((counter, name), begin) in group.iter().zip(begin) {
                let now = read(*of, name);
                // A counter of a port is cleared by the subnet manager, too.
                counters.set(*counter, now.checked_sub(*begin).unwrap_or(now));
                if reset.contains(&(*counter as usize)) {
                    *begin = now;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn only_what_is_reset_counts_from_there() {
        let (errors, others) = (DCNT_IA_LNK_ERR_RCV, DCNT_IA_LNK_ERR_XMT_DISCARDS);
        let counted = Cell::new(100);
        let read = |_: HardwareCounter, _: &str| counted.get();
        let counters = Counters::new(DCNT_IA_ALL_COUNTERS);
        let hardware = Hardware::default();
        hardware.start(&read, &counters, HardwareCounter::Port);
        counted.set(107);
        // As a query of one counter does, which resets it.
        hardware.refresh(&read, &counters, &(errors as usize..errors as usize + 1));
        assert_eq!(counters.read(errors as usize, true), 7);
        counted.set(109);
        hardware.refresh(&read, &counters, &(0..0));
        assert_eq!(counters.read(errors as usize, false), 2);
        assert_eq!(counters.read(others as usize, false), 9);
        counted.set(110);
        hardware.stop(&read, &counters, HardwareCounter::Port);
        counted.set(120);
        hardware.refresh(&read, &counters, &(0..counters.0.len()));
        assert_eq!(counters.read(others as usize, false), 10);
        assert_eq!(counters.read(DCNT_IA_DIAG_ERR_RQ_RAE as usize, false), 0);
    }
}
