//! What the Rust types of `src/abi` look like from C.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

use crate::facts::Facts;

/// The header that cbindgen makes of a version (`v1`, `v2`) together with `common`.
///
/// Each file is given on its own, because as modules of one crate the two versions would clash:
/// C has one name space. The settings are those of `cbindgen.toml`.
pub fn header(version: &str, facts: &Facts) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("cbindgen.toml");
    let mut config = cbindgen::Config::from_file(file).expect("cbindgen.toml is valid");
    // No function mentions the types, so each has to be asked for.
    config.export.include = facts
        .scalars
        .iter()
        .map(|s| &s.name)
        .chain(facts.aliases.iter().map(|a| &a.name))
        .chain(facts.enums.iter().map(|e| &e.name))
        .chain(facts.aggregates.iter().map(|a| &a.name))
        .chain(facts.fnptrs.iter().map(|f| &f.name))
        .cloned()
        .collect();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in ["common", version] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src/abi")
            .join(module);
        let entries = std::fs::read_dir(&directory).expect("the module is a directory");
        let mut files: Vec<_> = entries
            .map(|e| e.expect("a readable entry").path())
            .collect();
        files.sort();
        for file in files {
            builder = builder.with_src(file);
        }
    }
    let mut text = Vec::new();
    builder
        .generate()
        .expect("cbindgen reads the types")
        .write(&mut text);
    String::from_utf8(text).expect("a header is text")
}

/// cbindgen has no strings and no pointers among its constants; these are read in Rust.
pub struct Constants {
    pub strings: BTreeMap<&'static str, &'static CStr>,
    pub pointers: BTreeMap<&'static str, usize>,
}

macro_rules! constants {
    ($module:ident, strings: [$($string:ident),* $(,)?], pointers: [$($pointer:ident),* $(,)?] $(,)?) => {
        Constants {
            strings: [$((stringify!($string), dat_core::abi::$module::$string)),*].into(),
            pointers: [$((stringify!($pointer), dat_core::abi::$module::$pointer.addr())),*].into(),
        }
    };
}

/// The constants of a version that are strings or pointers.
pub fn constants(version: &str) -> Constants {
    match version {
        "v1" => constants!(
            v1,
            strings: [DAT_PROVIDER_INIT_FUNC_STR, DAT_PROVIDER_FINI_FUNC_STR],
            pointers: [DAT_HANDLE_NULL, DAT_EVD_ASYNC_EXISTS, DAT_EVD_OUT_OF_SCOPE],
        ),
        "v2" => constants!(
            v2,
            strings: [
                DAT_PROVIDER_INIT_FUNC_STR,
                DAT_PROVIDER_FINI_FUNC_STR,
                DAT_IB_ATTR_COUNTERS,
                DAT_IB_ATTR_FETCH_AND_ADD,
                DAT_IB_ATTR_CMP_AND_SWAP,
                DAT_IB_ATTR_IMMED_DATA,
                DAT_IB_ATTR_UD,
                DAT_IB_COLL_SET_CLOCK,
                DAT_IB_COLL_READ_CLOCK,
                DAT_IB_COLL_BROADCAST,
                DAT_IB_COLL_BARRIER,
                DAT_IB_COLL_SCATTER,
                DAT_IB_COLL_SCATTERV,
                DAT_IB_COLL_GATHER,
                DAT_IB_COLL_GATHERV,
                DAT_IB_COLL_ALLGATHER,
                DAT_IB_COLL_ALLGATHERV,
                DAT_IB_COLL_ALLTOALL,
                DAT_IB_COLL_ALLTOALLV,
                DAT_IB_COLL_REDUCE,
                DAT_IB_COLL_ALLREDUCE,
                DAT_IB_COLL_REDUCE_SCATTER,
                DAT_IB_COLL_SCAN,
                DAT_ATTR_COUNTERS,
            ],
            pointers: [DAT_HANDLE_NULL, DAT_EVD_ASYNC_EXISTS, DAT_EVD_OUT_OF_SCOPE],
        ),
        _ => panic!("no module {version}"),
    }
}
