//! Metadata values.

use super::{error::GgufErrorKind, reader::Reader};

/// A list of values of one type. Integers of every width are widened, and so are floats.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Array {
    /// Signed and unsigned integers.
    Integers(Vec<i128>),
    /// Floats.
    Floats(Vec<f64>),
    /// Booleans.
    Booleans(Vec<bool>),
    /// Texts.
    Texts(Vec<String>),
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Signed and unsigned integers of every width.
    Integer(i128),
    /// Floats of both widths.
    Float(f64),
    /// A boolean.
    Boolean(bool),
    /// A text.
    Text(String),
    /// A list.
    Array(Array),
}

impl Value {
    /// A short form for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Boolean(value) => value.to_string(),
            Self::Text(value) => format!("the text {:?}", value.chars().take(40).collect::<String>()),
            Self::Array(Array::Integers(values)) => format!("a list of {} integers", values.len()),
            Self::Array(Array::Floats(values)) => format!("a list of {} floats", values.len()),
            Self::Array(Array::Booleans(values)) => format!("a list of {} booleans", values.len()),
            Self::Array(Array::Texts(values)) => format!("a list of {} texts", values.len()),
        }
    }

    /// Reads the value of `key`.
    pub(super) fn read(reader: &mut Reader, key: &str) -> Result<Self, GgufErrorKind> {
        let kind = reader.u32(key)?;
        match kind {
            9 => Self::read_array(reader, key),
            8 => Ok(Self::Text(reader.text(key)?)),
            7 => Ok(Self::Boolean(reader.bytes::<1>(key)?[0] != 0)),
            6 | 12 => Ok(Self::Float(read_float(reader, key, kind)?)),
            _ => Ok(Self::Integer(read_integer(reader, key, kind)?)),
        }
    }

    fn read_array(reader: &mut Reader, key: &str) -> Result<Self, GgufErrorKind> {
        let kind = reader.u32(key)?;
        let count = reader.u64(key)?;
        let element_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8, // A text has at least its length field.
            9 => return Err(GgufErrorKind::NestedArray { key: key.to_owned() }),
            _ => return Err(GgufErrorKind::ValueType { key: key.to_owned(), found: kind }),
        };
        reader.check_count(&format!("the list {key:?}"), count, element_bytes)?;
        Ok(Self::Array(match kind {
            8 => Array::Texts((0..count).map(|_| reader.text(key)).collect::<Result<_, _>>()?),
            7 => {
                Array::Booleans((0..count).map(|_| Ok(reader.bytes::<1>(key)?[0] != 0)).collect::<Result<
                    _,
                    GgufErrorKind,
                >>(
                )?)
            }
            6 | 12 => {
                Array::Floats((0..count).map(|_| read_float(reader, key, kind)).collect::<Result<_, _>>()?)
            }
            _ => Array::Integers(
                (0..count).map(|_| read_integer(reader, key, kind)).collect::<Result<_, _>>()?,
            ),
        }))
    }
}

fn read_float(reader: &mut Reader, key: &str, kind: u32) -> Result<f64, GgufErrorKind> {
    Ok(if kind == 6 {
        f32::from_le_bytes(reader.bytes(key)?).into()
    } else {
        f64::from_le_bytes(reader.bytes(key)?)
    })
}

fn read_integer(reader: &mut Reader, key: &str, kind: u32) -> Result<i128, GgufErrorKind> {
    Ok(match kind {
        0 => u8::from_le_bytes(reader.bytes(key)?).into(),
        1 => i8::from_le_bytes(reader.bytes(key)?).into(),
        2 => u16::from_le_bytes(reader.bytes(key)?).into(),
        3 => i16::from_le_bytes(reader.bytes(key)?).into(),
        4 => u32::from_le_bytes(reader.bytes(key)?).into(),
        5 => i32::from_le_bytes(reader.bytes(key)?).into(),
        10 => u64::from_le_bytes(reader.bytes(key)?).into(),
        11 => i64::from_le_bytes(reader.bytes(key)?).into(),
        _ => return Err(GgufErrorKind::ValueType { key: key.to_owned(), found: kind }),
    })
}
