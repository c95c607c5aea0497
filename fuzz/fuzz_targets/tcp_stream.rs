//! The stream of a whole connection over TCP, in any pieces.

#![no_main]

#[path = "../../tests/connection_properties/mod.rs"]
#[allow(dead_code, reason = "each target uses one of its functions")]
mod connection_properties;
#[path = "../../tests/common/iwarp.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod iwarp;
#[path = "../../tests/common/poll.rs"]
mod poll;
#[path = "../../tests/common/soft.rs"]
mod soft;
#[path = "../../tests/hostile/victim.rs"]
#[allow(dead_code, reason = "each program uses some of its functions")]
mod victim;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    connection_properties::stream::tcp_stream(data);
});
