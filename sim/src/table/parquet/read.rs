//! Reading: whole tables or a range of rows, from our files and from those of other writers.
//!
//! Bytes are never trusted: whatever is in the file, the answer is a table or an error.

use crate::table::{Column, Table, TableError};
use bytes::Bytes;
use parquet::basic::{ConvertedType, IntType, LogicalType, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Rows read in one go at most: a few bytes of run-length code can claim billions.
const MAX_ROWS: usize = 1 << 26;

/// Values decoded at a time, so that memory grows with what is there and not with what is claimed.
const BATCH: usize = 1 << 16;

/// Reads a Parquet file as a table.
///
/// INT32 and INT64 become integers, FLOAT and DOUBLE reals, UTF-8 byte arrays text; other types are refused.
///
/// # Errors
/// When the file cannot be read, is damaged, or holds what a table cannot hold.
pub fn read_parquet(path: &Path) -> Result<Table, TableError> {
    let bytes = std::fs::read(path).map_err(|source| TableError::Io { path: path.to_owned(), source })?;
    parquet_from_bytes(bytes.into(), path)
}

/// Reads the bytes of a Parquet file as a table. `path` is for messages only.
///
/// # Errors
/// When the bytes are damaged or hold what a table cannot hold.
pub fn parquet_from_bytes(bytes: Bytes, path: &Path) -> Result<Table, TableError> {
    let file = TableFile::open(bytes, path)?;
    file.read(0..file.rows())
}

/// An opened Parquet file of which any range of rows can be read.
pub(crate) struct TableFile {
    reader: SerializedFileReader<Bytes>,
    path: PathBuf,
    /// Rows before each row group, and after the last one.
    starts: Vec<usize>,
}

impl std::fmt::Debug for TableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableFile")
            .field("path", &self.path)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

impl TableFile {
    /// # Errors
    /// When the footer is damaged.
    pub(crate) fn open(bytes: Bytes, path: &Path) -> Result<Self, TableError> {
        let reader = guarded(path, || SerializedFileReader::new(bytes))?;
        let mut starts = vec![0_usize];
        let mut total = 0_usize;
        for group in reader.metadata().row_groups() {
            let rows = usize::try_from(group.num_rows()).ok();
            total = rows
                .and_then(|rows| total.checked_add(rows))
                .ok_or_else(|| damaged(path, format!("a row group claims {} rows", group.num_rows())))?;
            starts.push(total);
        }
        let claimed = reader.metadata().file_metadata().num_rows();
        if usize::try_from(claimed) != Ok(total) {
            return Err(damaged(path, format!("the file claims {claimed} rows and its row groups {total}")));
        }
        Ok(Self { reader, path: path.to_owned(), starts })
    }

    /// Rows in the file, as its footer says.
    pub(crate) fn rows(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    /// Number of row groups.
    pub(crate) fn groups(&self) -> usize {
        self.starts.len() - 1
    }

    /// The rows of row group `group`.
    pub(crate) fn group(&self, group: usize) -> Range<usize> {
        self.starts[group]..self.starts[group + 1]
    }

    /// Bytes of the column called `name` in the file, compressed; 0 when there is none.
    pub(crate) fn column_bytes(&self, name: &str) -> u64 {
        let groups = self.reader.metadata().row_groups();
        let columns = groups.iter().flat_map(|group| group.columns());
        let sizes = columns
            .filter(|column| column.column_path().string() == name)
            .map(|column| column.compressed_size());
        sizes.map(|size| u64::try_from(size).unwrap_or(0)).sum()
    }

    /// The rows `wanted`; row groups outside are not touched.
    ///
    /// # Errors
    /// When there are no such rows, or they are damaged.
    pub(crate) fn read(&self, wanted: Range<usize>) -> Result<Table, TableError> {
        if wanted.end > self.rows() || wanted.start > wanted.end || wanted.len() > MAX_ROWS {
            let detail = format!(
                "rows {}..{} of {} (at most {MAX_ROWS} at once)",
                wanted.start,
                wanted.end,
                self.rows()
            );
            return Err(damaged(&self.path, detail));
        }
        let columns = self.reader.metadata().file_metadata().schema_descr().columns().to_vec();
        let mut table: Vec<Column> =
            columns.iter().map(|column| empty_column(column, &self.path)).collect::<Result<_, _>>()?;
        for group in 0..self.groups() {
            let rows = self.group(group);
            let overlap = wanted.start.max(rows.start)..wanted.end.min(rows.end);
            if overlap.is_empty() {
                continue;
            }
            let within = overlap.start - rows.start..overlap.end - rows.start;
            guarded(&self.path, || {
                let reader = self.reader.get_row_group(group)?;
                table.iter_mut().enumerate().try_for_each(|(at, column)| {
                    read_column(reader.as_ref(), at, &columns[at], within.clone(), column)
                })
            })?;
        }
        let mut checked = Table::new();
        for (descriptor, column) in columns.iter().zip(table) {
            checked.push(descriptor.name(), column)?;
        }
        Ok(checked)
    }
}

/// Runs the Parquet crate on bytes that nobody vouches for. It should not panic; when it does, that is an error too.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, TableError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(damaged(path, error.to_string())),
        Err(_) => Err(damaged(path, "the decoder gave up on its content".to_owned())),
    }
}

