//! Plain text, of the sources and of the rows, as mdoc(7).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::rows::Row;

/// What a page knows of names in its text.
pub struct Names<'a> {
    /// The functions of the page itself.
    pub own: &'a [String],
    /// All functions that have a page.
    pub functions: &'a BTreeSet<String>,
    pub parameters: BTreeSet<String>,
    pub types: &'a BTreeSet<String>,
    /// Rows that the soft provider gives no caller a chance to see, with the reason.
    pub excluded: &'a BTreeMap<String, String>,
}

/// The rows have short names of these.
const COMPLETION_FLAGS: [&str; 5] = [
    "SUPPRESS",
    "SOLICITED_WAIT",
    "UNSIGNALLED",
    "BARRIER_FENCE",
    "EVD_THRESHOLD",
];

/// The longest line of a page, in characters.
const WIDTH: usize = 100;

/// Text that stands for itself.
pub fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('→', "\\(->");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// A word without the punctuation around it, which is what stands before it and what behind.
fn trimmed(word: &str) -> (&str, &str, &str) {
    let opening = word.len() - word.trim_start_matches(['(', '[']).len();
    let (before, rest) = word.split_at(opening);
    let core = rest.trim_end_matches(['.', ',', ';', ':', ')', ']', '?', '!']);
    // A name of a page ends with the number of its section.
    let core = match page(&rest[..rest.len().min(core.len() + 1)]) {
        Some(_) => &rest[..core.len() + 1],
        None => core,
    };
    (before, core, &rest[core.len()..])
}

