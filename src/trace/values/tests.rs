use std::ptr::{from_mut, from_ref, null, null_mut, without_provenance};

use super::*;
use crate::abi::{v1, v2};

/// The text of one argument before the call, with others beside it.
fn shown(version: Version, arguments: &[Argument]) -> String {
    before(version, arguments, arguments.len() - 1)
}

fn count(value: i32) -> Argument {
    Argument::new("num_segments", "DAT_COUNT", value)
}

#[test]
fn numbers_have_the_form_of_their_type() {
    for (kind, word, text) in [
        ("DAT_COUNT", 0xffff_ffffu64, "x=-1"),
        ("DAT_UINT32", 0xffff_ffff, "x=4294967295"),
        ("DAT_CONN_QUAL", 1 << 40, "x=1099511627776"),
        ("DAT_TIMEOUT", 0xffff_ffff, "x=DAT_TIMEOUT_INFINITE"),
        ("DAT_TIMEOUT", 1000, "x=1000 us"),
        ("DAT_DTO_COOKIE", 0x1234, "x=0x1234"),
        ("DAT_EP_HANDLE", 0, "x=DAT_HANDLE_NULL"),
        ("DAT_EP_HANDLE", 0x7f00_0000_1080, "x=0x7f0000001080"),
        ("DAT_EVD_HANDLE", 1, "x=DAT_EVD_ASYNC_EXISTS"),
        ("DAT_CLOSE_FLAGS", 1, "x=DAT_CLOSE_GRACEFUL_FLAG"),
        ("DAT_BOOLEAN", 7, "x=7"),
        ("*mut DAT_EVD_HANDLE", 0x10, "x=0x10"),
        ("*mut DAT_EVD_HANDLE", 0, "x=NULL"),
    ] {
        assert_eq!(shown(Version::V2, &[Argument::new("x", kind, word)]), text);
    }
}

#[test]
fn triplets_are_shown_as_many_as_there_are() {
    let iov = [v2::DAT_LMR_TRIPLET {
        virtual_address: 0x1000,
        segment_length: 64,
        lmr_context: 0x7,
    }; 6];
    let of = |number| {
        let kind = "*mut DAT_LMR_TRIPLET";
        let local_iov = Argument::new("local_iov", kind, from_ref(&iov[0]).cast_mut());
        shown(Version::V2, &[count(number), local_iov])
    };
    let one = "{virtual_address=0x1000, segment_length=64, lmr_context=0x7}";
    assert_eq!(of(0), "local_iov=[]");
    assert_eq!(of(-1), "local_iov=[]");
    assert_eq!(of(2), format!("local_iov=[{one}, {one}]"));
    assert_eq!(
        of(6),
        format!("local_iov=[{one}, {one}, {one}, {one}, ... 6 in all]")
    );
    let remote = v1::DAT_RMR_TRIPLET {
        rmr_context: 9,
        pad: 0,
        target_address: 0x2000,
        segment_length: 5,
    };
    let remote = Argument::new("remote_iov", "*const DAT_RMR_TRIPLET", from_ref(&remote));
    assert_eq!(
        shown(Version::V1, &[count(2), remote]),
        "remote_iov={rmr_context=0x9, target_address=0x2000, segment_length=5}"
    );
}

#[test]
fn wrong_pointers_are_named() {
    let wrong: *mut v2::DAT_LMR_TRIPLET = without_provenance::<v2::DAT_LMR_TRIPLET>(16).cast_mut();
    let local_iov = Argument::new("local_iov", "*mut DAT_LMR_TRIPLET", wrong);
    assert_eq!(
        shown(Version::V2, &[count(1), local_iov]),
        "local_iov=0x10 (unreadable)"
    );
    let null = Argument::new("local_iov", "*mut DAT_LMR_TRIPLET", null_mut::<u64>());
    assert_eq!(shown(Version::V2, &[count(1), null]), "local_iov=NULL");
    for (kind, text) in [
        ("DAT_IA_ADDRESS_PTR", "x=0x10 (unreadable)"),
        ("DAT_NAME_PTR", "x=0x10 (unreadable)"),
        ("*const DAT_EVENT", "x=0x10 (unreadable)"),
        ("*const DAT_EP_ATTR", "x=0x10 (unreadable)"),
    ] {
        let argument = Argument::new("x", kind, without_provenance::<v2::DAT_EVENT>(16));
        assert_eq!(shown(Version::V2, &[argument]), text);
    }
    let place = Argument::new(
        "ep_handle",
        "*mut DAT_EP_HANDLE",
        without_provenance::<u64>(16),
    );
    let filled = after(Version::V2, &[place], 0).unwrap();
    assert_eq!(filled, "ep_handle=0x10 (unreadable)");
}

