//! The tests that are run on a mutant of the library, as a test that cargo-mutants can run: it has
//! built the mutant, and calls scripts/mutant-suite.sh here. The flag `dat_mutant` is of
//! scripts/mutants.sh, which has built the programs.

#[cfg(all(test, dat_mutant))]
mod tests {
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn suite() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let status = Command::new("scripts/mutant-suite.sh")
            .current_dir(root)
            .status()
            .expect("the script starts");
        assert!(status.success(), "{status}");
    }
}
