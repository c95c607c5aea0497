//! What arrives at the port for datagrams, and what tells a peer where that is.

#![no_main]

use dat_core::testing::device::soft::transport::datagram::wire::{
    End, HEADER_LEN, MAX_DATAGRAM, Route,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((end, private_data)) = End::split_from(data) {
        assert_eq!(End::split_from(&end.add_to(private_data)), Some((end, private_data)));
    }
    if let Some((route, len)) = Route::parse(data) {
        assert_eq!(data.len(), HEADER_LEN + len);
        assert_eq!(Route::parse(data), Some((route, len)));
    }
    // Few inputs have the checksum that they need: with it they are a datagram.
    let Some((head, payload)) = data.split_first_chunk::<17>() else {
        return;
    };
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let route = Route {
        receiver: number(0),
        sender: number(4),
        key: u64::from(number(8)) << 32 | u64::from(number(12)),
        solicited: head[16] & 1 != 0,
    };
    let bytes = [&route.header(payload)[..], payload].concat();
    let parsed = Route::parse(&bytes);
    assert_eq!(parsed, (payload.len() <= MAX_DATAGRAM).then_some((route, payload.len())));
});
