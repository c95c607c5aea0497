//! What integration tests, the models of loom, benches and fuzz targets use of the inside. No
//! library and no tool does.

/// See [`crate::dapl`].
pub mod dapl {
    pub use crate::dapl::*;
}

/// See [`crate::device`].
pub mod device {
    pub use crate::device::*;
}

/// See [`crate::handle`].
pub mod handle {
    pub use crate::handle::*;
}

/// See [`crate::kernel`].
#[cfg(dat_sim)]
pub mod kernel {
    pub use crate::kernel::simulated::*;
}

/// See [`crate::process`].
#[cfg(dat_sim)]
pub mod process {
    pub use crate::process::simulated::*;
}

/// See [`crate::log_sink`].
pub mod log_sink {
    pub use crate::log_sink::*;
}

/// See [`crate::sync`].
#[cfg(loom)]
pub mod sync {
    pub use crate::sync::barrier;
}
