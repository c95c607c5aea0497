//! The error type of all layers, and its conversion to a `DAT_RETURN`.
//!
//! Types are the numbers of `DAT_RETURN_TYPE`, which agree in DAT 1.2 and 2.0 except
//! `DAT_NOT_IMPLEMENTED`. Subtypes are named and numbered as in DAT 2.0; DAT 1.2 numbers them
//! differently from 26 on ([`Version::subtype`]). Sources: `dat_error.h` of both versions.

use std::collections::TryReserveError;
use std::fmt;
use std::num::NonZeroU32;

use crate::reserve::NoMemory;

/// Class bit of an error return (`DAT_CLASS_ERROR`).
pub const CLASS_ERROR: u32 = 0x8000_0000;
/// Bits of a return code that hold its type (`DAT_GET_TYPE`).
pub const TYPE_MASK: u32 = 0x3fff_0000;
/// Bits of a return code that hold its subtype (`DAT_GET_SUBTYPE`).
pub const SUBTYPE_MASK: u32 = 0x0000_ffff;

/// `DAT_RETURN_TYPE`: what went wrong.
#[allow(missing_docs)] // the names are those of dat_error.h
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    Abort = 0x00010000,
    ConnQualInUse = 0x00020000,
    InsufficientResources = 0x00030000,
    InternalError = 0x00040000,
    InvalidHandle = 0x00050000,
    InvalidParameter = 0x00060000,
    InvalidState = 0x00070000,
    LengthError = 0x00080000,
    ModelNotSupported = 0x00090000,
    ProviderNotFound = 0x000a0000,
    PrivilegesViolation = 0x000b0000,
    ProtectionViolation = 0x000c0000,
    QueueEmpty = 0x000d0000,
    QueueFull = 0x000e0000,
    TimeoutExpired = 0x000f0000,
    ProviderAlreadyRegistered = 0x00100000,
    ProviderInUse = 0x00110000,
    InvalidAddress = 0x00120000,
    InterruptedCall = 0x00130000,
    ConnQualUnavailable = 0x00140000,
    ReservedLmr = 0x00150000,
    PortInUse = 0x00160000,
    CommNotSupported = 0x00170000,
    /// Its number depends on the version ([`Version::kind`]).
    NotImplemented = 0x3fff0000,
}

/// `DAT_RETURN_SUBTYPE`, with the numbers of DAT 2.0: which argument, handle, resource or state.
#[allow(missing_docs)] // the names are those of dat_error.h
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Subtype {
    None = 0,
    SubInterrupted = 1,
    ResourceMemory = 2,
    ResourceDevice = 3,
    ResourceTep = 4,
    ResourceTevd = 5,
    ResourceProtectionDomain = 6,
    ResourceMemoryRegion = 7,
    ResourceErrorHandler = 8,
    ResourceCredits = 9,
    ResourceSrq = 10,
    HandleIa = 11,
    HandleEp = 12,
    HandleLmr = 13,
    HandleRmr = 14,
    HandlePz = 15,
    HandlePsp = 16,
    HandleRsp = 17,
    HandleCr = 18,
    HandleCno = 19,
    HandleEvdCr = 20,
    HandleEvdRequest = 21,
    HandleEvdRecv = 22,
    HandleEvdConn = 23,
    HandleEvdAsync = 24,
    HandleSrq = 25,
    HandleCsp = 26,
    Handle1 = 27,
    Handle2 = 28,
    Handle3 = 29,
    Handle4 = 30,
    Handle5 = 31,
    Handle6 = 32,
    Handle7 = 33,
    Handle8 = 34,
    Handle9 = 35,
    Handle10 = 36,
    Arg1 = 37,
    Arg2 = 38,
    Arg3 = 39,
    Arg4 = 40,
    Arg5 = 41,
    Arg6 = 42,
    Arg7 = 43,
    Arg8 = 44,
    Arg9 = 45,
    Arg10 = 46,
    StateEpUnconnected = 47,
    StateEpActconnpending = 48,
    StateEpPassconnpending = 49,
    StateEpTentconnpending = 50,
    StateEpConnected = 51,
    StateEpDisconnected = 52,
    StateEpReserved = 53,
    StateEpComplpending = 54,
    StateEpDiscpending = 55,
    StateEpProvidercontrol = 56,
    StateEpNotready = 57,
    StateEpRecvWatermark = 58,
    StateEpPz = 59,
    StateEpEvdRequest = 60,
    StateEpEvdRecv = 61,
    StateEpEvdConnect = 62,
    StateEpUnconfigured = 63,
    StateEpUnconfreserved = 64,
    StateEpUnconfpassive = 65,
    StateEpUnconftentative = 66,
    StateCnoInUse = 67,
    StateCnoDead = 68,
    StateEvdOpen = 69,
    StateEvdEnabled = 70,
    StateEvdDisabled = 71,
    StateEvdWaitable = 72,
    StateEvdUnwaitable = 73,
    StateEvdInUse = 74,
    StateEvdConfigNotify = 75,
    StateEvdConfigSolicited = 76,
    StateEvdConfigThreshold = 77,
    StateEvdWaiter = 78,
    StateEvdAsync = 79,
    StateIaInUse = 80,
    StateLmrInUse = 81,
    StateLmrFree = 82,
    StatePzInUse = 83,
    StatePzFree = 84,
    StateSrqOperational = 85,
    StateSrqError = 86,
    StateSrqInUse = 87,
    StateSrqShutdown = 88,
    PrivilegesRead = 89,
    PrivilegesWrite = 90,
    PrivilegesRdmaRead = 91,
    PrivilegesRdmaWrite = 92,
    ProtectionRead = 93,
    ProtectionWrite = 94,
    ProtectionRdmaRead = 95,
    ProtectionRdmaWrite = 96,
    AddressUnsupported = 97,
    AddressUnreachable = 98,
    AddressMalformed = 99,
    NameNotRegistered = 100,
    MajorNotFound = 101,
    MinorNotFound = 102,
    ThreadSafetyNotFound = 103,
}

