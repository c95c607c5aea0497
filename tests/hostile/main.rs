//! A peer that does a right set-up and then breaks one rule: every rule of RFC 5040, 5041, 5044 and
//! 6581 in turn. Each has the right answer; the connection of the peer ends and no other; nothing
//! outside a region is read or written. docs/hostile-peers.md has the same tables.

mod driver;
#[path = "../common/iwarp.rs"]
mod iwarp;
mod negotiation;
#[path = "../common/poll.rs"]
mod poll;
mod rows;
mod segments;
#[path = "../common/soft.rs"]
mod soft;
#[allow(dead_code, reason = "each program uses some of its functions")]
mod victim;

use driver::every_rule;

#[test]
fn every_rule_for_requests() {
    every_rule("Requests", &negotiation::requests::cases());
}

#[test]
fn every_rule_for_replies() {
    every_rule("Replies", &negotiation::replies::cases());
}

#[test]
fn every_rule_for_segments() {
    every_rule("Segments", &segments::cases());
}
