//! The grammar of `dat.conf`.
//!
//! A line holds one entry of exactly eight fields, a comment, both, or nothing:
//!
//! ```text
//! name api safety default library provider-version ia-params platform-params  # comment
//! ```
//!
//! Fields are separated by blanks and tabs. A bare field runs to the next blank; a `"` in it is
//! its last character. A quoted field runs to the closing `"`; `\` makes the next character
//! literal. `#` starts a comment where a field could start. There are no continuation lines.
//!
//! All that the original libraries accept is accepted here with the same meaning. In addition,
//! lines may end in CR LF. A quote that is not closed is a fault of its line (the originals corrupt
//! their heap), and so is an API version without a dot (they read past the end of the text). So is a
//! line of more than 8191 bytes, for which there may be no memory.

use std::ffi::CString;
use std::fmt;

/// Fields of an entry.
const FIELDS: usize = 8;
/// The longest name, in bytes: `DAT_NAME_MAX_LENGTH` less the terminating NUL.
const NAME_MAX: usize = 255;
/// The longest line, in bytes. What is made of it fits into the reserve of memory.
const LINE_MAX: usize = 8191;

/// An entry of `dat.conf`, as written. Of the provider version the form is checked and nothing kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Name of the interface adapter, 0 to 255 bytes.
    pub name: CString,
    /// User-level entry (`u`); the other kind is `k`, kernel-level.
    pub user: bool,
    /// Major version of the DAT API.
    pub major: u32,
    /// Minor version of the DAT API.
    pub minor: u32,
    /// `threadsafe` or `nonthreadsafe`.
    pub thread_safe: bool,
    /// `default` or `nondefault`.
    pub default: bool,
    /// Provider library, for `dlopen`; or `builtin:NAME`.
    pub library: CString,
    /// The instance data for the provider's init function.
    pub ia_params: CString,
    /// Whether there are platform parameters, which no provider gets.
    pub has_platform_params: bool,
}

impl Line {
    /// Whether the registry installs the entry; others are checked and ignored.
    pub fn installed(&self) -> bool {
        self.user && self.default
    }
}

/// The fault of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The line is longer than 8191 bytes.
    Length,
    /// A quoted field without a closing quote.
    Quote,
    /// A NUL byte, which no C string can hold.
    Nul,
    /// Fewer than eight fields; how many there are.
    Missing(usize),
    /// More than eight fields.
    Excess,
    /// The name is longer than 255 bytes.
    Name,
    /// Not `u` or `k` and two numbers with a dot between.
    Api,
    /// Neither `threadsafe` nor `nonthreadsafe`.
    Safety,
    /// Neither `default` nor `nondefault`.
    Default,
    /// Not an identifier and two numbers, with dots between.
    ProviderVersion,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Length => write!(f, "the line is longer than {LINE_MAX} bytes"),
            Fault::Quote => f.write_str("a quote is not closed"),
            Fault::Nul => f.write_str("a NUL byte in the line"),
            Fault::Missing(found) => write!(f, "only {found} of the {FIELDS} fields of an entry"),
            Fault::Excess => write!(f, "more than the {FIELDS} fields of an entry"),
            Fault::Name => write!(f, "field 1 (IA name) is longer than {NAME_MAX} bytes"),
            Fault::Api => f.write_str("field 2 (API version) is not of the form u2.0"),
            Fault::Safety => {
                f.write_str("field 3 (thread safety) is neither threadsafe nor nonthreadsafe")
            }
            Fault::Default => f.write_str("field 4 is neither default nor nondefault"),
            Fault::ProviderVersion => {
                f.write_str("field 6 (provider version) is not of the form name.1.0")
            }
        }
    }
}

/// The entries and faults of a file, in order, each with its line number from 1. Lines without
/// an entry give nothing.
pub fn parse(text: &[u8]) -> impl Iterator<Item = (usize, Result<Line, Fault>)> {
    text.split(|&byte| byte == b'\n')
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, parse_line(line).transpose()?)))
}