/// The name and section of a page such as `dat.conf(5)`.
pub fn page(word: &str) -> Option<(&str, &str)> {
    let (name, section) = word.strip_suffix(')')?.split_once('(')?;
    let digit = section.len() == 1 && section.chars().all(|c| c.is_ascii_digit());
    (digit && !name.is_empty()).then_some((name, section))
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Names<'_> {
    /// The macro that marks a word up, if it is a name. `literal`: the word stood in backticks.
    fn macro_of(&self, word: &str, literal: bool) -> Option<String> {
        if let Some((name, section)) = page(word) {
            return Some(format!("Xr {name} {section}"));
        }
        let function = word.strip_suffix("()").unwrap_or(word);
        if self.own.iter().any(|own| own == function) {
            return Some(format!("Fn {function}"));
        }
        if self.functions.contains(function) {
            return Some(format!("Xr {function} 3"));
        }
        if COMPLETION_FLAGS.contains(&word) {
            return Some(format!("Dv DAT_COMPLETION_{word}_FLAG"));
        }
        if self.types.contains(word) {
            return Some(format!("Vt {word}"));
        }
        let constant = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if is_name(word) && word.contains('_') && word.chars().all(constant) || word == "NULL" {
            return Some(format!("Dv {word}"));
        }
        if is_name(word) && self.parameters.contains(word) && (literal || word.contains('_')) {
            return Some(format!("Fa {word}"));
        }
        if literal {
            return Some(match word {
                _ if word.starts_with('/') => format!("Pa {word}"),
                _ if is_name(word) && !word.contains('=') => format!("Va {word}"),
                _ => format!("Ql {}", quoted(word)),
            });
        }
        (is_name(word) && word.contains('_')).then(|| format!("Va {word}"))
    }

    /// One paragraph, or what stands in a list.
    pub fn text(&self, text: &str) -> String {
        let mut page = String::new();
        let mut line = String::new();
        let mut end_line = |line: &mut String, marked: Option<String>| {
            if !line.is_empty() {
                page.push_str(&escape(line));
                page.push('\n');
                line.clear();
            }
            if let Some(marked) = marked {
                page.push_str(&marked);
                page.push('\n');
            }
        };
        for (word, literal) in words(text) {
            let (before, core, behind) = match literal {
                true => literal_parts(&word),
                false => trimmed(&word),
            };
            if let Some(marked) = self.macro_of(core, literal) {
                let prefix = match before {
                    "" => String::new(),
                    before => format!("Pf {before} "),
                };
                let behind: String = behind.chars().map(|c| format!(" {c}")).collect();
                end_line(&mut line, Some(format!(".{prefix}{marked}{behind}")));
                continue;
            }
            if line.chars().count() + word.chars().count() >= WIDTH {
                end_line(&mut line, None);
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
            if word.trim_end_matches(')').ends_with(['.', '?', '!']) {
                end_line(&mut line, None);
            }
        }
        end_line(&mut line, None);
        page
    }

    /// A sentence of a fragment: rows of the matrix are fragments.
    pub fn sentence(&self, fragment: &str) -> String {
        let fragment = fragment.trim_end_matches(" (2.0)");
        let first = fragment.split([' ', ':', ',']).next().unwrap_or_default();
        let mut sentence = self.capitalized(fragment, first);
        if !sentence.ends_with(['.', '?', '!']) {
            sentence.push('.');
        }
        self.text(&sentence)
    }

    /// The condition of a code, an event or a state.
    pub fn condition(&self, row: &Row) -> String {
        let mut text = self.sentence(row.condition);
        if let Some(reason) = self.excluded.get(row.id) {
            text += &self.text(&format!("The soft provider does not give it: {reason}."));
        }
        text
    }

    /// With a capital letter in front, unless the first word is a name.
    fn capitalized(&self, text: &str, first: &str) -> String {
        if self.parameters.contains(first) {
            return format!("`{first}`{}", &text[first.len()..]);
        }
        if self.macro_of(first, false).is_some() || first.contains(['_', '`']) {
            return text.to_owned();
        }
        let mut chars = text.chars();
        let head = chars.next().map(|c| c.to_ascii_uppercase());
        head.into_iter().chain(chars).collect()
    }

    /// Paragraphs and lists.
    pub fn paragraphs(&self, text: &str) -> String {
        let mut page = String::new();
        for (number, paragraph) in text.split("\n\n").map(|p| p.trim_matches('\n')).enumerate() {
            let is_item = |line: &str| line.starts_with("- ") || line.starts_with("* ");
            let (head, items) = match paragraph.lines().position(is_item) {
                Some(0) => ("", paragraph),
                Some(_) => {
                    let at = paragraph
                        .find("\n- ")
                        .into_iter()
                        .chain(paragraph.find("\n* "));
                    paragraph.split_at(at.min().unwrap_or(paragraph.len()) + 1)
                }
                None => (paragraph, ""),
            };
            if number > 0 && !head.is_empty() {
                page.push_str(".Pp\n");
            }
            page.push_str(&self.text(head));
            if !items.is_empty() {
                page.push_str(&self.list(items));
            }
        }
        page
    }

    fn list(&self, text: &str) -> String {
        let tagged = text.starts_with("* ");
        let mut items: Vec<String> = Vec::new();
        for line in text.lines() {
            match (
                line.strip_prefix("- ").or(line.strip_prefix("* ")),
                items.last_mut(),
            ) {
                (Some(item), _) => items.push(item.to_owned()),
                (None, Some(item)) => {
                    item.push('\n');
                    item.push_str(line);
                }
                (None, None) => items.push(line.to_owned()),
            }
        }
        let mut page = match tagged {
            true => ".Bl -tag -width Ds\n".to_owned(),
            false => ".Bl -bullet\n".to_owned(),
        };
        for item in items {
            match item.split_once(": ") {
                Some((term, text)) if tagged => {
                    page.push_str(&self.item(term));
                    page.push_str(&self.sentence(text));
                }
                _ => {
                    page.push_str(".It\n");
                    page.push_str(&self.sentence(&item));
                }
            }
        }
        page + ".El\n"
    }

    /// The line of a tagged item.
    pub fn item(&self, term: &str) -> String {
        let mut line = ".It".to_owned();
        for (word, literal) in words(term) {
            let (before, core, behind) = match literal {
                true => literal_parts(&word),
                false => trimmed(&word),
            };
            let _ = match self.macro_of(core, literal).filter(|_| before.is_empty()) {
                Some(marked) if behind.is_empty() => write!(line, " {marked}"),
                Some(marked) => write!(line, " {marked} {behind}"),
                None => write!(line, " No {}", escape(&word)),
            };
        }
        line + "\n"
    }
}

/// An argument with blanks or quotes.
fn quoted(word: &str) -> String {
    let word = escape(word).replace('"', "\\(dq");
    match word.contains(' ') {
        true => format!("\"{word}\""),
        false => word,
    }
}

/// The words of a text, and whether each stood in backticks, with its punctuation.
fn words(text: &str) -> Vec<(String, bool)> {
    let mut words: Vec<(String, bool)> = Vec::new();
    let (mut word, mut inside, mut literal) = (String::new(), false, false);
    for c in text.chars().chain(std::iter::once(' ')) {
        if c == '`' {
            inside = !inside;
            literal = true;
            word.push(c);
        } else if c.is_whitespace() && !inside {
            if !word.is_empty() {
                words.push((std::mem::take(&mut word), literal));
            }
            literal = false;
        } else {
            word.push(if c.is_whitespace() { ' ' } else { c });
        }
    }
    words
}

/// A word in backticks without them, and what stands before and behind.
fn literal_parts(word: &str) -> (&str, &str, &str) {
    let mut parts = word.splitn(3, '`');
    let before = parts.next().unwrap_or_default();
    let core = parts.next().unwrap_or_default();
    (before, core, parts.next().unwrap_or_default())
}

#[test]
fn names_are_marked_up_and_their_punctuation_is_not() {
    let own = ["dat_a_call".to_owned()];
    let functions = BTreeSet::from(["dat_b_call".to_owned()]);
    let names = Names {
        own: &own,
        functions: &functions,
        parameters: BTreeSet::from(["event".to_owned(), "ia_handle".to_owned()]),
        types: &BTreeSet::from(["DAT_EVENT".to_owned()]),
        excluded: &BTreeMap::new(),
    };
    let text = "An event (DAT_EVENT), of dat_b_call or dat_a_call: `event`, ia_handle, and NULL.";
    let marked = "An event\n.Pf ( Vt DAT_EVENT ) ,\nof\n.Xr dat_b_call 3\nor\n.Fn dat_a_call :\n\
                  .Fa event ,\n.Fa ia_handle ,\nand\n.Dv NULL .\n";
    assert_eq!(names.text(text), marked);
    assert_eq!(
        names.sentence("event is of dat.conf(5)"),
        ".Fa event\nis of\n.Xr dat.conf 5 .\n"
    );
    assert_eq!(names.sentence("done (2.0)"), "Done.\n");
    assert_eq!(
        names.text(".Xr is no macro here"),
        "\\&.Xr is no macro here\n"
    );
    let list = "One:\n* `event`: first\n* other: second";
    let marked = "One:\n.Bl -tag -width Ds\n.It Fa event\nFirst.\n.It No other\nSecond.\n.El\n";
    assert_eq!(names.paragraphs(list), marked);
}
