//! The grammar, rule by rule, and properties over generated input.

use super::*;

const REST: &str = "u2.0 threadsafe default lib.so v.1.0 \"\" \"\"";

fn all(text: impl AsRef<[u8]>) -> Vec<(usize, Result<Line, Fault>)> {
    parse(text.as_ref()).collect()
}

/// The one entry of a text.
fn one(text: impl AsRef<[u8]>) -> Line {
    match &all(text)[..] {
        [(1, Ok(line))] => line.clone(),
        other => panic!("{other:?}"),
    }
}

/// The one fault of a text.
fn fault(text: impl AsRef<[u8]>) -> Fault {
    match &all(text)[..] {
        [(1, Err(fault))] => *fault,
        other => panic!("{other:?}"),
    }
}

fn bytes(text: &CString) -> &[u8] {
    text.as_bytes()
}

#[test]
fn a_plain_entry() {
    let line = one(r#"ib0 u1.2 nonthreadsafe default libdaplcma.so.1 dapl.1.2 "ib0 0" """#);
    assert_eq!(bytes(&line.name), b"ib0");
    assert!(line.user && line.default && !line.thread_safe && line.installed());
    assert_eq!((line.major, line.minor), (1, 2));
    assert_eq!(bytes(&line.library), b"libdaplcma.so.1");
    assert_eq!(bytes(&line.ia_params), b"ib0 0");
    assert!(!line.has_platform_params);
    let blank = one(r#"ib0 u1.2 nonthreadsafe default libdaplcma.so.1 dapl.1.2 "ib0 0" " ""#);
    assert!(!blank.has_platform_params);
}

#[test]
fn records_end_at_newline_or_end_of_file() {
    let text = format!("a {REST}\n\n \t\n# comment\nb {REST}\r\n\r\nc {REST}");
    let names: Vec<_> = all(text)
        .into_iter()
        .map(|(number, line)| (number, line.unwrap().name.into_bytes()))
        .collect();
    assert_eq!(
        names,
        [(1, b"a".into()), (5, b"b".into()), (7, b"c".into())]
    );
}

#[test]
fn comments_start_where_a_field_could_start() {
    assert_eq!(bytes(&one(format!("a {REST} # x")).name), b"a");
    assert_eq!(bytes(&one(format!("a {REST}# x")).name), b"a");
    assert_eq!(bytes(&one(format!("a#b {REST}")).name), b"a#b");
    assert_eq!(fault("a u2.0 # threadsafe"), Fault::Missing(2));
}

#[test]
fn quotes_and_backslashes() {
    assert_eq!(
        bytes(&one(format!(r#""a b#\"\\\n" {REST}"#)).name),
        b"a b#\"\\n"
    );
    assert_eq!(bytes(&one(format!(r#""" {REST}"#)).name), b"");
    assert_eq!(bytes(&one(format!(r#""name"{REST}"#)).name), b"name");
    assert_eq!(bytes(&one(format!(r#"a\b {REST}"#)).name), br"a\b");
    // A quote inside a bare field is its last character.
    assert_eq!(bytes(&one(format!(r#"na"{REST}"#)).name), b"na\"");
}

#[test]
fn unclosed_quotes_drop_their_line_only() {
    for broken in ["\"", "\"abc", "\"abc\\", "\"abc\\\"", "x y \""] {
        let found = all(format!("{broken}\na {REST}\n"));
        assert_eq!(found[0], (1, Err(Fault::Quote)), "{broken}");
        assert_eq!(bytes(&found[1].1.as_ref().unwrap().name), b"a");
    }
}

#[test]
fn field_count() {
    assert_eq!(
        fault("a u2.0 threadsafe default lib.so v.1.0 \"\""),
        Fault::Missing(7)
    );
    assert_eq!(fault(format!("a {REST} more")), Fault::Excess);
    assert_eq!(fault("a"), Fault::Missing(1));
}

#[test]
fn name_length() {
    assert_eq!(
        bytes(&one(format!("{} {REST}", "n".repeat(255))).name).len(),
        255
    );
    assert_eq!(fault(format!("{} {REST}", "n".repeat(256))), Fault::Name);
}

#[test]
fn line_length() {
    let line = |len: usize| format!("a {REST} #{}", "x".repeat(len - REST.len() - 4));
    assert_eq!(line(8191).len(), 8191);
    assert_eq!(bytes(&one(line(8191)).name), b"a");
    assert_eq!(fault(line(8192)), Fault::Length);
}

#[test]
fn api_versions() {
    let with = |api| format!("a {api} threadsafe default l v.1.0 \"\" \"\"");
    for (api, user, major, minor) in [
        ("u1.2", true, 1, 2),
        ("k2.0", false, 2, 0),
        ("u.", true, 0, 0),
        ("u7.", true, 7, 0),
        ("u.7", true, 0, 7),
        ("u4294967297.0", true, 1, 0),
    ] {
        let line = one(with(api));
        assert_eq!((line.user, line.major, line.minor), (user, major, minor));
        assert_eq!(line.installed(), user);
    }
    for api in ["u2", "u", "U2.0", "2.0", "u2.0.0", "u2.x", "u-2.0", "\"\""] {
        assert_eq!(fault(with(api)), Fault::Api, "{api}");
    }
}

#[test]
fn flags_match_by_their_beginning() {
    let with = |safety, default| format!("a u2.0 {safety} {default} l v.1.0 \"\" \"\"");
    let line = one(with("threadsafeish", "nondefault2"));
    assert!(line.thread_safe && !line.default && !line.installed());
    assert!(!one(with("nonthreadsafe", "default")).thread_safe);
    for safety in ["Threadsafe", "thread", "nonthread", "nonnonthreadsafe"] {
        assert_eq!(fault(with(safety, "default")), Fault::Safety);
    }
    for default in ["Default", "non", "no", "nonDefault"] {
        assert_eq!(fault(with("threadsafe", default)), Fault::Default);
    }
}

#[test]
fn provider_versions() {
    let with = |version| format!("a u2.0 threadsafe default l {version} \"\" \"\"");
    for version in ["dapl.2.0", "SUNW.1.0", "\"two words.1.0\"", "x.10.20"] {
        one(with(version));
    }
    for version in [
        "SUNW1.0",
        ".1.0",
        "dapl",
        "dapl.1.0.0",
        "dapl.a.0",
        "dapl.1.-1",
    ] {
        assert_eq!(fault(with(version)), Fault::ProviderVersion, "{version}");
    }
}

#[test]
fn nul_bytes() {
    assert_eq!(fault(format!("a\0b {REST}")), Fault::Nul);
    assert_eq!(
        fault("a u2.0 threadsafe default l v.1.0 \"a\0\" \"\""),
        Fault::Nul
    );
}

/// xorshift64*: the same numbers on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

#[test]
fn no_input_panics_and_no_line_is_counted_twice() {
    const PIECES: [&[u8]; 20] = [
        b"\"",
        b"\\",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b"#",
        b"u",
        b".",
        b"\0",
        b"\xff",
        b"name",
        b"u1.2",
        b"threadsafe",
        b"nondefault",
        b"default",
        b"lib.so",
        b"d.1.0",
        b"\"\"",
        b"\r\n",
    ];
    let mut random = Random(0x5eed);
    // Under Miri each takes as long as thousands do.
    for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
        let mut text = Vec::new();
        for _ in 0..random.below(40) {
            text.extend_from_slice(random.pick(&PIECES));
        }
        let numbers: Vec<_> = all(&text).into_iter().map(|(number, _)| number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b));
        let lines = text.iter().filter(|&&byte| byte == b'\n').count() + 1;
        assert!(numbers.last().is_none_or(|&last| last <= lines));
    }
}

/// A field in quotes, every special character escaped.
fn quote(text: &CString) -> Vec<u8> {
    let mut out = vec![b'"'];
    for &byte in text.as_bytes() {
        if byte == b'"' || byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
    out
}

/// The text of an entry.
fn write(line: &Line) -> Vec<u8> {
    let mut out = quote(&line.name);
    out.extend_from_slice(
        format!(
            "\t{}{}.{} {}threadsafe {}default ",
            if line.user { 'u' } else { 'k' },
            line.major,
            line.minor,
            if line.thread_safe { "" } else { "non" },
            if line.default { "" } else { "non" },
        )
        .as_bytes(),
    );
    out.extend(quote(&line.library));
    out.extend_from_slice(b" dapl.2.0 ");
    out.extend(quote(&line.ia_params));
    out.extend_from_slice(match line.has_platform_params {
        true => b" driver_name=tavor",
        false => b" \"\"",
    });
    out
}

#[test]
fn well_formed_lines_round_trip() {
    let mut random = Random(0xdac0f);
    for _ in 0..5_000 {
        let mut text = |longest: usize| {
            let length = random.below(longest + 1);
            // Any byte but NUL and newline.
            let bytes: Vec<u8> = (0..length)
                .map(|_| 1 + random.below(255) as u8)
                .map(|byte| if byte == b'\n' { b' ' } else { byte })
                .collect();
            CString::new(bytes).unwrap()
        };
        let (name, library, ia_params) = (text(255), text(40), text(40));
        let line = Line {
            name,
            user: random.below(2) == 0,
            major: random.below(1 << 31) as u32,
            minor: random.below(10) as u32,
            thread_safe: random.below(2) == 0,
            default: random.below(2) == 0,
            library,
            ia_params,
            has_platform_params: random.below(2) == 0,
        };
        assert_eq!(one(write(&line)), line);
    }
}
