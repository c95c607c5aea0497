//! Gives the library its SONAME and version node.

#[path = "link.rs"]
mod link;

fn main() {
    println!("cargo::rerun-if-changed=../libdat/link.rs");
    link::library("libdat.so.1", &["DAT_1.2"]);
}
