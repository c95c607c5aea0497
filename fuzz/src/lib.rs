//! What the targets check: modules of the integration tests, which run them too.

#[path = "../../tests/connection_properties/mod.rs"]
pub mod connection_properties;
#[path = "../../tests/common/iwarp.rs"]
pub mod iwarp;
#[path = "../../tests/common/poll.rs"]
pub mod poll;
#[path = "../../tests/common/shm_peer.rs"]
pub mod shm_peer;
#[path = "../../tests/common/soft.rs"]
pub mod soft;
#[path = "../../tests/hostile/victim.rs"]
pub mod victim;
#[path = "../../tests/wire_properties/mod.rs"]
pub mod wire_properties;
