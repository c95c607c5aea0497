//! The steps of a walk: calls with arguments that the state of the model makes sense of.

use proptest::prelude::*;

/// A step. Numbers are taken modulo what there is, so that every walk can be made, and what is left
/// of one that was made shorter.
#[derive(Clone, Debug)]
pub enum Step {
    /// Takes two endpoints from wherever they are to a connection.
    Join {
        party: usize,
        slot: usize,
        peer: usize,
    },
    EpCreate {
        party: usize,
        slot: usize,
        shape: u16,
    },
    EpFree {
        party: usize,
        slot: usize,
    },
    EpReset {
        party: usize,
        slot: usize,
    },
    EpStatus {
        party: usize,
        slot: usize,
    },
    Listen {
        party: usize,
    },
    Deafen {
        party: usize,
    },
    Connect {
        party: usize,
        slot: usize,
    },
    Answer {
        party: usize,
        slot: usize,
        accept: bool,
    },
    Disconnect {
        party: usize,
        slot: usize,
        graceful: bool,
        calm: bool,
    },
    Receive {
        party: usize,
        slot: usize,
        len: u8,
        flags: u8,
    },
    Send {
        party: usize,
        slot: usize,
        len: u8,
        flags: u8,
    },
    Write {
        party: usize,
        slot: usize,
        len: u8,
        flags: u8,
        at: u8,
    },
    Read {
        party: usize,
        slot: usize,
        len: u8,
        flags: u8,
        at: u8,
    },
    Forbidden {
        party: usize,
        slot: usize,
        read: bool,
    },
    Dequeue {
        party: usize,
        evd: usize,
    },
    Wait {
        party: usize,
        evd: usize,
        threshold: i8,
    },
    Software {
        party: usize,
        evd: usize,
    },
    Resize {
        party: usize,
        evd: usize,
        length: u8,
    },
    Waitable {
        party: usize,
        evd: usize,
        waitable: bool,
    },
    EvdQuery {
        party: usize,
        evd: usize,
    },
    EvdFree {
        party: usize,
        evd: usize,
    },
    SrqCreate {
        party: usize,
        srq: usize,
        size: u8,
    },
    SrqFree {
        party: usize,
        srq: usize,
    },
    SrqPost {
        party: usize,
        srq: usize,
        len: u8,
    },
    SrqQuery {
        party: usize,
        srq: usize,
    },
    SrqWatermark {
        party: usize,
        srq: usize,
        mark: u8,
    },
    /// Dequeues everything.
    Calm,
    /// Lets time pass, in microseconds.
    Pause {
        us: u8,
    },
}

/// Walks of up to `longest` steps.
pub fn walks(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..=longest)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        35 => data(),
        10 => connection(),
        30 => events(),
        12 => shared(),
        1 => Just(Step::Calm),
        2 => any::<u8>().prop_map(|us| Step::Pause { us }),
    ]
}

fn place() -> impl Strategy<Value = (usize, usize)> {
    (0..2usize, 0..super::rules::EPS)
}

fn data() -> impl Strategy<Value = Step> {
    let args = || (place(), any::<u8>(), any::<u8>(), any::<u8>());
    prop_oneof![
        8 => args().prop_map(|((party, slot), len, flags, _)| Step::Receive { party, slot, len, flags }),
        8 => args().prop_map(|((party, slot), len, flags, _)| Step::Send { party, slot, len, flags }),
        3 => args().prop_map(|((party, slot), len, flags, at)| Step::Write { party, slot, len, flags, at }),
        3 => args().prop_map(|((party, slot), len, flags, at)| Step::Read { party, slot, len, flags, at }),
        1 => (place(), any::<bool>(), 0..4u8).prop_map(|((party, slot), read, rarely)| match rarely {
            0 => Step::Forbidden { party, slot, read },
            _ => Step::EpStatus { party, slot },
        }),
    ]
}

fn connection() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (place(), 0..super::rules::EPS).prop_map(|((party, slot), peer)| Step::Join { party, slot, peer }),
        3 => (place(), any::<u16>()).prop_map(|((party, slot), shape)| Step::EpCreate { party, slot, shape }),
        1 => place().prop_map(|(party, slot)| Step::EpFree { party, slot }),
        3 => place().prop_map(|(party, slot)| Step::EpReset { party, slot }),
        3 => place().prop_map(|(party, slot)| Step::EpStatus { party, slot }),
        1 => (0..2usize).prop_map(|party| Step::Listen { party }),
        1 => (0..2usize).prop_map(|party| Step::Deafen { party }),
        3 => place().prop_map(|(party, slot)| Step::Connect { party, slot }),
        4 => (place(), 0..4u8).prop_map(|((party, slot), no)| Step::Answer { party, slot, accept: no != 0 }),
        3 => (place(), any::<bool>(), any::<bool>())
            .prop_map(|((party, slot), graceful, calm)| Step::Disconnect { party, slot, graceful, calm }),
    ]
}

fn events() -> impl Strategy<Value = Step> {
    let evd = || (0..2usize, 0..super::rules::evd::EVDS);
    prop_oneof![
        16 => evd().prop_map(|(party, evd)| Step::Dequeue { party, evd }),
        6 => (evd(), -1..6i8).prop_map(|((party, evd), threshold)| Step::Wait { party, evd, threshold }),
        3 => evd().prop_map(|(party, evd)| Step::Software { party, evd }),
        1 => (evd(), any::<u8>()).prop_map(|((party, evd), length)| Step::Resize { party, evd, length }),
        1 => (evd(), 0..3u8).prop_map(|((party, evd), no)| Step::Waitable { party, evd, waitable: no != 0 }),
        1 => evd().prop_map(|(party, evd)| Step::EvdQuery { party, evd }),
        1 => evd().prop_map(|(party, evd)| Step::EvdFree { party, evd }),
    ]
}

fn shared() -> impl Strategy<Value = Step> {
    let srq = || (0..2usize, 0..super::rules::SRQS);
    prop_oneof![
        2 => (srq(), 1..12u8).prop_map(|((party, srq), size)| Step::SrqCreate { party, srq, size }),
        1 => srq().prop_map(|(party, srq)| Step::SrqFree { party, srq }),
        6 => (srq(), any::<u8>()).prop_map(|((party, srq), len)| Step::SrqPost { party, srq, len }),
        2 => srq().prop_map(|(party, srq)| Step::SrqQuery { party, srq }),
        1 => (srq(), any::<u8>()).prop_map(|((party, srq), mark)| Step::SrqWatermark { party, srq, mark }),
    ]
}
