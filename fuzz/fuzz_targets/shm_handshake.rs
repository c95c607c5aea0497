//! The set-up of a connection through shared memory, by either end, with any files.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    dat_fuzz::connection_properties::shm::shm_handshake(data);
});
