//! Writing: one call a row group, so that a long table never has to be in memory as a whole.

use crate::table::{Column, Table, TableError, file};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The table as the bytes of a Parquet file.
///
/// # Errors
/// When the Parquet writer refuses, e.g. a text of more than 2 GiB.
pub fn parquet_to_bytes(table: &Table) -> Result<Vec<u8>, TableError> {
    let mut writer = GroupWriter::start(Vec::new(), table, Path::new(""))?;
    writer.write_group(table)?;
    writer.finish()
}

/// Writes the table as a Parquet file that is either whole or not there.
///
/// # Errors
/// When the file cannot be written.
pub fn write_parquet(table: &Table, path: &Path) -> Result<(), TableError> {
    let bytes = parquet_to_bytes(table)?;
    file::write_whole(path, &bytes).map_err(|source| TableError::Io { path: path.to_owned(), source })
}

/// Writes tables of the same columns one below the other, a row group each.
pub(crate) struct GroupWriter<W: Write + Send> {
    inner: SerializedFileWriter<W>,
    path: PathBuf,
}

impl<W: Write + Send> GroupWriter<W> {
    /// Starts a file with the columns of `prototype`; its rows are not written. `path` is for messages only.
    ///
    /// # Errors
    /// When the sink refuses.
    pub(crate) fn start(sink: W, prototype: &Table, path: &Path) -> Result<Self, TableError> {
        let inner = schema(prototype)
            .and_then(|schema| SerializedFileWriter::new(sink, Arc::new(schema), Arc::new(properties())))
            .map_err(|error| refused(path, error))?;
        Ok(Self { inner, path: path.to_owned() })
    }

    /// Appends the rows of `table`, which has the columns of the prototype. No rows, no row group.
    ///
    /// # Errors
    /// When the sink refuses.
    pub(crate) fn write_group(&mut self, table: &Table) -> Result<(), TableError> {
        if table.rows() == 0 {
            return Ok(());
        }
        let write = |inner: &mut SerializedFileWriter<W>| {
            let mut group = inner.next_row_group()?;
            for column in table.columns() {
                write_column(&mut group, column)?;
            }
            group.close().map(drop)
        };
        write(&mut self.inner).map_err(|error| refused(&self.path, error))
    }

    /// Writes the footer and gives the sink back.
    ///
    /// # Errors
    /// When the sink refuses.
    pub(crate) fn finish(self) -> Result<W, TableError> {
        let path = self.path;
        self.inner.into_inner().map_err(|error| refused(&path, error))
    }
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_created_by("kvlab".to_owned())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .build()
}

fn schema(table: &Table) -> Result<Type, ParquetError> {
    let fields = table
        .names()
        .iter()
        .zip(table.columns())
        .map(|(name, column)| {
            let (physical, logical) = match column {
                Column::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Column::Int(_) => (Physical::INT64, None),
                Column::Real(_) => (Physical::DOUBLE, None),
                Column::Bool(_) => (Physical::BOOLEAN, None),
            };
            Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(logical)
                .build()
                .map(Arc::new)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder("table").with_fields(fields).build()
}

fn write_column<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &Column,
) -> Result<(), ParquetError> {
    let Some(mut writer) = group.next_column()? else {
        return Err(ParquetError::General("more columns than the schema has".to_owned()));
    };
    match (writer.untyped(), column) {
        (ColumnWriter::ByteArrayColumnWriter(typed), Column::Text(values)) => {
            write_values::<ByteArrayType, _>(typed, values, |text| ByteArray::from(text.as_bytes().to_vec()))
        }
        (ColumnWriter::Int64ColumnWriter(typed), Column::Int(values)) => {
            write_values::<Int64Type, _>(typed, values, |value| *value)
        }
        (ColumnWriter::DoubleColumnWriter(typed), Column::Real(values)) => {
            write_values::<DoubleType, _>(typed, values, |value| *value)
        }
        (ColumnWriter::BoolColumnWriter(typed), Column::Bool(values)) => {
            write_values::<BoolType, _>(typed, values, |value| *value)
        }
        (_, column) => {
            Err(ParquetError::General(format!("a {} column where the schema has none", column.kind())))
        }
    }?;
    writer.close()
}

fn write_values<D: DataType, T>(
    writer: &mut parquet::column::writer::ColumnWriterImpl<'_, D>,
    values: &[Option<T>],
    convert: impl Fn(&T) -> D::T,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<D::T> = values.iter().flatten().map(convert).collect();
    writer.write_batch(&present, Some(&levels), None).map(drop)
}

/// Keeps what the system said apart from what the Parquet writer said.
fn refused(path: &Path, error: ParquetError) -> TableError {
    let path = path.to_owned();
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => TableError::Io { path, source: *source },
            Err(source) => TableError::Parquet { path, detail: source.to_string() },
        },
        other => TableError::Parquet { path, detail: other.to_string() },
    }
}