/// One line, without its newline. `None` if there is no entry in it.
fn parse_line(line: &[u8]) -> Result<Option<Line>, Fault> {
    if line.len() > LINE_MAX {
        return Err(Fault::Length);
    }
    let mut rest = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields: [Vec<u8>; FIELDS] = Default::default();
    let mut count = 0;
    while let Some((field, after)) = token(rest)? {
        *fields.get_mut(count).ok_or(Fault::Excess)? = field;
        count += 1;
        rest = after;
    }
    match count {
        0 => return Ok(None),
        FIELDS => {}
        _ => return Err(Fault::Missing(count)),
    }
    let [
        name,
        api,
        safety,
        default,
        library,
        provider_version,
        ia_params,
        platform_params,
    ] = fields;
    if name.len() > NAME_MAX {
        return Err(Fault::Name);
    }
    let (user, major, minor) = api_version(&api).ok_or(Fault::Api)?;
    let thread_safe = flag(&safety, b"threadsafe").ok_or(Fault::Safety)?;
    let default = flag(&default, b"default").ok_or(Fault::Default)?;
    check_provider_version(&provider_version).ok_or(Fault::ProviderVersion)?;
    let c_string = |bytes| CString::new(bytes).map_err(|_| Fault::Nul);
    Ok(Some(Line {
        name: c_string(name)?,
        user,
        major,
        minor,
        thread_safe,
        default,
        library: c_string(library)?,
        ia_params: c_string(ia_params)?,
        has_platform_params: !platform_params.trim_ascii().is_empty(),
    }))
}

/// A field, unquoted, and the text after it.
type Token<'a> = (Vec<u8>, &'a [u8]);

/// The first field of `text` and what follows it; `None` at the end or at a comment.
fn token(text: &[u8]) -> Result<Option<Token<'_>>, Fault> {
    let start = text.iter().position(|&byte| !is_blank(byte));
    let text = &text[start.unwrap_or(text.len())..];
    match text.first() {
        None | Some(b'#') => Ok(None),
        Some(b'"') => quoted(&text[1..]).map(Some),
        Some(_) => {
            let end = text
                .iter()
                .position(|&byte| is_blank(byte) || byte == b'"')
                .map_or(text.len(), |end| end + usize::from(text[end] == b'"'));
            Ok(Some((text[..end].to_vec(), &text[end..])))
        }
    }
}

/// A quoted field whose opening quote has been read.
fn quoted(text: &[u8]) -> Result<Token<'_>, Fault> {
    let mut field = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((index, &byte)) = bytes.next() {
        match byte {
            b'"' => return Ok((field, &text[index + 1..])),
            b'\\' => field.push(*bytes.next().ok_or(Fault::Quote)?.1),
            _ => field.push(byte),
        }
    }
    Err(Fault::Quote)
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Whether a field begins with `word` or with `non` and `word`. Any text may follow.
fn flag(field: &[u8], word: &[u8]) -> Option<bool> {
    if field.starts_with(word) {
        Some(true)
    } else {
        field
            .strip_prefix(b"non")
            .is_some_and(|rest| rest.starts_with(word))
            .then_some(false)
    }
}

/// `u` or `k`, digits, a dot, digits. Missing digits are 0 and numbers wrap at 32 bits, as in
/// the originals.
fn api_version(field: &[u8]) -> Option<(bool, u32, u32)> {
    let user = match field.first()? {
        b'u' => true,
        b'k' => false,
        _ => return None,
    };
    let version = &field[1..];
    let dot = version.iter().position(|&byte| byte == b'.')?;
    Some((user, number(&version[..dot])?, number(&version[dot + 1..])?))
}

/// An identifier, a dot, digits, a dot, digits.
fn check_provider_version(field: &[u8]) -> Option<()> {
    let mut parts = field.split(|&byte| byte == b'.');
    let id = parts.next()?;
    number(parts.next()?)?;
    number(parts.next()?)?;
    (!id.is_empty() && parts.next().is_none()).then_some(())
}

/// A string of decimal digits, modulo 2^32.
fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |value, &byte| {
        byte.is_ascii_digit()
            .then(|| value.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')))
    })
}

#[cfg(test)]
mod tests;
