//! The facts as static assertions in C and C++.

use std::fmt::Write;

use crate::facts::{Facts, Function, Typed};

/// Which declarations the assertions are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The headers in `include/`.
    Headers,
    /// The header that cbindgen makes of the Rust types. It has no enum tags, no functions, no
    /// function-like macros, and says `void *` where Rust has no name for the pointee.
    Rust,
}

/// What the assertions say, in both languages.
const PRELUDE: &str = r"
#include <stddef.h>
#ifdef __cplusplus
#include <type_traits>
#define CHECK(...) static_assert(__VA_ARGS__, #__VA_ARGS__)
#define SAME(...) (std::is_same<__VA_ARGS__>::value)
#define TYPE_OF_MEMBER(s, m) decltype(((s *)0)->m)
#define TYPE_OF(x) decltype(x)
#define ALIGN_OF(t) alignof(t)
template <class T> constexpr bool is_signed() {
    if constexpr (std::is_enum<T>::value)
        return std::is_signed<typename std::underlying_type<T>::type>::value;
    else
        return std::is_signed<T>::value;
}
#define SIGNED(t) is_signed<t>()
#else
#define CHECK(...) _Static_assert(__VA_ARGS__, #__VA_ARGS__)
#define SAME(...) __builtin_types_compatible_p(__VA_ARGS__)
#define TYPE_OF_MEMBER(s, m) __typeof__(((s *)0)->m)
#define TYPE_OF(x) __typeof__(x)
#define ALIGN_OF(t) _Alignof(t)
#define SIGNED(t) (!((t)-1 > (t)0))
#endif
";

/// `RETURN (*)(TYPE, TYPE)`
pub fn pointer_type(function: &Function) -> String {
    let types: Vec<&str> = function.params.iter().map(|p| p.ty.as_str()).collect();
    format!("{} (*)({})", function.returns, types.join(", "))
}

/// An integer literal of a type that holds it.
fn literal(number: i128) -> String {
    match number {
        n if n > i128::from(u32::MAX) => format!("{n}ULL"),
        n if n > i128::from(i32::MAX) => format!("{n}U"),
        n => n.to_string(),
    }
}

struct Writer {
    subject: Subject,
    text: String,
}

impl Writer {
    fn check(&mut self, condition: impl AsRef<str>) {
        writeln!(self.text, "CHECK({});", condition.as_ref()).unwrap();
    }

    /// The type as the subject spells it.
    fn ty(&self, ty: &str) -> String {
        match (self.subject, ty) {
            (Subject::Rust, "struct ibv_ah *" | "va_list") => "void *".to_owned(),
            _ => ty.to_owned(),
        }
    }

    /// A member as the subject names it: Rust has no unnamed unions.
    fn member(&self, aggregate: &str, path: &str) -> String {
        match (self.subject, aggregate, path) {
            (Subject::Rust, "DAT_IB_EXTENSION_EVENT_DATA", "remote_ah" | "coll") => {
                format!("peer.{path}")
            }
            _ => path.to_owned(),
        }
    }

    fn scalars(&mut self, facts: &Facts) {
        for s in &facts.scalars {
            self.check(format!("sizeof({}) == {}", s.name, s.size));
            self.check(format!("ALIGN_OF({}) == {}", s.name, s.size));
            if let Some(signed) = s.signed {
                self.check(format!("SIGNED({}) == {}", s.name, u8::from(signed)));
            }
            self.check(format!("SAME({}, {})", s.name, s.ty));
        }
        for a in &facts.aliases {
            self.check(format!("sizeof({}) == {}", a.name, a.size));
            self.check(format!("ALIGN_OF({}) == {}", a.name, a.align));
            self.check(format!("SAME({}, {})", a.name, a.ty));
        }
    }

    fn enums(&mut self, facts: &Facts) {
        for e in &facts.enums {
            self.check(format!("sizeof({}) == {}", e.name, e.size));
            self.check(format!("SIGNED({}) == 0", e.name));
            if self.subject == Subject::Headers {
                self.check(format!("SAME({}, enum {})", e.name, e.tag));
            }
            for (name, number) in &e.values {
                self.check(format!("{name} == {}", literal(*number)));
            }
        }
    }

