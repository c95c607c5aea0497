//! Proves that the C headers and the Rust types of both DAT versions are what the fact tables
//! in `abi/` say, and that the proof notices when they are not.

#[path = "abi/assertions.rs"]
mod assertions;
#[path = "abi/cc.rs"]
mod cc;
#[path = "abi/facts.rs"]
mod facts;
#[path = "abi/programs.rs"]
mod programs;
#[path = "abi/rust.rs"]
mod rust;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use assertions::{Subject, assertions};
use cc::Language;
use facts::Facts;
use programs::{calls_program, expected_report, report_program};

/// A version of DAT: its facts and its headers.
struct Version {
    name: &'static str,
    facts: &'static str,
    directory: &'static str,
    /// The headers that together declare everything.
    all: &'static [&'static str],
}

const VERSIONS: [Version; 2] = [
    Version {
        name: "v1",
        facts: "dat-1.2.facts",
        directory: "dat",
        all: &["udat.h", "dat_registry.h"],
    },
    Version {
        name: "v2",
        facts: "dat-2.0.facts",
        directory: "dat2",
        all: &["udat.h", "dat_registry.h", "dat_ib_extensions.h"],
    },
];

impl Version {
    fn facts(&self) -> Facts {
        Facts::read(self.facts)
    }

    fn includes(&self) -> String {
        self.all
            .iter()
            .map(|h| format!("#include <{}/{h}>\n", self.directory))
            .collect()
    }
}

