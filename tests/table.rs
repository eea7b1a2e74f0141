//! Tables as files: round trips, files of other writers, and bytes that nobody vouches for.

use kvlab_sim::table::{
    Column, Table, TableError, parquet_from_bytes, parquet_to_bytes, read_parquet, write_parquet,
};
use proptest::prelude::*;
use std::path::Path;

fn column(rows: usize) -> impl Strategy<Value = Column> {
    let finite = any::<f64>().prop_filter("finite", |value| value.is_finite());
    prop_oneof![
        prop::collection::vec(prop::option::of(".{0,40}"), rows)
            .prop_map(|texts| Column::Text(texts.into_iter().map(|text| text.map(Into::into)).collect())),
        prop::collection::vec(prop::option::of(any::<i64>()), rows).prop_map(Column::Int),
        prop::collection::vec(prop::option::of(finite), rows).prop_map(Column::Real),
        prop::collection::vec(prop::option::of(any::<bool>()), rows).prop_map(Column::Bool),
    ]
}

fn table() -> impl Strategy<Value = Table> {
    (0..50_usize).prop_flat_map(|rows| prop::collection::vec(column(rows), 1..6)).prop_map(|columns| {
        let mut table = Table::new();
        for (at, column) in columns.into_iter().enumerate() {
            table.push(&format!("column {at}"), column).unwrap();
        }
        table
    })
}

fn read(bytes: Vec<u8>) -> Result<Table, TableError> {
    parquet_from_bytes(bytes.into(), Path::new("test.parquet"))
}

/// Every kind of column, with and without absent values, several pages' worth of text.
fn sample() -> Vec<u8> {
    let mut table = Table::new();
    let rows = 40_u32;
    let text = (0..rows).map(|row| (row % 3 > 0).then(|| format!("value {}", row % 7).into())).collect();
    table.push("text", Column::Text(text)).unwrap();
    table.push("int", Column::Int((0..rows).map(|row| Some(i64::from(row) * 1000)).collect())).unwrap();
    table
        .push("real", Column::Real((0..rows).map(|row| (row > 5).then(|| f64::from(row).sqrt())).collect()))
        .unwrap();
    table.push("bool", Column::Bool((0..rows).map(|row| Some(row % 2 == 0)).collect())).unwrap();
    parquet_to_bytes(&table).unwrap()
}

proptest! {
    #[test]
    fn what_is_written_is_read(table in table()) {
        let bytes = parquet_to_bytes(&table).unwrap();
        prop_assert_eq!(&bytes, &parquet_to_bytes(&table).unwrap());
        let found = read(bytes).unwrap();
        prop_assert_eq!(found.names(), table.names());
        for (found, written) in found.columns().iter().zip(table.columns()) {
            match (found, written) {
                // Zeros of either sign are kept apart, which `==` does not see.
                (Column::Real(found), Column::Real(written)) => {
                    let bits = |values: &[Option<f64>]| values.iter().map(|v| v.map(f64::to_bits)).collect::<Vec<_>>();
                    prop_assert_eq!(bits(found), bits(written));
                }
                _ => prop_assert_eq!(found, written),
            }
        }
    }

    #[test]
    fn changed_bytes_give_a_table_or_an_error(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        drop(read(bytes));
    }

    #[test]
    fn any_bytes_give_a_table_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), footer in any::<u32>()) {
        drop(read(bytes.clone()));
        let framed = [b"PAR1".as_slice(), &bytes, &footer.to_le_bytes(), b"PAR1"].concat();
        drop(read(framed));
        let length = u32::try_from(bytes.len()).unwrap();
        drop(read([b"PAR1".as_slice(), &bytes, &length.to_le_bytes(), b"PAR1"].concat()));
    }
}

#[test]
fn every_single_changed_byte_gives_a_table_or_an_error() {
    let bytes = sample();
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xFF] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            drop(read(changed));
        }
    }
}

#[test]
fn every_cut_is_an_error() {
    let bytes = sample();
    for length in 0..bytes.len() {
        assert!(read(bytes[..length].to_vec()).is_err(), "cut to {length} bytes");
    }
}

#[test]
fn an_error_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("facts.parquet");
    let missing = read_parquet(&path).unwrap_err();
    assert!(
        matches!(missing, TableError::Io { .. }) && missing.to_string().contains("facts.parquet"),
        "{missing}"
    );
    std::fs::write(&path, "no table").unwrap();
    let damaged = read_parquet(&path).unwrap_err();
    assert!(
        matches!(damaged, TableError::Parquet { .. }) && damaged.to_string().contains("facts.parquet"),
        "{damaged}"
    );
}

#[test]
fn a_table_without_rows_keeps_its_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty.parquet");
    let mut table = Table::new();
    table.push("int", Column::Int(Vec::new())).unwrap();
    table.push("text", Column::Text(Vec::new())).unwrap();
    write_parquet(&table, &path).unwrap();
    assert_eq!(read_parquet(&path).unwrap(), table);
}

#[test]
fn tables_of_other_writers_are_read() {
    for (name, ints) in [("pandas", "i32"), ("polars", "u32"), ("required", "i64")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/tables/{name}.parquet"));
        let table = read_parquet(&path).unwrap();
        assert_eq!(table.int(ints).unwrap(), [Some(1), Some(2), Some(3)], "{name}");
        assert_eq!(table.real("f32").unwrap(), [Some(0.5), Some(-1.25), Some(3.0)], "{name}");
        let text = table.text("text").unwrap();
        assert_eq!((text[0].as_deref(), text[2].as_deref()), (Some("a"), Some("ä")), "{name}");
        assert_eq!(table.bool("flag").unwrap(), [Some(true), Some(false), Some(true)], "{name}");
    }
}
