//! Plain tables for a terminal: columns padded to their widest cell, two blanks between.

/// The text of a table: the heads, then the rows, each line ended. Rows have as many cells as
/// there are heads.
pub fn render<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let width = |text: &str| text.chars().count();
    let mut widths = heads.map(width);
    for row in rows {
        for (column, cell) in widths.iter_mut().zip(row) {
            *column = (*column).max(width(cell));
        }
    }
    let mut text = String::new();
    let mut line = |cells: [&str; N]| {
        let mut line = String::new();
        for (cell, column) in cells.iter().zip(widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', column - width(cell) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(heads);
    for row in rows {
        line(row.each_ref().map(String::as_str));
    }
    text
}

/// `text` in lines of at most `columns` characters, broken at blanks. A longer word has a line
/// of its own.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [
            ["a".to_owned(), "größer".to_owned(), String::new()],
            ["longer".to_owned(), "b".to_owned(), "c".to_owned()],
        ];
        assert_eq!(
            render(["ONE", "TWO", "THREE"], &rows),
            "ONE     TWO     THREE\na       größer\nlonger  b       c\n"
        );
        assert_eq!(render(["ONE", "TWO"], &[]), "ONE  TWO\n");
    }

    #[test]
    fn lines_break_at_blanks() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable a", 4), ["unbreakable", "a"]);
        assert_eq!(wrap("", 4), [""; 0]);
    }
}
