//! The parser of `dat.conf`.

#![no_main]

use dat_core::registry::parse::parse;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let lines = data.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let mut last = 0;
    for (number, entry) in parse(data) {
        assert!(last < number && number <= lines);
        last = number;
        match entry {
            Ok(entry) => assert!(entry.name.as_bytes().len() <= 255),
            Err(fault) => assert!(!fault.to_string().is_empty()),
        }
    }
});
