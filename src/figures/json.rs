//! Writes JSON, into memory that may be short.

use std::fmt::{self, Display, Write};

/// The longest text that is written, in bytes: that of about a hundred thousand endpoints.
const LONGEST: usize = 64 << 20;

/// A JSON object that is being written.
#[derive(Default)]
pub struct Json {
    text: Vec<u8>,
    /// Something did not fit: the text is of no use.
    failed: bool,
    /// Another member of the object or list was written before.
    follows: bool,
}

impl Json {
    /// The object whose members `write` writes; `None` if there is no memory for the text.
    pub fn object_of(write: impl FnOnce(&mut Json)) -> Option<Vec<u8>> {
        let mut json = Json::default();
        json.object(write);
        json.push(b"\n");
        (!json.failed).then_some(json.text)
    }

    fn push(&mut self, bytes: &[u8]) {
        // More than the allocator guarantees, so that it may say no.
        let fits = self.text.len() + bytes.len() <= LONGEST
            && !self.failed
            && self.text.try_reserve(bytes.len()).is_ok();
        match fits {
            true => self.text.extend_from_slice(bytes),
            false => self.failed = true,
        }
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.follows, true) {
            self.push(b",");
        }
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.quoted(key);
        self.push(b":");
    }

    fn quoted(&mut self, text: impl Display) {
        self.push(b"\"");
        let _ = write!(Escaped(self), "{text}");
        self.push(b"\"");
    }

    fn nested(&mut self, [open, close]: &[u8; 2], write: impl FnOnce(&mut Json)) {
        self.push(&[*open]);
        self.follows = false;
        write(self);
        self.push(&[*close]);
        self.follows = true;
    }

    fn object(&mut self, write: impl FnOnce(&mut Json)) {
        self.nested(b"{}", write);
    }

    /// A member that is a text.
    pub fn text(&mut self, key: &str, value: impl Display) {
        self.key(key);
        self.quoted(value);
    }

    /// A member that is a text, or null.
    pub fn text_or_null(&mut self, key: &str, value: Option<impl Display>) {
        match value {
            Some(value) => self.text(key, value),
            None => self.null(key),
        }
    }

    fn null(&mut self, key: &str) {
        self.key(key);
        self.push(b"null");
    }

    /// A member that is a number.
    pub fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.key(key);
        let value: u64 = value.into();
        let _ = write!(Escaped(self), "{value}");
    }

    /// A member that is a number, or null.
    pub fn number_or_null(&mut self, key: &str, value: Option<impl Into<u64>>) {
        match value {
            Some(value) => self.number(key, value),
            None => self.null(key),
        }
    }

    /// A member that is true or false.
    pub fn boolean(&mut self, key: &str, value: bool) {
        self.key(key);
        self.push(if value { b"true" } else { b"false" });
    }

    /// A member that is an object.
    pub fn member(&mut self, key: &str, write: impl FnOnce(&mut Json)) {
        self.key(key);
        self.object(write);
    }

    /// A member that is a list, to which `write` adds objects by [`Json::item`].
    pub fn list(&mut self, key: &str, write: impl FnOnce(&mut Json)) {
        self.key(key);
        self.nested(b"[]", write);
    }

    /// An object of a list.
    pub fn item(&mut self, write: impl FnOnce(&mut Json)) {
        self.separate();
        self.object(write);
    }
}

/// Writes the characters of a string.
struct Escaped<'a>(&'a mut Json);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(|c| c < ' ' || c == '"' || c == '\\') {
            let (plain, escaped) = rest.split_at(at);
            self.0.push(plain.as_bytes());
            match escaped.as_bytes()[0] {
                c @ (b'"' | b'\\') => self.0.push(&[b'\\', c]),
                c => {
                    const DIGITS: &[u8; 16] = b"0123456789abcdef";
                    let digit = |shift: u32| DIGITS[usize::from(c >> shift) & 15];
                    self.0.push(&[b'\\', b'u', b'0', b'0', digit(4), digit(0)]);
                }
            }
            rest = &escaped[1..];
        }
        self.0.push(rest.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists() {
        let text = Json::object_of(|json| {
            json.text("name", "a\"b\\c\n\u{1f}ü");
            json.member("counters", |json| {
                json.number("a", u64::MAX);
                json.number("b", 0u32);
            });
            json.list("empty", |_| {});
            json.list("two", |json| {
                json.item(|json| json.boolean("on", true));
                json.item(|json| json.number_or_null("none", None::<u32>));
            });
            json.text_or_null("last", Some("x"));
        });
        let expected = concat!(
            r#"{"name":"a\"b\\c\u000a\u001fü","counters":{"a":18446744073709551615,"b":0},"#,
            r#""empty":[],"two":[{"on":true},{"none":null}],"last":"x"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(text.unwrap()).unwrap(), expected);
    }

    #[test]
    fn what_is_too_long_is_nothing() {
        let line = "x".repeat(1 << 20);
        let long =
            |lines: usize| Json::object_of(|json| (0..lines).for_each(|_| json.text("key", &line)));
        assert!(long(2).is_some());
        assert!(long(64).is_none());
    }
}
