//! A table as JSON: a list of `[name, {kind: [values]}]`, column by column, `null` for absent.
//!
//! Numbers come back with the same bits. What is read is checked like any other table.

use super::{Column, Table};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names.iter().zip(&self.columns))
    }
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Self::new();
        for (name, column) in Vec::<(String, Column)>::deserialize(deserializer)? {
            table.push(&name, column).map_err(D::Error::custom)?;
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_back_with_the_same_bits() {
        let mut table = Table::new();
        table.push("t", Column::Text(vec![Some("a\"\u{1f}é".into()), None])).unwrap();
        table.push("i", Column::Int(vec![Some(i64::MIN), None])).unwrap();
        table.push("b", Column::Bool(vec![None, Some(true)])).unwrap();
        for real in [0.1 + 0.2, -0.0, 5e-324, f64::MAX, 1.0, f64::MIN_POSITIVE] {
            let mut table = table.clone();
            table.push("r", Column::Real(vec![Some(real), None])).unwrap();
            let text = serde_json::to_string(&table).unwrap();
            let back: Table = serde_json::from_str(&text).unwrap();
            assert_eq!(back.real("r").unwrap()[0].map(f64::to_bits), Some(real.to_bits()), "{text}");
            assert_eq!(back, table);
        }
        assert!(serde_json::from_str::<Table>(r#"[["a",{"int":[1]}],["b",{"int":[1,2]}]]"#).is_err());
    }
}
