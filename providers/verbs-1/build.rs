//! Gives the library its SONAME.

#[path = "../../libdat/link.rs"]
mod link;

fn main() {
    println!("cargo::rerun-if-changed=../../libdat/link.rs");
    link::provider("libdapl-verbs.so.1");
}