/// The version of the DAT API whose numbers a caller expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// DAT 1.2, `libdat.so.1`.
    V1,
    /// DAT 2.0, `libdat2.so.2`.
    V2,
}

impl Version {
    /// The number of a return type in this version.
    ///
    /// Only `DAT_NOT_IMPLEMENTED` differs: DAT 1.2 takes the illumos value 0x0fff0000, because
    /// OpenFabrics' 0xffff0000 has class bits in it and never compares equal under
    /// `DAT_GET_TYPE`.
    pub const fn kind(self, kind: Kind) -> u32 {
        match (self, kind) {
            (Version::V1, Kind::NotImplemented) => 0x0fff_0000,
            _ => kind as u32,
        }
    }

    /// The number of a subtype in this version.
    ///
    /// DAT 2.0 inserted `DAT_INVALID_HANDLE_CSP` (26) and `DAT_INVALID_STATE_SRQ_SHUTDOWN` (88)
    /// and moved everything behind them; DAT 1.2 has no number for these two and gives the
    /// general subtype 0.
    pub const fn subtype(self, subtype: Subtype) -> u32 {
        let v2 = subtype as u32;
        match self {
            Version::V2 => v2,
            Version::V1 => match v2 {
                0..=25 => v2,
                26 | 88 => 0,
                27..=87 => v2 - 1,
                _ => v2 - 2,
            },
        }
    }
}

/// An error of a DAT call: its type and subtype, independent of the version's numbers. It is the sum of a
/// [`Kind`] and a [`Subtype`]: so a result without a value is one number, which is 0 for a success.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(NonZeroU32);

