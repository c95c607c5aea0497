//! Gives the library its SONAME and version node.

#[path = "../libdat/link.rs"]
mod link;

fn main() {
    println!("cargo::rerun-if-changed=../libdat/link.rs");
    link::library("libdat2.so.2", &["DAT_2.0", "LIBDAT_2.0"]);
}