#[test]
fn masks_choose_the_fields() {
    let mut param = v1::DAT_EVD_PARAM {
        ia_handle: null_mut(),
        evd_qlen: 8,
        evd_state: 5,
        cno_handle: null_mut(),
        evd_flags: 0x20,
    };
    let mut of = |mask: u32| {
        let arguments = [
            Argument::new("evd_param_mask", "DAT_EVD_PARAM_MASK", mask),
            Argument::new("evd_param", "*mut DAT_EVD_PARAM", from_mut(&mut param)),
        ];
        after(Version::V1, &arguments, 1).unwrap()
    };
    assert_eq!(of(0), "evd_param={}");
    assert_eq!(
        of(v1::DAT_EVD_FIELD_EVD_QLEN | v1::DAT_EVD_FIELD_EVD_FLAGS),
        "evd_param={evd_qlen=8, evd_flags=DAT_EVD_DTO_FLAG}"
    );
    assert_eq!(
        of(v1::DAT_EVD_FIELD_EVD_STATE),
        "evd_param={evd_state=DAT_EVD_STATE_ENABLED|DAT_EVD_STATE_WAITABLE}"
    );
}

/// Every structure has a field for each bit of its mask, in the order of the bits: the name of the bit
/// has that of the field in it, or begins like it.
#[test]
fn fields_are_in_the_order_of_the_bits() {
    for version in [Version::V1, Version::V2] {
        for (mask, structure, first) in [
            ("DAT_EVD_PARAM_MASK", "DAT_EVD_PARAM", 0),
            ("DAT_LMR_PARAM_MASK", "DAT_LMR_PARAM", 0),
            ("DAT_RMR_PARAM_MASK", "DAT_RMR_PARAM", 0),
            ("DAT_SRQ_PARAM_MASK", "DAT_SRQ_PARAM", 0),
            ("DAT_PSP_PARAM_MASK", "DAT_PSP_PARAM", 0),
            ("DAT_RSP_PARAM_MASK", "DAT_RSP_PARAM", 0),
            ("DAT_CR_PARAM_MASK", "DAT_CR_PARAM", 0),
            ("DAT_EP_PARAM_MASK", "DAT_EP_PARAM", 0),
            ("DAT_EP_PARAM_MASK", "DAT_EP_ATTR", 12),
            ("DAT_IA_ATTR_MASK", "DAT_IA_ATTR", 0),
            ("DAT_PROVIDER_ATTR_MASK", "DAT_PROVIDER_ATTR", 0),
        ] {
            let names = Names::of(version, mask).unwrap();
            let fields = structures::of(version, structure).unwrap();
            for (bit, field) in fields.iter().enumerate() {
                if field.kind == "DAT_EP_ATTR" {
                    continue;
                }
                let name = names.text(1 << (first + bit));
                let words = |text: &str| {
                    let text = text.to_lowercase();
                    let words = text
                        .split('_')
                        .map(|word| word.trim_end_matches('s').to_owned());
                    words.collect::<Vec<_>>()
                };
                let (of_bit, of_field) = (words(&name), words(field.name));
                let common = of_field.iter().filter(|word| of_bit.contains(word)).count();
                assert!(
                    2 * common >= of_field.len(),
                    "{name} is {}.{}",
                    structure,
                    field.name
                );
            }
        }
    }
}

#[test]
fn addresses_have_their_port() {
    // SAFETY: all zeros are an address.
    let mut v4: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    v4.sin_family = libc::AF_INET as u16;
    v4.sin_port = 4711u16.to_be();
    v4.sin_addr.s_addr = u32::from_ne_bytes([10, 0, 0, 2]);
    let of = |address: *const u8| {
        let argument = Argument::new("a", "DAT_IA_ADDRESS_PTR", address);
        shown(Version::V2, &[argument])
    };
    assert_eq!(of(from_ref(&v4).cast()), "a=10.0.0.2:4711");
    // SAFETY: as above.
    let mut v6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    v6.sin6_family = libc::AF_INET6 as u16;
    v6.sin6_addr.s6_addr[0] = 0xfe;
    v6.sin6_addr.s6_addr[1] = 0x80;
    v6.sin6_addr.s6_addr[15] = 1;
    v6.sin6_scope_id = 3;
    assert_eq!(of(from_ref(&v6).cast()), "a=[fe80::1%3]:0");
    v6.sin6_family = 27;
    assert_eq!(of(from_ref(&v6).cast()), "a={sa_family=27}");
    assert_eq!(of(null()), "a=NULL");
}

