//! Handles.
