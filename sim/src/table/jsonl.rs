//! A table as JSON Lines: one object a row, with the columns in their order; an absent value has no key.
//!
//! Reals are the shortest decimal that reads back to the same number, so equal tables give equal bytes.

use super::{Table, Value};

/// The table as JSON Lines.
#[must_use]
pub fn to_jsonl(table: &Table) -> String {
    let mut text = String::new();
    for row in 0..table.rows() {
        let mut object = serde_json::Map::new();
        for name in table.names() {
            let value = match table.value(name, row) {
                Value::Text(text) => text.into(),
                Value::Int(number) => number.into(),
                Value::Real(number) => number.into(),
                Value::Bool(truth) => truth.into(),
                Value::Absent => continue,
            };
            object.insert(name.clone(), value);
        }
        text += &serde_json::Value::Object(object).to_string();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Column;
    use super::*;

    #[test]
    fn a_row_is_an_object_with_its_columns_in_order_and_no_key_for_what_is_absent() {
        let mut table = Table::new();
        table.push("t", Column::Text(vec![Some("a\"\nü".into()), None])).unwrap();
        table.push("i", Column::Int(vec![Some(-3), Some(4)])).unwrap();
        table.push("b", Column::Bool(vec![Some(true), None])).unwrap();
        table.push("r", Column::Real(vec![Some(0.1 + 0.2), Some(1.0)])).unwrap();
        let expected =
            "{\"t\":\"a\\\"\\nü\",\"i\":-3,\"b\":true,\"r\":0.30000000000000004}\n{\"i\":4,\"r\":1.0}\n";
        assert_eq!(to_jsonl(&table), expected);
        assert_eq!(to_jsonl(&Table::new()), "");
    }
}
