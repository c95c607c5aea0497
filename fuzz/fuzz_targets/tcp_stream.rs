//! The stream of a whole connection over TCP, in any pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dat_fuzz::connection_properties::stream::tcp_stream(data);
});
