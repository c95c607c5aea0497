//! What `dat-perf` is made of: the C API, one end of a measurement, the messages between the
//! ends, the loops that are timed, and what is made of the times.

pub mod api;
pub mod client;
pub mod dialogue;
pub mod failure;
pub mod fairness;
pub mod ia;
pub mod idle;
pub mod inbox;
pub mod link;
pub mod loopback;
pub mod map;
pub mod operations;
pub mod options;
pub mod order;
pub mod pattern;
pub mod plan;
pub mod progress;
pub mod registrations;
pub mod report;
pub mod run;
pub mod samples;
pub mod server;
pub mod side;
pub mod streams;
pub mod turns;
