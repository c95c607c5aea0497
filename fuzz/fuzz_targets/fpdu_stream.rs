//! The FPDU stream: framing, DDP, RDMAP, Terminate.

#![no_main]

#[path = "../../tests/wire_properties/mod.rs"]
#[allow(dead_code, reason = "each target uses one of its functions")]
mod wire_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire_properties::fpdu_stream(data);
});
