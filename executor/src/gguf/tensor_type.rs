//! Element formats of tensors.

/// An element format that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "these are the names everybody knows the formats by")]
pub(crate) enum TensorType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit float with the exponent of `F32`.
    BF16,
    /// 4 bits, one scale for 32.
    Q4_0,
    /// 4 bits, scale and minimum for 32.
    Q4_1,
    /// 5 bits, one scale for 32.
    Q5_0,
    /// 5 bits, scale and minimum for 32.
    Q5_1,
    /// 8 bits, one scale for 32.
    Q8_0,
    /// 4 bits, super-blocks of 256.
    Q4_K,
    /// 5 bits, super-blocks of 256.
    Q5_K,
    /// 6 bits, super-blocks of 256.
    Q6_K,
}

impl TensorType {
    /// Every format that can be read.
    pub(crate) const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The number that stands for it in a file.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    /// The format with a number, if it can be read.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.number() == number)
    }

    /// Elements per block.
    pub(crate) fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes per block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4_K => 2 + 2 + 12 + 128,
            Self::Q5_K => 2 + 2 + 12 + 32 + 128,
            Self::Q6_K => 128 + 64 + 16 + 2,
        }
    }
}

/// A number with the usual name of the format, for messages about formats that are not read.
pub(crate) fn describe(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16..=23 => "an IQ format",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "an IQ format",
        34 | 35 => "a ternary format",
        _ => return number.to_string(),
    };
    format!("{number} ({name})")
}

/// The accepted formats, for messages.
pub(crate) fn accepted() -> String {
    TensorType::ALL.map(|format| format!("{format:?}")).join(", ")
}
