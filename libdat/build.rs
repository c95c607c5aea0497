//! Gives the library its SONAME and version node.

#[path = "link.rs"]
mod link;

fn main() {
    link::library("libdat.so.1", "DAT_1.2");
}
