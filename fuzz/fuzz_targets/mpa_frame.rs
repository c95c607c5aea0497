//! The MPA request and reply frames.

#![no_main]

#[path = "../../tests/wire_properties/mod.rs"]
#[allow(dead_code, reason = "each target uses one of its functions")]
mod wire_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire_properties::mpa_frame(data);
});
