//! Files made by another writer, blocks worked out by hand, and files that lie.

use std::{fs, path::PathBuf};

use safetensors::SafeTensors;

use super::{
    dequant::dequantise,
    error::GgufErrorKind,
    file::GgufFile,
    tensor_type::TensorType,
    value::{Array, Value},
};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gguf").join(name)
}

#[test]
fn every_format_gives_the_same_bits_as_the_reference_reader() {
    let file = GgufFile::open(&golden("blocks.gguf")).unwrap();
    let bytes = fs::read(golden("blocks.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    for format in TensorType::ALL {
        let name = format!("{format:?}");
        let own = file.read(&name).unwrap().unwrap();
        let other = expected.tensor(&name).unwrap();
        assert_eq!(own.shape, other.shape(), "{name}");
        let own: Vec<u8> = own.data.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(own, other.data(), "{name}");
    }
    assert!(file.read("nothing").unwrap().is_none());
    assert_eq!(file.count("some.count").unwrap(), 7);
    assert_eq!(file.optional_number("some.float").unwrap(), Some(0.5));
    assert_eq!(file.optional_flag("some.flag").unwrap(), Some(true));
    assert_eq!(file.texts("some.texts").unwrap(), ["a", "bc", ""]);
    assert_eq!(file.optional_integers("some.integers").unwrap(), Some([-1, 2].as_slice()));
    assert_eq!(file.value("some.negative"), Some(&Value::Integer(-5)));
    let text = file.count("some.negative").unwrap_err().to_string();
    assert!(text.contains("\"some.negative\" is -5, accepted is a whole number from 1"), "{text}");
    assert!(file.count("some.other").unwrap_err().to_string().contains("\"some.other\" is missing"));
    assert!(matches!(file.value("some.texts"), Some(Value::Array(Array::Texts(_)))));
}

/// 1.0, 2.0 and -0.5 as 16-bit floats.
const ONE: [u8; 2] = [0x00, 0x3c];
const TWO: [u8; 2] = [0x00, 0x40];
const MINUS_HALF: [u8; 2] = [0x00, 0xb8];

#[test]
fn four_bit_blocks_by_hand() {
    // Low halves of the bytes are elements 0..16, high halves 16..32.
    let quants: Vec<u8> = (0..16).map(|i| (15 - i) << 4 | i).collect();
    let block = [TWO.to_vec(), quants.clone()].concat();
    let out = dequantise(TensorType::Q4_0, &block);
    // (q - 8) * 2
    assert_eq!((out[0], out[15], out[16], out[31]), (-16.0, 14.0, 14.0, -16.0));
    let block = [TWO.to_vec(), MINUS_HALF.to_vec(), quants].concat();
    let out = dequantise(TensorType::Q4_1, &block);
    // q * 2 - 0.5
    assert_eq!((out[0], out[1], out[15], out[16], out[31]), (-0.5, 1.5, 29.5, 29.5, -0.5));
}

#[test]
fn five_and_eight_bit_blocks_by_hand() {
    // Fifth bits of elements 0 and 17 are set.
    let high = (1_u32 | 1 << 17).to_le_bytes();
    let quants = [0x21_u8; 16];
    let block = [ONE.to_vec(), high.to_vec(), quants.to_vec()].concat();
    let out = dequantise(TensorType::Q5_0, &block);
    // 1 + 16 - 16, 1 - 16, 2 - 16, 2 + 16 - 16
    assert_eq!((out[0], out[1], out[16], out[17]), (1.0, -15.0, -14.0, 2.0));
    let block = [ONE.to_vec(), MINUS_HALF.to_vec(), high.to_vec(), quants.to_vec()].concat();
    let out = dequantise(TensorType::Q5_1, &block);
    assert_eq!((out[0], out[1], out[16], out[17]), (16.5, 0.5, 1.5, 17.5));
    let block = [TWO.to_vec(), vec![0x80], vec![0x7f; 31]].concat();
    let out = dequantise(TensorType::Q8_0, &block);
    assert_eq!((out[0], out[31]), (-256.0, 254.0));
}

#[test]
fn six_bit_super_block_by_hand() {
    // All low nibbles 15, all high pairs 3: 63 - 32 = 31; sub-scale of elements 0..16 is -2, elsewhere 1; scale 2.
    let mut scales = [1_u8; 16];
    scales[0] = 0xfe;
    let block = [vec![0xff; 128], vec![0xff; 64], scales.to_vec(), TWO.to_vec()].concat();
    let out = dequantise(TensorType::Q6_K, &block);
    assert_eq!((out[0], out[15], out[16], out[255]), (-124.0, -124.0, 62.0, 62.0));
}

/// Writes small files field by field, right or wrong.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn header(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut next = self.u64(text.len() as u64);
        next.0.extend(text.as_bytes());
        next
    }

    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let count = u32::try_from(dims.len()).unwrap();
        let next = dims.iter().fold(self.text(name).u32(count), |next, size| next.u64(*size));
        next.u32(kind).u64(offset)
    }

    fn padded(mut self, data: usize) -> Self {
        let begin = self.0.len().next_multiple_of(32);
        self.0.resize(begin + data, 0);
        self
    }

    fn open(&self) -> Result<GgufFile, GgufErrorKind> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &self.0).unwrap();
        GgufFile::open(file.path()).map_err(|error| {
            assert!(error.to_string().contains(&file.path().display().to_string()));
            error.kind
        })
    }

    fn error(&self) -> GgufErrorKind {
        match self.open() {
            Ok(_) => panic!("it was accepted"),
            Err(kind) => kind,
        }
    }
}

