//! C programs over the headers: one prints what it sees, one calls every macro.

use std::fmt::Write;

use crate::facts::{Facts, Typed};

/// Lines of [`report_program`] for these facts.
pub fn expected_report(facts: &Facts) -> String {
    let mut text = String::new();
    for e in &facts.enums {
        for (name, number) in &e.values {
            writeln!(text, "value {name} {number}").unwrap();
        }
    }
    for c in &facts.consts {
        writeln!(text, "const {} {}", c.name, c.number).unwrap();
    }
    for (name, string) in &facts.strings {
        writeln!(text, "string {name} {string}").unwrap();
    }
    for (name, _) in &facts.renames {
        writeln!(text, "rename {name} 1").unwrap();
    }
    for o in &facts.objects {
        writeln!(text, "object {} 1", o.name).unwrap();
    }
    for a in &facts.aggregates {
        writeln!(text, "aggregate {} {} {}", a.name, a.size, a.align).unwrap();
        for f in &a.fields {
            writeln!(text, "field {} {} {} {}", a.name, f.path, f.offset, f.size).unwrap();
        }
    }
    for s in &facts.slots {
        writeln!(text, "slot {} {} 8", s.member, s.offset).unwrap();
    }
    text
}

/// A program that prints numbers, texts and offsets as the compiler sees them.
pub fn report_program(facts: &Facts, includes: &str) -> String {
    let mut text = format!(
        "{includes}#include <inttypes.h>\n#include <stdio.h>\n#include <string.h>\n\
         #define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\nint main(void)\n{{\n"
    );
    let out = &mut text;
    for e in &facts.enums {
        for (name, _) in &e.values {
            writeln!(
                out,
                r#"printf("value {name} %lld\n", (long long)({name}));"#
            )
            .unwrap();
        }
    }
    for c in &facts.consts {
        let pointer = if c.ty.ends_with('*') {
            "(intptr_t)"
        } else {
            ""
        };
        writeln!(
            out,
            r#"printf("const {0} %lld\n", (long long){pointer}({0}));"#,
            c.name
        )
        .unwrap();
    }
    for (name, _) in &facts.strings {
        writeln!(out, r#"printf("string {name} %s\n", {name});"#).unwrap();
    }
    for (name, meaning) in &facts.renames {
        let same = format!("strcmp(TEXT({name}), TEXT({meaning})) == 0");
        writeln!(out, r#"printf("rename {name} %d\n", {same});"#).unwrap();
    }
    for o in &facts.objects {
        writeln!(
            out,
            "{{ {0} value = {1}, zero; memset(&zero, 0, sizeof zero);",
            o.ty, o.name
        )
        .unwrap();
        let same = "memcmp(&value, &zero, sizeof zero) == 0";
        writeln!(out, r#"printf("object {} %d\n", {same}); }}"#, o.name).unwrap();
    }
    for a in &facts.aggregates {
        let name = &a.name;
        writeln!(
            out,
            r#"printf("aggregate {name} %zu %zu\n", sizeof({name}), _Alignof({name}));"#
        )
        .unwrap();
        for f in &a.fields {
            let path = &f.path;
            writeln!(
                out,
                r#"printf("field {name} {path} %zu %zu\n", offsetof({name}, {path}), sizeof((({name} *)0)->{path}));"#
            )
            .unwrap();
        }
    }
    for s in &facts.slots {
        let member = &s.member;
        writeln!(
            out,
            r#"printf("slot {member} %zu %zu\n", offsetof(DAT_PROVIDER, {member}), sizeof(((DAT_PROVIDER *)0)->{member}));"#
        )
        .unwrap();
    }
    text.push_str("return 0;\n}\n");
    text
}

/// The type of a variable that a parameter is passed from: without a `const` of its own.
fn variable_type(param: &Typed) -> &str {
    match param.ty.strip_prefix("const ") {
        Some(rest) if !rest.ends_with('*') => rest,
        _ => &param.ty,
    }
}

/// Variables that differ from each other in every byte, to be passed as arguments.
fn variables(out: &mut String, prefix: &str, params: &[Typed]) {
    for (i, p) in params.iter().enumerate().filter(|(_, p)| p.ty != "va_list") {
        writeln!(out, "static {} {prefix}{i};", variable_type(p)).unwrap();
    }
}

fn fill(out: &mut String, prefix: &str, params: &[Typed]) {
    for (i, _) in params.iter().enumerate().filter(|(_, p)| p.ty != "va_list") {
        writeln!(
            out,
            "memset((void *)&{prefix}{i}, {}, sizeof {prefix}{i});",
            i + 1
        )
        .unwrap();
    }
}

/// A program that calls every redirection macro and every macro over `dat_extension_op` and
/// prints the name of each whose arguments arrived, all of them and in order, where they belong.
pub fn calls_program(facts: &Facts, includes: &str) -> String {
    let mut functions = String::new();
    let mut body = String::new();
    for (name, member) in &facts.calls {
        let (slot, ty) = facts.slot_type(member);
        let list: Vec<String> = ty
            .params
            .iter()
            .enumerate()
            .map(|(i, p)| format!("{} a{i}", p.ty))
            .collect();
        variables(&mut functions, &format!("{name}_"), &ty.params);
        writeln!(
            functions,
            "static DAT_RETURN f_{name}({})\n{{",
            list.join(", ")
        )
        .unwrap();
        writeln!(functions, "    int same = 1;").unwrap();
        for (i, p) in ty.params.iter().enumerate() {
            if p.ty == "va_list" {
                writeln!(functions, "    same &= va_arg(a{i}, int) == 4711;").unwrap();
            } else {
                writeln!(
                    functions,
                    "    same &= memcmp((const void *)&a{i}, (const void *)&{name}_{i}, sizeof a{i}) == 0;"
                )
                .unwrap();
            }
        }
        writeln!(functions, "    return same ? {} : 0;\n}}", slot.number).unwrap();
        let args: Vec<String> = ty
            .params
            .iter()
            .enumerate()
            .map(|(i, p)| {
                if p.ty == "va_list" {
                    "ap".into()
                } else {
                    format!("{name}_{i}")
                }
            })
            .collect();
        // A function of its own, because only a variadic one can make a va_list.
        writeln!(functions, "static DAT_RETURN c_{name}(int count, ...)\n{{").unwrap();
        writeln!(
            functions,
            "    va_list ap; DAT_RETURN ret;\n    va_start(ap, count);"
        )
        .unwrap();
        writeln!(functions, "    ret = {name}({});", args.join(", ")).unwrap();
        writeln!(functions, "    va_end(ap);\n    return ret;\n}}").unwrap();
        fill(&mut body, &format!("{name}_"), &ty.params);
        writeln!(
            body,
            "memset(&table, 0, sizeof table); table.{member} = f_{name};"
        )
        .unwrap();
        writeln!(body, "{name}_0 = object;").unwrap();
        let came = format!("c_{name}(1, 4711) == {}", slot.number);
        writeln!(body, r#"if ({came}) puts("{name}");"#).unwrap();
    }
    let mut receiver = String::new();
    for (index, x) in facts.extops.iter().enumerate() {
        let name = &x.name;
        variables(&mut functions, &format!("{name}_"), &x.args);
        fill(&mut body, &format!("{name}_"), &x.args);
        writeln!(
            receiver,
            "    case {index}:\n        same &= op == {};",
            x.op
        )
        .unwrap();
        writeln!(
            receiver,
            "        same &= handle == {};",
            if x.handle == "NULL" { "NULL" } else { "object" }
        )
        .unwrap();
        for (i, p) in x.args.iter().enumerate() {
            writeln!(
                receiver,
                "        {{ {} a = va_arg(ap, {0}); same &= memcmp((void *)&a, (void *)&{name}_{i}, sizeof a) == 0; }}",
                variable_type(p)
            )
            .unwrap();
        }
        writeln!(receiver, "        break;").unwrap();
        let (_, params) = facts
            .macros
            .iter()
            .find(|(n, _)| n == name)
            .expect("a macro");
        let args: Vec<String> = params
            .iter()
            .map(|param| match x.args.iter().position(|a| a.name == *param) {
                Some(i) => format!("{name}_{i}"),
                None => "object".to_owned(),
            })
            .collect();
        writeln!(body, "current = {index};").unwrap();
        writeln!(
            body,
            r#"if ({name}({}) == 1) puts("{name}");"#,
            args.join(", ")
        )
        .unwrap();
    }
    let extension = if facts.extops.is_empty() {
        String::new()
    } else {
        format!(
            "static int current;\n\
             DAT_RETURN dat_extension_op(DAT_HANDLE handle, DAT_EXTENDED_OP op, ...)\n{{\n\
             \x20   int same = 1;\n    va_list ap;\n    va_start(ap, op);\n    switch (current) {{\n\
             {receiver}    default:\n        same = 0;\n    }}\n    va_end(ap);\n    return same;\n}}\n"
        )
    };
    format!(
        "{includes}#include <stdarg.h>\n#include <stdio.h>\n#include <string.h>\n\
         static DAT_PROVIDER table;\nstatic DAT_PROVIDER *word = &table;\n\
         static DAT_HANDLE object = (DAT_HANDLE)&word;\n{functions}{extension}\
         int main(void)\n{{\n{body}return 0;\n}}\n"
    )
}
