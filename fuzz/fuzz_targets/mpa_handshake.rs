//! The set-up of a connection over TCP, by either end, in any pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dat_fuzz::connection_properties::mpa::mpa_handshake(data);
});
