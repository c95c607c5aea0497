//! The MPA request and reply frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dat_fuzz::wire_properties::mpa_frame(data);
});