#[test]
fn headers_agree_with_the_facts() {
    for version in &VERSIONS {
        let source = assertions(&version.facts(), Subject::Headers, &version.includes());
        for language in [Language::C11, Language::Cxx17] {
            let name = format!("headers_{}", version.name);
            cc::check(&name, language, &source).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn each_header_compiles_alone() {
    for version in &VERSIONS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("include")
            .join(version.directory);
        for entry in std::fs::read_dir(directory).expect("the headers") {
            let header = entry
                .expect("a readable entry")
                .file_name()
                .into_string()
                .unwrap();
            // ISO C wants a declaration, and some of the headers have macros only.
            let source = format!(
                "#include <{}/{header}>\nextern int unit;\n",
                version.directory
            );
            for language in Language::ALL {
                let name = format!("alone_{}_{}", version.name, header.replace('.', "_"));
                cc::check(&name, language, &source).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

#[test]
fn a_program_needs_one_header() {
    for version in &VERSIONS {
        let source = format!(
            "#include <{}/udat.h>\n\
             int main(int argc, char **argv)\n{{\n\
             \x20   DAT_EVD_HANDLE async = DAT_HANDLE_NULL;\n    DAT_IA_HANDLE ia;\n\
             \x20   DAT_CNO_HANDLE cno;\n\
             \x20   DAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;\n\
             \x20   DAT_RETURN ret = dat_ia_open(argv[argc - 1], 8, &async, &ia);\n\
             \x20   if (DAT_GET_TYPE(ret) == DAT_PROVIDER_NOT_FOUND) return 2;\n\
             \x20   if (ret == DAT_SUCCESS) ret = dat_cno_create(ia, none, &cno);\n\
             \x20   if (ret == DAT_SUCCESS)\n\
             \x20       ret = dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL);\n\
             \x20   return ret == DAT_SUCCESS ? dat_ia_close(ia, DAT_CLOSE_DEFAULT) != DAT_SUCCESS : 1;\n}}\n",
            version.directory
        );
        for language in Language::ALL {
            let name = format!("consumer_{}", version.name);
            cc::check(&name, language, &source).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// glibc before 2.18 has `UINT64_C` in C++ only for programs that define `__STDC_CONSTANT_MACROS`.
#[test]
fn masks_need_no_macro_of_the_c_library() {
    for version in &VERSIONS {
        let source = format!(
            "#include <stdint.h>\n#undef UINT64_C\n#include <{}/udat.h>\n\
             DAT_UINT64 mask = DAT_PROVIDER_FIELD_PROVIDER_NAME;\n",
            version.directory
        );
        for language in Language::ALL {
            let name = format!("masks_{}", version.name);
            cc::check(&name, language, &source).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn a_program_includes_one_version() {
    for [first, second] in [["dat", "dat2"], ["dat2", "dat"]] {
        let source = format!("#include <{first}/udat.h>\n#include <{second}/udat.h>\n");
        for language in [Language::C11, Language::Cxx17] {
            let errors = cc::check(&format!("both_{first}"), language, &source).unwrap_err();
            let lines = errors
                .lines()
                .filter(|line| line.contains("error:"))
                .count();
            assert_eq!(lines, 1, "{errors}");
            assert!(errors.contains("not both"), "{errors}");
        }
    }
}

#[test]
fn a_program_sees_the_facts() {
    for version in &VERSIONS {
        let facts = version.facts();
        let source = report_program(&facts, &version.includes());
        let seen = cc::run(&format!("report_{}", version.name), &source);
        assert_eq!(seen, expected_report(&facts));
    }
}

#[test]
fn macros_pass_their_arguments() {
    for version in &VERSIONS {
        let facts = version.facts();
        let source = calls_program(&facts, &version.includes());
        let worked = cc::run(&format!("calls_{}", version.name), &source);
        let calls = facts.calls.iter().map(|(name, _)| name.as_str());
        let all: Vec<&str> = calls
            .chain(facts.extops.iter().map(|x| x.name.as_str()))
            .collect();
        assert_eq!(worked.lines().collect::<Vec<_>>(), all);
    }
}

/// Nothing in the headers that the facts do not know, and the other way round.
#[test]
fn headers_declare_the_facts_and_nothing_else() {
    for version in &VERSIONS {
        let facts = version.facts();
        let includes = version.includes();
        let name = format!("set_{}", version.name);
        let text = cc::preprocess(&name, &includes, &["-P"]);
        let words: Vec<&str> = text
            .split(|c: char| !(c.is_alphanumeric() || "_(=".contains(c)))
            .collect();

        let declared: BTreeSet<&str> = words
            .iter()
            .filter_map(|w| w.strip_suffix('('))
            .filter(|w| w.starts_with("dat_"))
            .collect();
        let functions: BTreeSet<&str> = facts.funcs.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(declared, functions);

        let ours = |w: &&str| w.starts_with("DAT_") || w.starts_with("DCNT_");
        let enumerators: BTreeSet<&str> = words
            .windows(2)
            .filter(|w| w[1] == "=")
            .map(|w| w[0])
            .filter(ours)
            .collect();
        let values = facts.enums.iter().flat_map(|e| &e.values);
        assert_eq!(
            enumerators,
            values
                .map(|(name, _)| name.as_str())
                .collect::<BTreeSet<_>>()
        );

        let list = cc::preprocess(&format!("macros_{}", version.name), &includes, &["-dM"]);
        let macros: BTreeSet<&str> = list
            .lines()
            .filter_map(|l| l.strip_prefix("#define "))
            // Include guards and `DAT_API` are empty.
            .filter_map(|l| l.split_once(' '))
            .filter(|(_, meaning)| !meaning.is_empty())
            .filter_map(|(word, _)| word.split('(').next())
            .filter(|w| ["DAT_", "dat_", "max_"].iter().any(|p| w.starts_with(p)))
            .collect();
        let known = facts.consts.iter().map(|c| c.name.as_str());
        let known = known.chain(facts.strings.iter().map(|(name, _)| name.as_str()));
        let known = known.chain(facts.objects.iter().map(|o| o.name.as_str()));
        let known = known.chain(facts.renames.iter().map(|(name, _)| name.as_str()));
        let known = known.chain(facts.macros.iter().map(|(name, _)| name.as_str()));
        assert_eq!(macros, known.collect::<BTreeSet<_>>());
    }
}

/// The library exports the functions that the headers declare, but for those that only 2.0
/// declares, and one that provider libraries import without a declaration.
#[test]
fn symbols_are_declared_functions() {
    for version in &VERSIONS {
        let facts = version.facts();
        let declared: BTreeSet<&str> = facts.funcs.iter().map(|f| f.name.as_str()).collect();
        let exported: BTreeSet<&str> = facts.symbols.iter().map(String::as_str).collect();
        let undeclared: Vec<&&str> = exported.difference(&declared).collect();
        assert_eq!(undeclared, [&"dats_get_ia_handle"]);
        let not_exported = declared.difference(&exported).count();
        assert_eq!(not_exported, if version.name == "v1" { 0 } else { 10 });
    }
}

#[test]
fn rust_types_agree_with_the_facts() {
    for version in &VERSIONS {
        let facts = version.facts();
        let header = rust::header(version.name, &facts);
        let source = assertions(&facts, Subject::Rust, &header);
        let name = format!("rust_{}", version.name);
        cc::check(&name, Language::C11, &source).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn rust_constants_agree_with_the_facts() {
    for version in &VERSIONS {
        let facts = version.facts();
        let constants = rust::constants(version.name);
        let strings = constants
            .strings
            .iter()
            .map(|(name, s)| (*name, s.to_str().unwrap()));
        let facts_strings = facts
            .strings
            .iter()
            .map(|(name, s)| (name.as_str(), s.as_str()));
        assert_eq!(strings.collect::<BTreeMap<_, _>>(), facts_strings.collect());

        let pointers = constants
            .pointers
            .iter()
            .map(|(name, p)| (*name, *p as i128));
        let facts_pointers = facts.consts.iter().filter(|c| c.ty.ends_with('*'));
        let facts_pointers = facts_pointers.map(|c| (c.name.as_str(), c.number));
        assert_eq!(
            pointers.collect::<BTreeMap<_, _>>(),
            facts_pointers.collect()
        );
    }
}

/// The proofs above are worth something only if one wrong number breaks them.
#[test]
fn a_wrong_fact_is_noticed() {
    let wrong = [
        (
            "scalar DAT_COUNT 4 signed int",
            "scalar DAT_COUNT 4 unsigned int",
        ),
        ("scalar DAT_VLEN 8", "scalar DAT_VLEN 4"),
        (
            "field DAT_EVENT evd_handle 8 8",
            "field DAT_EVENT evd_handle 0 8",
        ),
        (
            "field DAT_LMR_TRIPLET segment_length 8 4",
            "field DAT_LMR_TRIPLET segment_length 12 4",
        ),
        (
            "field DAT_EP_PARAM recv_evd_handle 64 8 DAT_EVD_HANDLE",
            "field DAT_EP_PARAM recv_evd_handle 64 8 DAT_EP_STATE",
        ),
        (
            "struct dat_event DAT_EVENT 120 8",
            "struct dat_event DAT_EVENT 48 8",
        ),
        (
            "value dat_srq_state DAT_SRQ_STATE_ERROR 0",
            "value dat_srq_state DAT_SRQ_STATE_ERROR 1",
        ),
        ("const DAT_EP_FIELD_COMM 4 ", "const DAT_EP_FIELD_COMM 8 "),
        (
            "const DAT_WATERMARK_INFINITE -1 ",
            "const DAT_WATERMARK_INFINITE 1 ",
        ),
        (
            "fnptr DAT_LMR_FREE_FUNC dat_redirection.h DAT_RETURN (DAT_LMR_HANDLE lmr_handle)",
            "fnptr DAT_LMR_FREE_FUNC dat_redirection.h DAT_RETURN (DAT_COUNT lmr_handle)",
        ),
    ];
    let version = &VERSIONS[1];
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("abi")
        .join(version.facts);
    let text = std::fs::read_to_string(path).expect("the facts");
    let rust = rust::header(version.name, &version.facts());
    for (index, (right, wrong)) in wrong.into_iter().enumerate() {
        assert_eq!(text.matches(right).count(), 1, "{right}");
        let facts = Facts::parse(&text.replacen(right, wrong, 1));
        for (subject, header) in [
            (Subject::Headers, &version.includes()),
            (Subject::Rust, &rust),
        ] {
            let name = format!("wrong_{index}_{subject:?}");
            let said = cc::check(&name, Language::C11, &assertions(&facts, subject, header));
            let said = said.expect_err(wrong);
            // The compiler's words for it: of gcc and recent clang, of older clang.
            let refused = ["static assertion failed", "static_assert failed"];
            assert!(refused.iter().any(|words| said.contains(words)), "{said}");
        }
    }
}
