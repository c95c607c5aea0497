//! Which memory windows there are.

use std::ffi::c_int;
use std::io;

use super::adapter::Adapter;
use super::sys;

/// Which windows a device has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Windows {
    None,
    Type1,
    Type2,
}

impl Windows {
    /// The windows that a device says it has, of those that `is_made` says its driver makes (`sys::MW_TYPE_*`).
    pub fn of(device_cap_flags: u32, is_made: impl Fn(c_int) -> bool) -> Windows {
        let type2 = sys::DEVICE_MEM_WINDOW_TYPE_2A | sys::DEVICE_MEM_WINDOW_TYPE_2B;
        if device_cap_flags & type2 != 0 && is_made(sys::MW_TYPE_2) {
            Windows::Type2
        } else if device_cap_flags & sys::DEVICE_MEM_WINDOW != 0 && is_made(sys::MW_TYPE_1) {
            Windows::Type1
        } else {
            Windows::None
        }
    }

    /// Whether the driver of a device makes windows of a type (`sys::MW_TYPE_*`) for programs: some drivers of
    /// rdma-core, such as that of cxgb4, make none, although the kernel says that the device has them.
    pub fn are_made(adapter: &Adapter, kind: c_int) -> bool {
        // SAFETY: the context is open.
        let pd = unsafe { (adapter.lib.ibv_alloc_pd)(adapter.ctx) };
        if pd.is_null() {
            // What the device says counts.
            return true;
        }
        // SAFETY: as above; the domain is valid, and so is the window until it is given back.
        unsafe {
            let ops = &(*adapter.ctx).ops;
            let made = ops.alloc_mw.is_some_and(|alloc| {
                let mw = alloc(pd, kind);
                let error = io::Error::last_os_error().raw_os_error();
                match (mw.is_null(), ops.dealloc_mw) {
                    (true, _) => !matches!(error, Some(libc::EOPNOTSUPP | libc::ENOSYS)),
                    (false, Some(dealloc)) => dealloc(mw) == 0,
                    (false, None) => false,
                }
            });
            (adapter.lib.ibv_dealloc_pd)(pd);
            made
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_windows_a_device_has() {
        let both = sys::DEVICE_MEM_WINDOW | sys::DEVICE_MEM_WINDOW_TYPE_2B;
        assert_eq!(Windows::of(0, |_| true), Windows::None);
        let type1 = Windows::of(sys::DEVICE_MEM_WINDOW, |_| true);
        assert_eq!(type1, Windows::Type1);
        assert_eq!(Windows::of(both, |_| true), Windows::Type2);
        // Those that the driver makes.
        let type1 = Windows::of(both, |kind| kind == sys::MW_TYPE_1);
        assert_eq!(type1, Windows::Type1);
        assert_eq!(Windows::of(both, |_| false), Windows::None);
    }
}