fn damaged(path: &Path, detail: String) -> TableError {
    TableError::Parquet { path: path.to_owned(), detail }
}

fn empty_column(column: &ColumnDescriptor, path: &Path) -> Result<Column, TableError> {
    let unsupported = || {
        let found = column.logical_type_ref().map_or_else(
            || format!("{} {:?}", column.physical_type(), column.converted_type()),
            |logical| format!("{} {logical:?}", column.physical_type()),
        );
        let accepted = "flat INT32, INT64, FLOAT, DOUBLE, BOOLEAN and UTF-8 columns";
        damaged(path, format!("column `{}` is {found}; accepted: {accepted}", column.path()))
    };
    let flat = column.max_rep_level() == 0 && column.max_def_level() <= 1 && column.path().parts().len() == 1;
    let logical = column.logical_type_ref();
    let plain = match (logical, column.converted_type()) {
        (
            Some(LogicalType::String | LogicalType::Enum | LogicalType::Integer(_) | LogicalType::Unknown),
            _,
        ) => true,
        (Some(_), _) => false,
        (None, converted) => !matches!(
            converted,
            ConvertedType::DECIMAL
                | ConvertedType::DATE
                | ConvertedType::TIME_MILLIS
                | ConvertedType::TIME_MICROS
                | ConvertedType::TIMESTAMP_MILLIS
                | ConvertedType::TIMESTAMP_MICROS
                | ConvertedType::INTERVAL
        ),
    };
    if !flat || !plain {
        return Err(unsupported());
    }
    match column.physical_type() {
        Physical::BOOLEAN => Ok(Column::Bool(Vec::new())),
        Physical::INT32 | Physical::INT64 => Ok(Column::Int(Vec::new())),
        Physical::FLOAT | Physical::DOUBLE => Ok(Column::Real(Vec::new())),
        Physical::BYTE_ARRAY => Ok(Column::Text(Vec::new())),
        Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY => Err(unsupported()),
    }
}

fn read_column(
    group: &dyn RowGroupReader,
    at: usize,
    descriptor: &ColumnDescriptor,
    rows: Range<usize>,
    column: &mut Column,
) -> Result<(), ParquetError> {
    let unsigned =
        matches!(descriptor.logical_type_ref(), Some(LogicalType::Integer(IntType { is_signed: false, .. })))
            || matches!(descriptor.converted_type(), ConvertedType::UINT_32 | ConvertedType::UINT_64);
    match (group.get_column_reader(at)?, column) {
        (ColumnReader::BoolColumnReader(reader), Column::Bool(out)) => {
            read_values(reader, descriptor, rows, out, Ok)
        }
        (ColumnReader::Int32ColumnReader(reader), Column::Int(out)) => {
            read_values(reader, descriptor, rows, out, |v| {
                Ok(if unsigned { i64::from(v.cast_unsigned()) } else { i64::from(v) })
            })
        }
        (ColumnReader::Int64ColumnReader(reader), Column::Int(out)) => {
            read_values(reader, descriptor, rows, out, |v| {
                if unsigned && v < 0 { Err(bad_value(descriptor, "larger than an i64")) } else { Ok(v) }
            })
        }
        (ColumnReader::FloatColumnReader(reader), Column::Real(out)) => {
            read_values(reader, descriptor, rows, out, |v| Ok(f64::from(v)))
        }
        (ColumnReader::DoubleColumnReader(reader), Column::Real(out)) => {
            read_values(reader, descriptor, rows, out, Ok)
        }
        (ColumnReader::ByteArrayColumnReader(reader), Column::Text(out)) => {
            read_values(reader, descriptor, rows, out, |v| match v.as_utf8() {
                Ok(text) => Ok(text.into()),
                Err(_) => Err(bad_value(descriptor, "not UTF-8")),
            })
        }
        _ => Err(bad_value(descriptor, "stored in another type than the schema says")),
    }
}

fn read_values<D: DataType, T>(
    mut reader: ColumnReaderImpl<D>,
    descriptor: &ColumnDescriptor,
    rows: Range<usize>,
    out: &mut Vec<Option<T>>,
    convert: impl Fn(D::T) -> Result<T, ParquetError>,
) -> Result<(), ParquetError> {
    let optional = descriptor.max_def_level() == 1;
    if reader.skip_records(rows.start)? != rows.start {
        return Err(bad_value(descriptor, "shorter than the row group"));
    }
    let mut left = rows.len();
    while left > 0 {
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let (records, _, _) = reader.read_records(left.min(BATCH), Some(&mut levels), None, &mut values)?;
        if records == 0 {
            return Err(bad_value(descriptor, "shorter than the row group"));
        }
        let mut values = values.into_iter();
        for row in 0..records {
            if !optional || levels.get(row) == Some(&1) {
                let value =
                    values.next().ok_or_else(|| bad_value(descriptor, "with fewer values than levels"))?;
                out.push(Some(convert(value)?));
            } else {
                out.push(None);
            }
        }
        left = left.checked_sub(records).ok_or_else(|| bad_value(descriptor, "longer than the row group"))?;
    }
    Ok(())
}

fn bad_value(descriptor: &ColumnDescriptor, what: &str) -> ParquetError {
    ParquetError::General(format!("column `{}` is {what}", descriptor.path()))
}
