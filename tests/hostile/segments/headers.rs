//! Control bytes of a segment (RFC 5041 section 4, RFC 5040 section 4): versions, opcodes and reserved
//! bits.

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::wire::*;

use super::Answer::{GoesOn, Terminate};
use super::{Case, Copied, Open, Sent, case, legal, only, send_with};
use crate::iwarp::{send, tagged_as, untagged};
use crate::victim::Region;

/// The other version bits of DDP.
fn ddp_version(control: Control, version: u8) -> Control {
    Control {
        ddp: control.ddp & !DDP_VERSION_MASK | version,
        ..control
    }
}

/// The other version bits of RDMAP.
fn rdmap_version(control: Control, version: u8) -> Control {
    Control {
        rdmap: control.rdmap & !RDMAP_VERSION_MASK | version << 6,
        ..control
    }
}

/// An untagged segment whose fault is in the control bytes.
fn untagged_with(control: Control) -> Sent {
    only(untagged(send_with(control), b"data"))
}

/// A tagged segment whose fault is in the control bytes.
fn tagged_with(open: &Open<'_>, control: Control) -> Sent {
    let (stag, to) = open.place(Region::All);
    only(tagged_as(Tagged { control, stag, to }, b"data"))
}

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::{DdpHeader, Nothing};
    let ddp_tagged = |version, name| {
        case(
            name,
            "5041 4.1, 7.1",
            "a tagged segment of another DDP version",
            Terminate((1, 1, 4), Nothing),
            move |open| tagged_with(open, ddp_version(Control::new(OP_WRITE, true), version)),
        )
    };
    let ddp_untagged = |version, name| {
        case(
            name,
            "5041 4.1, 7.1",
            "an untagged segment of another DDP version",
            Terminate((1, 2, 6), Nothing),
            move |_| untagged_with(ddp_version(send(1).control, version)),
        )
    };
    let rdmap = |version, name| {
        case(
            name,
            "5040 4.1, 7.2",
            "another RDMAP version",
            Terminate((0, 2, 5), DdpHeader),
            move |_| untagged_with(rdmap_version(send(1).control, version)),
        )
    };
    let opcode_untagged = |opcode, name| {
        case(
            name,
            "5040 4.1, 7.2",
            "an opcode that no untagged segment has",
            Terminate((0, 2, 6), DdpHeader),
            move |_| untagged_with(Control::new(opcode, true)),
        )
    };
    let opcode_tagged = |opcode, name| {
        case(
            name,
            "5040 4.1, 7.2",
            "an opcode that no tagged segment has",
            Terminate((0, 2, 6), DdpHeader),
            move |open| tagged_with(open, Control::new(opcode, true)),
        )
    };
    vec![
        ddp_tagged(0, "ddp-version-tagged-0"),
        ddp_untagged(0, "ddp-version-untagged-0"),
        rdmap(0, "rdmap-version-0"),
        ddp_tagged(2, "ddp-version-tagged-2"),
        ddp_untagged(2, "ddp-version-untagged-2"),
        rdmap(2, "rdmap-version-2"),
        ddp_tagged(3, "ddp-version-tagged-3"),
        ddp_untagged(3, "ddp-version-untagged-3"),
        rdmap(3, "rdmap-version-3"),
        opcode_untagged(0, "opcode-write-untagged"),
        opcode_tagged(1, "opcode-request-tagged"),
        opcode_untagged(2, "opcode-response-untagged"),
        opcode_tagged(3, "opcode-send-tagged"),
        opcode_tagged(4, "opcode-send-invalidate-tagged"),
        opcode_tagged(5, "opcode-send-se-tagged"),
        opcode_tagged(6, "opcode-send-se-invalidate-tagged"),
        opcode_tagged(7, "opcode-terminate-tagged"),
        opcode_untagged(8, "opcode-8"),
        opcode_tagged(8, "opcode-8-tagged"),
        opcode_untagged(9, "opcode-9"),
        opcode_tagged(9, "opcode-9-tagged"),
        opcode_untagged(10, "opcode-10"),
        opcode_tagged(10, "opcode-10-tagged"),
        opcode_untagged(11, "opcode-11"),
        opcode_tagged(11, "opcode-11-tagged"),
        opcode_untagged(12, "opcode-12"),
        opcode_tagged(12, "opcode-12-tagged"),
        opcode_untagged(13, "opcode-13"),
        opcode_tagged(13, "opcode-13-tagged"),
        opcode_untagged(14, "opcode-14"),
        opcode_tagged(14, "opcode-14-tagged"),
        opcode_untagged(15, "opcode-15"),
        opcode_tagged(15, "opcode-15-tagged"),
        case(
            "reserved-bits",
            "5041 4.1, 5040 4.1",
            "reserved bits of DDP and RDMAP that are set",
            GoesOn(2),
            |_| {
                let control = send(1).control;
                let control = Control {
                    ddp: control.ddp | 0x3c,
                    rdmap: control.rdmap | 0x30,
                };
                let header = Untagged {
                    invalidate: 0xffff_ffff,
                    ..send_with(control)
                };
                legal(untagged(header, b"data"))
            },
        ),
    ]
}
