//! The file that `DAT_OVERRIDE` names.
//!
//! OpenFabrics' libraries read it when they are loaded. Here it is read at the first call, as a program may
//! still set the variable; but a daemon that was started with the path of a file in its directory may have
//! gone to another one by then.

use std::env;
use std::ffi::OsString;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::config::OVERRIDE;
use crate::any_stack::called_by_c;
use crate::environment;

/// A relative path that the variable had when the library was loaded, and the directory of then.
static AT_LOAD: OnceLock<(OsString, PathBuf)> = OnceLock::new();

extern "C" fn note() {
    let _ = catch_unwind(|| {
        if let Some(file) = environment::variable(OVERRIDE)
            && !file.is_empty()
            && Path::new(&file).is_relative()
            && let Ok(directory) = env::current_dir()
        {
            let _ = AT_LOAD.set((file, directory));
        }
    });
}

called_by_c! {
    at_load => note;
}

/// Called when the library is loaded.
#[used]
#[cfg_attr(
    all(target_os = "linux", not(miri)),
    unsafe(link_section = ".init_array")
)]
static NOTE: extern "C" fn() = at_load;

/// The path of the file, if the variable is set.
pub fn path() -> Option<OsString> {
    // Without a reference the linker may leave out the object file of the static.
    std::hint::black_box(&NOTE);
    let file = environment::variable(OVERRIDE)?;
    let moved = AT_LOAD.get().filter(|(at_load, directory)| {
        // A path that is as the user has written it is better in messages.
        *at_load == file && env::current_dir().ok().as_ref() != Some(directory)
    });
    Some(match moved {
        Some((_, directory)) => directory.join(file).into_os_string(),
        None => file,
    })
}
