//! What the posts have in common: segments, completion flags, and what a refusal of the device
//! means.

use std::mem::MaybeUninit;

use super::abi::Abi;
use super::boundary::non_null;
use super::rules::Rules;
use crate::abi::common::*;
use crate::device::{PostError, Sge, WrFlags};
use crate::error::{Error, Kind, Result, Subtype};

/// The most segments of a post. No device has a higher limit.
const MAX_SEGMENTS: usize = 64;

/// Flags a request may carry; a send also `DAT_COMPLETION_SOLICITED_WAIT_FLAG`.
pub(super) const REQUEST_FLAGS: DAT_COMPLETION_FLAGS = DAT_COMPLETION_SUPPRESS_FLAG
    | DAT_COMPLETION_UNSIGNALLED_FLAG
    | DAT_COMPLETION_BARRIER_FENCE_FLAG;

/// Room for the local segments of a post. Only the used part is initialised, as most posts have
/// one segment. It is filled in place, because it is too large to be moved.
pub(super) struct Segments([MaybeUninit<Sge>; MAX_SEGMENTS]);

impl Segments {
    #[inline]
    pub(super) fn new() -> Segments {
        Segments([const { MaybeUninit::uninit() }; MAX_SEGMENTS])
    }

    /// The segments, and the bytes in all of them.
    ///
    /// # Safety
    /// `iov` is NULL or points to `count` triplets if `count` is positive.
    pub(super) unsafe fn read<A: Abi>(
        &mut self,
        count: DAT_COUNT,
        iov: *const A::LmrTriplet,
    ) -> Result<(&[Sge], u64)> {
        let count = usize::try_from(count)
            .ok()
            .filter(|n| *n <= MAX_SEGMENTS)
            .ok_or(Error::arg(Subtype::Arg2))?;
        if count > 0 {
            non_null(iov, Subtype::Arg3)?;
        }
        let mut total = 0;
        for (i, sge) in self.0.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's promise. Of a structure that is packed a triplet need not be aligned.
            let segment = A::sge(&unsafe { iov.add(i).read_unaligned() })?;
            total += u64::from(segment.len);
            sge.write(segment);
        }
        let written: *const [MaybeUninit<Sge>] = &self.0[..count];
        // SAFETY: the first `count` were just written, and are borrowed as long as `self`.
        Ok((unsafe { &*(written as *const [Sge]) }, total))
    }
}

/// Which completion flags an operation may have, in one direction of an endpoint, and their meaning.
#[derive(Clone, Copy)]
pub(super) struct OpFlags {
    /// `DAT_COMPLETION_UNSIGNALLED_FLAG` if the endpoint was made with it: successful completions of
    /// operations with that flag do not notify then.
    unsignalled: DAT_COMPLETION_FLAGS,
    /// Flags that are refused unless the operation is one that has them. To the letter of the man
    /// pages these are all flags, except UNSIGNALLED if the endpoint was made with it. Existing
    /// libraries refuse none, and ignore those without a meaning.
    refused: DAT_COMPLETION_FLAGS,
}

impl OpFlags {
    pub(super) fn new(configured: DAT_COMPLETION_FLAGS, rules: Rules) -> OpFlags {
        let unsignalled = configured & DAT_COMPLETION_UNSIGNALLED_FLAG;
        OpFlags {
            unsignalled,
            refused: if rules.are_pages() { !unsignalled } else { 0 },
        }
    }

    /// Checks the completion flags of one operation, for which those of `allowed` have a meaning,
    /// and converts them to those of the device. `arg` is the argument of the flags.
    #[inline]
    pub(super) fn check(
        &self,
        flags: DAT_COMPLETION_FLAGS,
        allowed: DAT_COMPLETION_FLAGS,
        arg: Subtype,
    ) -> Result<WrFlags> {
        if flags == DAT_COMPLETION_DEFAULT_FLAG {
            return Ok(WrFlags::empty());
        }
        let always = allowed & !DAT_COMPLETION_UNSIGNALLED_FLAG;
        if flags & !always & self.refused != 0 {
            return Err(Error::arg(arg));
        }
        let mut out = WrFlags::empty();
        let has = |flag| flags & allowed & flag != 0;
        out.set(WrFlags::UNSIGNALED, has(DAT_COMPLETION_SUPPRESS_FLAG));
        out.set(WrFlags::SOLICITED, has(DAT_COMPLETION_SOLICITED_WAIT_FLAG));
        out.set(WrFlags::QUIET, flags & self.unsignalled != 0);
        out.set(WrFlags::FENCE, has(DAT_COMPLETION_BARRIER_FENCE_FLAG));
        Ok(out)
    }
}

/// The error for a post that the device refused; `read` is whether the operation reads the local
/// memory.
#[cold]
#[inline(never)]
pub(super) fn post_error(error: PostError, read: bool) -> Error {
    let (privilege, protection) = if read {
        (Subtype::PrivilegesRead, Subtype::ProtectionRead)
    } else {
        (Subtype::PrivilegesWrite, Subtype::ProtectionWrite)
    };
    match error {
        PostError::QueueFull => Kind::InsufficientResources.into(),
        PostError::TooManySegments => Error::arg(Subtype::Arg2),
        PostError::Bounds => Error::arg(Subtype::Arg3),
        PostError::TooLong => Error::arg(Subtype::Arg3),
        PostError::Length => Kind::LengthError.into(),
        // "LMR invalid or lacks the privilege" is one condition of the man page.
        PostError::Key | PostError::Access => Error::new(Kind::PrivilegesViolation, privilege),
        PostError::Protection => Error::new(Kind::ProtectionViolation, protection),
        PostError::NotConnected => Error::state(Subtype::StateEpUnconnected),
        PostError::Unsupported => Kind::ModelNotSupported.into(),
        PostError::Misaligned => Kind::InvalidParameter.into(),
    }
}