#[test]
fn a_small_file_is_read() {
    let file = Bytes::header(1, 1).text("k").u32(4).u32(9).tensor("t", &[3, 2], 0, 0).padded(24);
    let file = file.open().unwrap();
    assert_eq!(file.tensors()["t"].shape, [2, 3]);
}

#[test]
fn headers_that_are_wrong() {
    assert!(
        matches!(Bytes(b"GGML....".to_vec()).error(), GgufErrorKind::NotGguf { found } if &found == b"GGML")
    );
    assert!(matches!(
        Bytes(b"GG".to_vec()).error(),
        GgufErrorKind::Truncated { needed: 4, available: 2, .. }
    ));
    let version = |number: u32| Bytes(b"GGUF".to_vec()).u32(number).u64(0).u64(0);
    assert!(version(2).open().is_ok() && version(3).open().is_ok());
    assert!(matches!(version(1).error(), GgufErrorKind::Version { found: 1 }));
    assert!(matches!(version(99).error(), GgufErrorKind::Version { found: 99 }));
    assert!(matches!(version(3_u32.swap_bytes()).error(), GgufErrorKind::BigEndian));
}

#[test]
fn counts_and_lengths_that_are_absurd() {
    assert!(matches!(Bytes::header(0, u64::MAX).error(), GgufErrorKind::AbsurdCount { .. }));
    assert!(matches!(Bytes::header(1 << 40, 0).error(), GgufErrorKind::AbsurdCount { .. }));
    let key = Bytes::header(0, 1).u64(u64::MAX).u32(0).u64(0);
    assert!(matches!(key.error(), GgufErrorKind::Truncated { needed: u64::MAX, .. }));
    let list = |kind: u32, count: u64| Bytes::header(0, 1).text("list").u32(9).u32(kind).u64(count).u64(0);
    assert!(matches!(list(8, u64::MAX / 4).error(), GgufErrorKind::AbsurdCount { .. }));
    assert!(matches!(list(9, 1).error(), GgufErrorKind::NestedArray { key } if key == "list"));
    assert!(matches!(list(13, 0).error(), GgufErrorKind::ValueType { found: 13, .. }));
    let kind = Bytes::header(0, 1).text("k").u32(77).u64(0);
    assert!(matches!(kind.error(), GgufErrorKind::ValueType { found: 77, .. }));
}

#[test]
fn names_that_stand_twice() {
    let keys = Bytes::header(0, 2).text("k").u32(4).u32(9).text("k").u32(4).u32(9);
    assert!(matches!(keys.error(), GgufErrorKind::Duplicate { what: "metadata key", name } if name == "k"));
    let tensors = Bytes::header(2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).padded(64);
    assert!(matches!(tensors.error(), GgufErrorKind::Duplicate { what: "tensor", .. }));
    let mut bytes = Bytes::header(0, 1).text("kk").u32(4).u32(9);
    bytes.0[32] = 0xff;
    assert!(matches!(bytes.error(), GgufErrorKind::NotUtf8 { offset: 32, .. }));
}

#[test]
fn tensors_that_cannot_be() {
    let one =
        |dims: &[u64], kind: u32, offset: u64| Bytes::header(1, 0).tensor("t", dims, kind, offset).padded(64);
    assert!(one(&[4, 4], 0, 0).open().is_ok());
    assert!(matches!(one(&[4, 5], 0, 0).error(), GgufErrorKind::OutsideFile { .. }));
    assert!(matches!(one(&[4], 0, u64::MAX - 8).error(), GgufErrorKind::OutsideFile { .. }));
    assert!(matches!(one(&[0, 4], 0, 0).error(), GgufErrorKind::Dimensions { .. }));
    assert!(matches!(one(&[], 0, 0).error(), GgufErrorKind::Dimensions { .. }));
    assert!(matches!(one(&[1, 1, 1, 1, 1], 0, 0).error(), GgufErrorKind::Dimensions { .. }));
    assert!(matches!(one(&[u64::MAX, 2], 0, 0).error(), GgufErrorKind::Dimensions { .. }));
    assert!(matches!(one(&[1 << 41], 0, 0).error(), GgufErrorKind::Dimensions { .. }));
    assert!(matches!(one(&[33], 2, 0).error(), GgufErrorKind::PartialBlock { row: 33, block: 32, .. }));
    let text = one(&[256], 10, 0).error().to_string();
    assert!(text.contains("type 10 (Q2_K), accepted are F32, F16, BF16, Q4_0"), "{text}");
    assert!(matches!(one(&[4], 4_000_000_000, 0).error(), GgufErrorKind::TensorType { .. }));
    let alignment = |value: u32| Bytes::header(0, 1).text("general.alignment").u32(4).u32(value);
    assert!(matches!(alignment(0).error(), GgufErrorKind::Alignment { found: 0 }));
    assert!(matches!(alignment(48).error(), GgufErrorKind::Alignment { found: 48 }));
    assert!(alignment(64).open().is_ok());
}

/// Cutting a good file anywhere gives an error and nothing else.
#[test]
fn a_file_cut_anywhere_is_an_error() {
    let whole = fs::read(golden("blocks.gguf")).unwrap();
    // The last bytes are padding.
    for length in (0..whole.len() - 32).step_by(13) {
        let cut = Bytes(whole[..length].to_vec());
        match cut.error() {
            GgufErrorKind::Truncated { .. }
            | GgufErrorKind::AbsurdCount { .. }
            | GgufErrorKind::OutsideFile { .. } => {}
            other => panic!("cut at {length}: {other}"),
        }
    }
}
