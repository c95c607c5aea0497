//! The arguments of a call, as the trace gets them from the lists of exported functions.

use crate::abi::common::{DAT_CONTEXT, DAT_OS_WAIT_PROXY_AGENT, DAT_REGION_DESCRIPTION};

/// An argument: its name and type in the declaration of the function, and its value.
#[derive(Clone, Copy)]
pub struct Argument {
    /// The name of the parameter.
    pub name: &'static str,
    /// The type, as the lists of exported functions have it: `DAT_COUNT`, `*mut DAT_EVENT`.
    pub kind: &'static str,
    /// The value: an integer with the bits of its type, a pointer, or the two words of a structure.
    pub words: [u64; 2],
    /// If it is a pointer, the size in bytes of what it points to.
    pub pointee: usize,
}

impl Argument {
    /// An argument of these name and type.
    pub fn new<T: Words>(name: &'static str, kind: &'static str, value: T) -> Argument {
        Argument {
            name,
            kind,
            words: value.words(),
            pointee: T::POINTEE,
        }
    }
}

/// What a pointer of a type points to, and whether that may be written; `None` if it is no pointer. The
/// compiler writes `* mut` or `*mut`, as a list is given to a macro.
pub fn pointed_kind(kind: &str) -> Option<(bool, &str)> {
    let rest = kind.strip_prefix('*')?.trim_start();
    let (writable, rest) = match rest.strip_prefix("mut ") {
        Some(rest) => (true, rest),
        None => (false, rest.strip_prefix("const ")?),
    };
    Some((writable, rest.trim_start()))
}

/// A type of arguments.
pub trait Words: Copy {
    /// [`Argument::pointee`].
    const POINTEE: usize = 0;

    /// The value in two words.
    fn words(self) -> [u64; 2];
}

impl Words for u32 {
    fn words(self) -> [u64; 2] {
        [u64::from(self), 0]
    }
}

impl Words for i32 {
    fn words(self) -> [u64; 2] {
        [u64::from(self.cast_unsigned()), 0]
    }
}

impl Words for u64 {
    fn words(self) -> [u64; 2] {
        [self, 0]
    }
}

impl<T> Words for *mut T {
    const POINTEE: usize = size_of::<T>();

    fn words(self) -> [u64; 2] {
        [self.addr() as u64, 0]
    }
}

impl<T> Words for *const T {
    const POINTEE: usize = size_of::<T>();

    fn words(self) -> [u64; 2] {
        [self.addr() as u64, 0]
    }
}

impl Words for DAT_CONTEXT {
    fn words(self) -> [u64; 2] {
        // SAFETY: every member is a word of eight bytes, for which any bits are valid.
        [unsafe { self.as_64 }, 0]
    }
}

impl Words for DAT_OS_WAIT_PROXY_AGENT {
    fn words(self) -> [u64; 2] {
        let function = self.proxy_agent_func.map_or(0, |f| f as usize);
        [self.instance_data.addr() as u64, function as u64]
    }
}

impl Words for DAT_REGION_DESCRIPTION {
    fn words(self) -> [u64; 2] {
        let mut words = [0usize; 2];
        const { assert!(size_of::<DAT_REGION_DESCRIPTION>() == size_of::<[usize; 2]>()) };
        // SAFETY: the union has the size of two words. The bytes that the program has not set are copied
        // as the call itself passes them on.
        unsafe {
            let from = (&raw const self).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, words.as_mut_ptr().cast(), size_of_val(&words));
        }
        words.map(|word| word as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_told_apart_however_they_are_written() {
        for (kind, pointed) in [
            ("*mut DAT_EVENT", Some((true, "DAT_EVENT"))),
            ("* mut DAT_EVENT", Some((true, "DAT_EVENT"))),
            ("* const DAT_EVENT", Some((false, "DAT_EVENT"))),
            ("*mut *const c_char", Some((true, "*const c_char"))),
            ("* mut * const c_char", Some((true, "* const c_char"))),
            ("DAT_PVOID", None),
        ] {
            assert_eq!(pointed_kind(kind), pointed);
        }
    }
}
