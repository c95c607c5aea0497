//! libdat2