    /// Pointer constants are no constant expressions; the programs look at them.
    fn consts(&mut self, facts: &Facts) {
        for c in facts.consts.iter().filter(|c| !c.ty.ends_with('*')) {
            self.check(format!("{} == {}", c.name, literal(c.number)));
            if self.subject == Subject::Headers {
                // In C an enumerator is an int; in C++ it has the type of its enumeration.
                writeln!(self.text, "#ifndef __cplusplus").unwrap();
                self.check(format!("SAME(TYPE_OF({}), {})", c.name, c.ty));
                writeln!(self.text, "#endif").unwrap();
            }
        }
    }

    fn field(&mut self, aggregate: &str, path: &str, offset: usize, size: usize, ty: &str) {
        let path = self.member(aggregate, path);
        self.check(format!("offsetof({aggregate}, {path}) == {offset}"));
        self.check(format!("sizeof((({aggregate} *)0)->{path}) == {size}"));
        if ty == "union" {
            return;
        }
        let same = format!("SAME(TYPE_OF_MEMBER({aggregate}, {path}), {})", self.ty(ty));
        if ty.starts_with("const ") && ty.ends_with(']') {
            // The headers leave the const of a member array out in C++.
            writeln!(self.text, "#ifndef __cplusplus\nCHECK({same});\n#endif").unwrap();
        } else {
            self.check(same);
        }
    }

    fn aggregates(&mut self, facts: &Facts) {
        for a in &facts.aggregates {
            self.check(format!("sizeof({}) == {}", a.name, a.size));
            self.check(format!("ALIGN_OF({}) == {}", a.name, a.align));
            if self.subject == Subject::Headers {
                self.check(format!("SAME({}, {} {})", a.name, a.kind, a.tag));
            }
            for f in &a.fields {
                self.field(&a.name, &f.path, f.offset, f.size, &f.ty);
            }
        }
        for s in &facts.slots {
            assert_eq!(
                s.offset,
                s.number * 8,
                "slot {} is a pointer in a row of them",
                s.member
            );
            self.field("DAT_PROVIDER", &s.member, s.offset, 8, &s.ty);
        }
    }

    fn functions(&mut self, facts: &Facts) {
        for f in &facts.fnptrs {
            let ty = Function {
                name: f.name.clone(),
                returns: f.returns.clone(),
                params: f
                    .params
                    .iter()
                    .map(|p| Typed {
                        name: p.name.clone(),
                        ty: self.ty(&p.ty),
                    })
                    .collect(),
            };
            self.check(format!("SAME({}, {})", f.name, pointer_type(&ty)));
        }
        if self.subject == Subject::Rust {
            return;
        }
        for f in &facts.funcs {
            self.check(format!("SAME(TYPE_OF(&{}), {})", f.name, pointer_type(f)));
        }
    }

    fn macros(&mut self, facts: &Facts) {
        if self.subject == Subject::Rust {
            return;
        }
        let objects = facts.renames.iter().map(|(name, _)| name);
        let functions = facts.macros.iter().map(|(name, _)| name);
        for name in objects.chain(functions) {
            writeln!(self.text, "#ifndef {name}\n#error {name}\n#endif").unwrap();
        }
        for (name, text) in &facts.strings {
            self.check(format!("sizeof({name}) == {}", text.len() + 1));
        }
    }
}

/// A source that compiles when the declarations in `includes` are as the facts say.
pub fn assertions(facts: &Facts, subject: Subject, includes: &str) -> String {
    let mut writer = Writer {
        subject,
        text: format!("{includes}{PRELUDE}"),
    };
    writer.scalars(facts);
    writer.enums(facts);
    writer.consts(facts);
    writer.aggregates(facts);
    writer.functions(facts);
    writer.macros(facts);
    writer.text
}