/// The result of a DAT call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with a subtype.
    #[inline]
    pub const fn new(kind: Kind, subtype: Subtype) -> Self {
        // SAFETY: no type has the number 0.
        Error(unsafe { NonZeroU32::new_unchecked(kind as u32 | subtype as u32) })
    }

    /// What went wrong.
    pub const fn kind(self) -> Kind {
        // SAFETY: the number of a type, as `new` has entered it: subtypes have none of its bits.
        unsafe { std::mem::transmute::<u32, Kind>(self.0.get() & TYPE_MASK) }
    }

    /// The argument, handle, resource or state concerned; for diagnosis only.
    pub const fn subtype(self) -> Subtype {
        // SAFETY: the number of a subtype, as `new` has entered it: types have none of its bits.
        unsafe { std::mem::transmute::<u32, Subtype>(self.0.get() & SUBTYPE_MASK) }
    }

    /// `DAT_INVALID_HANDLE` with the subtype of the handle's kind.
    pub const fn handle(subtype: Subtype) -> Self {
        Error::new(Kind::InvalidHandle, subtype)
    }

    /// [`Error::handle`] out of line: a call that succeeds then has no code for the error.
    #[cold]
    #[inline(never)]
    pub fn rare_handle(subtype: Subtype) -> Self {
        Error::handle(subtype)
    }

    /// `DAT_INVALID_PARAMETER` with the number of the argument.
    pub const fn arg(subtype: Subtype) -> Self {
        Error::new(Kind::InvalidParameter, subtype)
    }

    /// `DAT_INVALID_STATE` with the state that does not allow the call.
    pub const fn state(subtype: Subtype) -> Self {
        Error::new(Kind::InvalidState, subtype)
    }

    /// `DAT_INSUFFICIENT_RESOURCES` with the resource.
    pub const fn resource(subtype: Subtype) -> Self {
        Error::new(Kind::InsufficientResources, subtype)
    }

    /// The `DAT_RETURN` of this error: the error class, the type and the subtype in the numbers
    /// of `version`.
    ///
    /// Two codes come without the class, since programs compare them as a whole; those that compare
    /// under `DAT_GET_TYPE` see no difference. `DAT_QUEUE_EMPTY`, as OpenFabrics' libraries give it
    /// for completions and CNOs: programs poll `while (ret == DAT_QUEUE_EMPTY)`.
    /// `DAT_CONN_QUAL_IN_USE`, as they give it when another process has the qualifier: programs try
    /// the next one only if `ret == DAT_CONN_QUAL_IN_USE`, and give up on any other code.
    pub const fn code(self, version: Version) -> u32 {
        let class = match self.kind() {
            Kind::QueueEmpty | Kind::ConnQualInUse => 0,
            _ => CLASS_ERROR,
        };
        class | version.kind(self.kind()) | version.subtype(self.subtype())
    }
}

impl Error {
    /// Whether the error is `DAT_QUEUE_EMPTY`.
    #[inline]
    pub fn is_queue_empty(self) -> bool {
        self.kind() == Kind::QueueEmpty
    }
}

impl From<Kind> for Error {
    #[inline]
    fn from(kind: Kind) -> Self {
        Error::new(kind, Subtype::None)
    }
}

/// No memory: `DAT_INSUFFICIENT_RESOURCES` of memory.
impl From<NoMemory> for Error {
    fn from(_: NoMemory) -> Self {
        Error::resource(Subtype::ResourceMemory)
    }
}

/// As [`NoMemory`].
impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        NoMemory.into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.kind(), self.subtype())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_in_both_numberings() {
        // Values of `dat_error.h` of DAT 1.2 and of DAT 2.0.
        let arg1 = Error::arg(Subtype::Arg1);
        assert_eq!(arg1.code(Version::V1), 0x8006_0024);
        assert_eq!(arg1.code(Version::V2), 0x8006_0025);
        let name = Error::new(Kind::ProviderNotFound, Subtype::NameNotRegistered);
        assert_eq!(name.code(Version::V1), 0x800a_0062);
        assert_eq!(name.code(Version::V2), 0x800a_0064);
        let handle = Error::handle(Subtype::HandleIa);
        assert_eq!(handle.code(Version::V1), 0x8005_000b);
        assert_eq!(handle.code(Version::V2), 0x8005_000b);
        let stub = Error::from(Kind::NotImplemented);
        assert_eq!(stub.code(Version::V1), 0x8fff_0000);
        assert_eq!(stub.code(Version::V2), 0xbfff_0000);
        let empty = Error::from(Kind::QueueEmpty);
        assert_eq!(empty.code(Version::V2), 0x000d_0000);
        let in_use = Error::from(Kind::ConnQualInUse);
        assert_eq!(in_use.code(Version::V1), 0x0002_0000);
    }

    #[test]
    fn an_error_has_its_type_and_subtype() {
        for kind in [Kind::Abort, Kind::CommNotSupported, Kind::NotImplemented] {
            for subtype in [Subtype::None, Subtype::Arg1, Subtype::ThreadSafetyNotFound] {
                let error = Error::new(kind, subtype);
                assert_eq!((error.kind(), error.subtype()), (kind, subtype));
            }
        }
        assert_eq!(size_of::<Result<()>>(), size_of::<u32>());
    }

    #[test]
    fn subtypes_that_only_2_0_has() {
        assert_eq!(Version::V1.subtype(Subtype::HandleCsp), 0);
        assert_eq!(Version::V1.subtype(Subtype::StateSrqShutdown), 0);
    }
}
