//! The FPDU stream: framing, DDP, RDMAP, Terminate.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dat_fuzz::wire_properties::fpdu_stream(data);
});
