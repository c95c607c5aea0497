//! The headers of rdma-core, for tests that compile with them.

use crate::skip::skip;

const HEADERS: [&str; 2] = [
    "/usr/include/infiniband/verbs.h",
    "/usr/include/rdma/rdma_cma.h",
];

/// Whether they are there. Without them the running test is skipped, unless `DAT_CHECK_VERBS=1`
/// asks for it.
pub fn is_installed() -> bool {
    let Some(missing) = HEADERS.iter().find(|h| !std::path::Path::new(h).exists()) else {
        return true;
    };
    let asked = std::env::var_os("DAT_CHECK_VERBS").is_some_and(|v| v == "1");
    let why = format!("{missing} is not installed (packages libibverbs-dev, librdmacm-dev)");
    assert!(!asked, "{why}");
    skip(&why);
    false
}
