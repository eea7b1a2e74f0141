//! A table as CSV text: quoting as in RFC 4180, lines end with a line feed, the first line has the names.
//!
//! An absent value is an empty field; an empty text is `""`. Reals are the shortest decimal that reads back to the
//! same number, so equal tables give equal bytes.

use super::{Column, Table, TableError, file};
use std::fmt::Write as _;
use std::path::Path;

/// The table as CSV text.
#[must_use]
pub fn to_csv(table: &Table) -> String {
    let mut text = String::new();
    for (at, name) in table.names().iter().enumerate() {
        separate(&mut text, at);
        push_text(&mut text, name);
    }
    if !table.names().is_empty() {
        text.push('\n');
    }
    for row in 0..table.rows() {
        for (at, column) in table.columns().iter().enumerate() {
            separate(&mut text, at);
            push_value(&mut text, column, row);
        }
        text.push('\n');
    }
    text
}

/// Writes the table as a CSV file that is either whole or not there.
///
/// # Errors
/// When the file cannot be written.
pub fn write_csv(table: &Table, path: &Path) -> Result<(), TableError> {
    file::write_whole(path, to_csv(table).as_bytes())
        .map_err(|source| TableError::Io { path: path.to_owned(), source })
}

fn separate(text: &mut String, column: usize) {
    if column > 0 {
        text.push(',');
    }
}

fn push_value(text: &mut String, column: &Column, row: usize) {
    let written = match column {
        Column::Text(values) => {
            if let Some(value) = &values[row] {
                push_text(text, value);
            }
            Ok(())
        }
        Column::Int(values) => values[row].map_or(Ok(()), |value| write!(text, "{value}")),
        Column::Real(values) => values[row].map_or(Ok(()), |value| push_real(text, value)),
        Column::Bool(values) => values[row].map_or(Ok(()), |value| write!(text, "{value}")),
    };
    written.expect("writing to a String cannot fail");
}

/// Plain decimals where they are short, an exponent where they are not.
fn push_real(text: &mut String, value: f64) -> std::fmt::Result {
    let size = value.abs();
    if size == 0.0 || (1e-6..1e15).contains(&size) {
        write!(text, "{value}")
    } else {
        write!(text, "{value:e}")
    }
}

fn push_text(text: &mut String, value: &str) {
    let needs_quotes = value.is_empty()
        || value.contains(['"', ',', '\n', '\r'])
        || value.starts_with(' ')
        || value.ends_with(' ');
    if !needs_quotes {
        text.push_str(value);
        return;
    }
    text.push('"');
    for part in value.split_inclusive('"') {
        text.push_str(part);
        if part.ends_with('"') {
            text.push('"');
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awkward_text_is_quoted_and_absence_differs_from_emptiness() {
        let mut table = Table::new();
        let texts = [Some("plain"), Some("a,b"), Some("say \"hi\""), Some("two\nlines"), Some(""), None];
        table.push("text", Column::Text(texts.iter().map(|text| text.map(Into::into)).collect())).unwrap();
        table.push("flag", Column::Bool(vec![Some(true), None, None, None, None, Some(false)])).unwrap();
        assert_eq!(
            to_csv(&table),
            "text,flag\nplain,true\n\"a,b\",\n\"say \"\"hi\"\"\",\n\"two\nlines\",\n\"\",\n,false\n"
        );
    }

    #[test]
    fn reals_read_back_to_the_same_number() {
        let numbers =
            [0.1, -0.0, 1.0, 1e300, 5e-324, f64::MAX, 1.0 / 3.0, f64::from(0.1_f32), 123_456_789.125];
        let mut table = Table::new();
        table.push("real", Column::Real(numbers.iter().copied().map(Some).collect())).unwrap();
        let text = to_csv(&table);
        let read: Vec<u64> =
            text.lines().skip(1).map(|line| line.parse::<f64>().unwrap().to_bits()).collect();
        assert_eq!(read, numbers.map(f64::to_bits));
        assert!(text.contains("\n1e300\n") && text.contains("\n0.1\n") && text.contains("\n1\n"));
    }

    #[test]
    fn a_table_without_rows_still_names_its_columns() {
        let mut table = Table::new();
        table.push("a", Column::Int(vec![])).unwrap();
        table.push("b", Column::Int(vec![])).unwrap();
        assert_eq!(to_csv(&table), "a,b\n");
        assert_eq!(to_csv(&Table::new()), "");
    }
}
