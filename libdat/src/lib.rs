//! libdat
