//! The rows of the table in docs/hostile-peers.md.

/// One row.
pub struct Row {
    /// The name of the case.
    pub name: &'static str,
    /// The sections of the RFCs that have the rule.
    pub section: &'static str,
    /// What the peer sends.
    pub sends: &'static str,
    /// What the library answers.
    pub answer: String,
}

impl Row {
    /// A row; `answer` is the text of the answer.
    pub fn new(
        name: &'static str,
        section: &'static str,
        sends: &'static str,
        answer: &impl std::fmt::Display,
    ) -> Row {
        Row {
            name,
            section,
            sends,
            answer: answer.to_string(),
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Row {
            name,
            section,
            sends,
            answer,
        } = self;
        write!(f, "| {section} | {sends} | {answer} | `{name}` |")
    }
}

/// Fails unless the document has exactly these rows below the heading, and prints what it should
/// have.
pub fn check_document(heading: &str, rows: &[&Row]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/hostile-peers.md");
    let document = std::fs::read_to_string(path).unwrap();
    let heading = format!("## {heading}\n");
    let section = document.split(&heading).nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let found: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .collect();
    let expected: Vec<String> = rows.iter().map(|row| row.to_string()).collect();
    assert!(
        found == expected,
        "{path} has other rows below {heading}than the test:\n{}",
        expected.join("\n")
    );
}