#[test]
fn private_data_is_shown_by_its_first_bytes() {
    let data = [0xabu8; 20];
    let of = |size: i32, at: *const u8| {
        let arguments = [
            Argument::new("private_data_size", "DAT_COUNT", size),
            Argument::new("private_data", "DAT_PVOID", at),
        ];
        shown(Version::V2, &arguments)
    };
    assert_eq!(of(3, data.as_ptr()), "private_data=<ababab>");
    let sixteen = "ab".repeat(16);
    assert_eq!(of(16, data.as_ptr()), format!("private_data=<{sixteen}>"));
    assert_eq!(
        of(20, data.as_ptr()),
        format!("private_data=<{sixteen}...>")
    );
    assert_eq!(
        of(3, without_provenance(16)),
        "private_data=0x10 (unreadable)"
    );
    assert_eq!(of(0, null()), "private_data=NULL");
    assert_eq!(of(-1, without_provenance(16)), "private_data=0x10");
}

#[test]
fn regions_are_those_of_their_type() {
    let mut memory = [0u8; 4];
    let description = v2::DAT_REGION_DESCRIPTION {
        for_va: memory.as_mut_ptr().cast(),
    };
    let of = |mem_type: u32| {
        let arguments = [
            Argument::new("mem_type", "DAT_MEM_TYPE", mem_type),
            Argument::new("region_description", "DAT_REGION_DESCRIPTION", description),
        ];
        shown(Version::V2, &arguments)
    };
    let at = format!("{:#x}", memory.as_ptr() as u64);
    assert_eq!(of(0), format!("region_description={{for_va={at}}}"));
    assert_eq!(of(1), format!("region_description={{for_lmr_handle={at}}}"));
    assert_eq!(of(9), format!("region_description={at}"));
}

#[test]
fn events_are_decoded_for_their_version() {
    let data = v1::DAT_DTO_COMPLETION_EVENT_DATA {
        ep_handle: without_provenance::<u8>(0x100).cast_mut().cast(),
        user_cookie: v1::DAT_CONTEXT { as_64: 0x77 },
        status: v1::DAT_DTO_ERR_FLUSHED,
        transfered_length: 12,
    };
    // SAFETY: all zeros are an event.
    let mut event: v1::DAT_EVENT = unsafe { std::mem::zeroed() };
    event.event_number = v1::DAT_DTO_COMPLETION_EVENT;
    event.evd_handle = without_provenance::<u8>(0x200).cast_mut().cast();
    event.event_data.dto_completion_event_data = data;
    let argument = Argument::new("event", "*mut DAT_EVENT", from_mut(&mut event));
    assert_eq!(
        after(Version::V1, &[argument], 0).unwrap(),
        "event={event_number=DAT_DTO_COMPLETION_EVENT, evd_handle=0x200, ep_handle=0x100, \
         user_cookie=0x77, status=DAT_DTO_ERR_FLUSHED, transfered_length=12}"
    );
    // SAFETY: as above.
    let mut event: v2::DAT_EVENT = unsafe { std::mem::zeroed() };
    event.event_number = v2::DAT_IB_DTO_EVENT;
    event.event_data.dto_completion_event_data.operation = v2::DAT_IB_DTO_RECV_IMMED;
    let words = &raw mut event.event_extension_data;
    // SAFETY: the words are of the event, and hold what an extension lays over them.
    unsafe {
        let data = words.cast::<v2::DAT_IB_EXTENSION_EVENT_DATA>();
        (*data).r#type = v2::DAT_IB_RDMA_WRITE_IMMED_DATA;
        (*data).val.immed = v2::DAT_IB_IMMED_DATA { data: 0x1234 };
    }
    let argument = Argument::new("event", "*mut DAT_EVENT", from_mut(&mut event));
    let text = after(Version::V2, &[argument], 0).unwrap();
    assert!(text.contains("operation=DAT_IB_DTO_RECV_IMMED"), "{text}");
    assert!(
        text.ends_with("type=DAT_IB_RDMA_WRITE_IMMED_DATA, status=DAT_OP_SUCCESS, val=0x1234}"),
        "{text}"
    );
}
