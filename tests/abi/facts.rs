//! Reads the fact tables `abi/*.facts`; their head explains the lines.

use std::path::Path;

/// A name with a C type.
#[derive(Debug)]
pub struct Typed {
    pub name: String,
    pub ty: String,
}

/// A function or a pointer to one.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub returns: String,
    pub params: Vec<Typed>,
}

#[derive(Debug)]
pub struct Scalar {
    pub name: String,
    pub size: usize,
    /// `None` for a pointer.
    pub signed: Option<bool>,
    pub ty: String,
}

#[derive(Debug)]
pub struct Alias {
    pub name: String,
    pub size: usize,
    pub align: usize,
    pub ty: String,
}

#[derive(Debug)]
pub struct Enum {
    pub tag: String,
    pub name: String,
    pub size: usize,
    /// Enumerators and their numbers.
    pub values: Vec<(String, i128)>,
}

#[derive(Debug)]
pub struct Const {
    pub name: String,
    pub number: i128,
    pub ty: String,
}

#[derive(Debug)]
pub struct Field {
    pub path: String,
    pub offset: usize,
    pub size: usize,
    /// `union` for an unnamed union.
    pub ty: String,
}

#[derive(Debug)]
pub struct Aggregate {
    /// `struct` or `union`.
    pub kind: String,
    pub tag: String,
    pub name: String,
    pub size: usize,
    pub align: usize,
    pub fields: Vec<Field>,
}

#[derive(Debug)]
pub struct Slot {
    pub number: usize,
    pub member: String,
    pub offset: usize,
    pub ty: String,
}

/// A macro over `dat_extension_op`.
#[derive(Debug)]
pub struct ExtOp {
    pub name: String,
    pub handle: String,
    pub op: String,
    pub args: Vec<Typed>,
}

/// All facts about one version.
#[derive(Debug, Default)]
pub struct Facts {
    pub scalars: Vec<Scalar>,
    pub aliases: Vec<Alias>,
    pub enums: Vec<Enum>,
    pub consts: Vec<Const>,
    /// Name and text.
    pub strings: Vec<(String, String)>,
    /// Name and type.
    pub objects: Vec<Typed>,
    /// Name and what it stands for.
    pub renames: Vec<(String, String)>,
    pub aggregates: Vec<Aggregate>,
    pub fnptrs: Vec<Function>,
    pub slots: Vec<Slot>,
    pub funcs: Vec<Function>,
    pub symbols: Vec<String>,
    /// Name and parameters.
    pub macros: Vec<(String, Vec<String>)>,
    /// Macro and the member of the provider table that it calls.
    pub calls: Vec<(String, String)>,
    pub extops: Vec<ExtOp>,
}

impl Facts {
    /// Reads a file of `abi/`.
    pub fn read(file: &str) -> Facts {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        Facts::parse(&text)
    }

    /// Panics on a line that it does not understand.
    pub fn parse(text: &str) -> Facts {
        let mut facts = Facts::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            facts
                .line(line)
                .unwrap_or_else(|| panic!("line {}: {line}", index + 1));
        }
        facts
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        let mut words = rest.split(' ');
        let mut word = || words.next().map(str::to_owned);
        match kind {
            "scalar" => {
                let (name, size) = (word()?, word()?.parse().ok()?);
                let signed = match word()?.as_str() {
                    "signed" => Some(true),
                    "unsigned" => Some(false),
                    "pointer" => None,
                    _ => return None,
                };
                self.scalars.push(Scalar {
                    name,
                    size,
                    signed,
                    ty: rest_of(words)?,
                });
            }
            "alias" => self.aliases.push(Alias {
                name: word()?,
                size: word()?.parse().ok()?,
                align: word()?.parse().ok()?,
                ty: rest_of(words)?,
            }),
            "enum" => self.enums.push(Enum {
                tag: word()?,
                name: word()?,
                size: word()?.parse().ok()?,
                values: Vec::new(),
            }),
            "value" => {
                let of = self.enums.last_mut()?;
                if of.tag != word()? {
                    return None;
                }
                of.values.push((word()?, number(&word()?)?));
            }
            "const" => self.consts.push(Const {
                name: word()?,
                number: number(&word()?)?,
                ty: rest_of(words)?,
            }),
            "string" => {
                let name = word()?;
                let text = rest_of(words)?
                    .strip_prefix('"')?
                    .strip_suffix('"')?
                    .to_owned();
                self.strings.push((name, text));
            }
            "object" => self.objects.push(Typed {
                name: word()?,
                ty: rest_of(words)?,
            }),
            "rename" => self.renames.push((word()?, word()?)),
            "struct" | "union" => self.aggregates.push(Aggregate {
                kind: kind.to_owned(),
                tag: word()?,
                name: word()?,
                size: word()?.parse().ok()?,
                align: word()?.parse().ok()?,
                fields: Vec::new(),
            }),
            "field" => {
                let of = self.aggregates.last_mut()?;
                if of.name != word()? {
                    return None;
                }
                of.fields.push(Field {
                    path: word()?,
                    offset: word()?.parse().ok()?,
                    size: word()?.parse().ok()?,
                    ty: rest_of(words)?,
                });
            }
            "slot" => self.slots.push(Slot {
                number: word()?.parse().ok()?,
                member: word()?,
                offset: word()?.parse().ok()?,
                ty: rest_of(words)?,
            }),
            "fnptr" | "func" => {
                let (name, _header, returns) = (word()?, word()?, word()?);
                let params = parameters(&rest_of(words)?)?;
                let function = Function {
                    name,
                    returns,
                    params,
                };
                if kind == "func" {
                    &mut self.funcs
                } else {
                    &mut self.fnptrs
                }
                .push(function);
            }
            "symbol" => self.symbols.push(word()?),
            "macro" => {
                let name = word()?;
                let list = rest_of(words)?;
                let list = list.strip_prefix('(')?.strip_suffix(')')?;
                self.macros
                    .push((name, list.split(", ").map(str::to_owned).collect()));
            }
            "call" => self.calls.push((word()?, word()?)),
            "extop" => self.extops.push(ExtOp {
                name: word()?,
                handle: word()?,
                op: word()?,
                args: parameters(&rest_of(words)?)?,
            }),
            _ => return None,
        }
        Some(())
    }

    /// The function pointer type of a member of the provider table.
    pub fn slot_type(&self, member: &str) -> (&Slot, &Function) {
        let slot = self
            .slots
            .iter()
            .find(|s| s.member == member)
            .expect("a slot of that name");
        let ty = self
            .fnptrs
            .iter()
            .find(|f| f.name == slot.ty)
            .expect("the type of the slot");
        (slot, ty)
    }
}

fn rest_of<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let rest = words.collect::<Vec<_>>().join(" ");
    (!rest.is_empty()).then_some(rest)
}

fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `(TYPE NAME, TYPE NAME, ...)`; a bare `...` has no name.
fn parameters(list: &str) -> Option<Vec<Typed>> {
    let list = list.strip_prefix('(')?.strip_suffix(')')?;
    if list.is_empty() {
        return Some(Vec::new());
    }
    list.split(", ")
        .map(|param| {
            let (ty, name) = param.rsplit_once(' ').unwrap_or((param, ""));
            Some(Typed {
                name: name.to_owned(),
                ty: ty.to_owned(),
            })
        })
        .collect()
}
