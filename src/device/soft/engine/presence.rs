//! What the thread of an engine does so that peers notice at once when the process executes another program.

/// Called by the thread of an engine; the transport that has peers in other processes gives the functions.
#[derive(Clone, Copy)]
pub(crate) struct Presence {
    /// Shows peers that the program runs, unless another thread of this process does. Called at the beginning, and
    /// again and again.
    pub show: fn(),
    /// The thread ends: another one may show that.
    pub end: fn(),
}
