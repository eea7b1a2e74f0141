//! Matrices of `MatMulNBits`: blocks of 4-bit or 8-bit integers along the input, a scale and a zero point for each.
//!
//! Source: microsoft/onnxruntime `docs/ContribOperators.md`, `com.microsoft.MatMulNBits`.

use super::file::{OnnxFile, integer};
use crate::{family::ModelError, graph::proto::Node};

/// Where the parts of a matrix of blocks lie. The matrix is `[out, in]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blocks {
    packed: String,
    scales: String,
    zero_points: Option<String>,
    bits: usize,
    block: usize,
    /// `[out, in]`
    pub(super) shape: [usize; 2],
}

impl Blocks {
    /// What a node multiplies with.
    pub(super) fn of(node: &Node, file: &OnnxFile) -> Result<Self, ModelError> {
        let name = |index: usize| node.input.get(index).filter(|name| !name.is_empty()).cloned();
        let attribute = |key: &str, absent: i64| {
            let value = integer(node, key).unwrap_or(absent);
            usize::try_from(value).ok().filter(|value| (1..=1 << 31).contains(value)).ok_or_else(|| {
                file.wrong(format!("{key} of {:?}", node.name), value.to_string(), "a number above 0")
            })
        };
        let (bits, block) = (attribute("bits", 4)?, attribute("block_size", 0)?);
        let shape = [attribute("N", 0)?, attribute("K", 0)?];
        if !matches!(bits, 4 | 8) {
            return Err(file.wrong(format!("bits of {:?}", node.name), bits.to_string(), "4 or 8"));
        }
        if let Some(order) = name(4) {
            return Err(file.wrong(format!("{:?}", node.name), format!("ordered by {order:?}"), "no g_idx"));
        }
        let (Some(packed), Some(scales)) = (name(1), name(2)) else {
            return Err(file.wrong(format!("{:?}", node.name), "without a matrix", "a matrix and scales"));
        };
        Ok(Self { packed, scales, zero_points: name(3), bits, block, shape })
    }

    /// The matrix, `[out, in]` row-major.
    pub(super) fn read(&self, file: &OnnxFile) -> Result<Vec<f32>, ModelError> {
        let [rows, columns] = self.shape;
        let blocks = columns.div_ceil(self.block);
        let block_bytes = (self.block * self.bits).div_ceil(8);
        let packed = file.read_bytes(&self.packed)?;
        let scales = file.read(&self.scales)?.data;
        let expect = |name: &str, found: usize, wanted: usize| {
            let wrong = || file.wrong(format!("the size of {name:?}"), found.to_string(), wanted.to_string());
            if found == wanted { Ok(()) } else { Err(wrong()) }
        };
        expect(&self.packed, packed.len(), rows * blocks * block_bytes)?;
        expect(&self.scales, scales.len(), rows * blocks)?;
        let zeros = self.zeros(file, rows, blocks)?;
        let mut out = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            for block in 0..blocks {
                let at = row * blocks + block;
                let bytes = &packed[at * block_bytes..][..block_bytes];
                let count = self.block.min(columns - block * self.block);
                out.extend((0..count).map(|i| (f32::from(self.level(bytes, i)) - zeros[at]) * scales[at]));
            }
        }
        Ok(out)
    }

    /// The integer at an index of a packed row; the lower half of a byte comes first.
    fn level(&self, bytes: &[u8], index: usize) -> u8 {
        if self.bits == 8 {
            return bytes[index];
        }
        (bytes[index / 2] >> (4 * (index % 2))) & 15
    }

    /// The zero point of every block, `[out * block]`.
    fn zeros(&self, file: &OnnxFile, rows: usize, blocks: usize) -> Result<Vec<f32>, ModelError> {
        let Some(name) = &self.zero_points else {
            let middle = if self.bits == 8 { 128.0 } else { 8.0 };
            return Ok(vec![middle; rows * blocks]);
        };
        let wrong = |found: usize, wanted: usize| {
            file.wrong(format!("the size of {name:?}"), found.to_string(), wanted.to_string())
        };
        if !file.is_bytes(name) {
            let zeros = file.read(name)?.data;
            return if zeros.len() == rows * blocks {
                Ok(zeros)
            } else {
                Err(wrong(zeros.len(), rows * blocks))
            };
        }
        let packed = file.read_bytes(name)?;
        let row_bytes = (blocks * self.bits).div_ceil(8);
        if packed.len() != rows * row_bytes {
            return Err(wrong(packed.len(), rows * row_bytes));
        }
        let of_row = |row: &[u8]| (0..blocks).map(|i| f32::from(self.level(row, i))).collect::<Vec<_>>();
        Ok(packed.chunks(row_bytes).flat_map(of_row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::proto::{Attribute, FLOAT, Graph, Tensor, UINT8};
    use std::path::Path;

    fn tensor(name: &str, dims: &[i64], data_type: i32, raw: Vec<u8>) -> Tensor {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        Tensor { name, dims, data_type, raw_data: Some(raw), ..Tensor::default() }
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Two outputs of five inputs in blocks of four: the second block of a row has one number.
    fn read(bits: i64, packed: Vec<u8>, zeros: Option<Tensor>) -> Result<Vec<f32>, ModelError> {
        let attribute = |name: &str, value| Attribute {
            name: name.to_owned(),
            i: Some(value),
            kind: 2,
            ..Attribute::default()
        };
        let mut input = ["x", "packed", "scales"].map(str::to_owned).to_vec();
        input.extend(zeros.as_ref().map(|tensor| tensor.name.clone()));
        let node = Node {
            input,
            output: vec!["y".to_owned()],
            name: "node".to_owned(),
            op_type: "MatMulNBits".to_owned(),
            domain: "com.microsoft".to_owned(),
            attribute: [("N", 2), ("K", 5), ("bits", bits), ("block_size", 4)]
                .map(|(name, value)| attribute(name, value))
                .to_vec(),
        };
        let count = packed.len() as i64;
        let mut initializer = vec![
            tensor("packed", &[count], UINT8, packed),
            tensor("scales", &[4], FLOAT, floats(&[1.0, 10.0, 0.5, 2.0])),
        ];
        initializer.extend(zeros);
        let graph = Graph { node: vec![node], initializer, ..Graph::default() };
        let file = OnnxFile::of_graph(Path::new("graph.onnx"), graph)?;
        Blocks::of(&file.graph.node[0], &file)?.read(&file)
    }

    #[test]
    fn four_bits_come_lower_half_first() {
        // Row 0: levels 1 2 3 4 | 9; row 1: 15 0 8 7 | 8.
        let packed = vec![0x21, 0x43, 0x09, 0x00, 0x0F, 0x78, 0x08, 0x00];
        let found = read(4, packed.clone(), None).unwrap();
        assert_eq!(found, [-7.0, -6.0, -5.0, -4.0, 10.0, 3.5, -4.0, 0.0, -0.5, 0.0]);
        // A zero point for each block, two in a byte: row 0 has 1 and 9, row 1 has 0 and 7.
        let zeros = tensor("zeros", &[2], UINT8, vec![0x91, 0x70]);
        let found = read(4, packed.clone(), Some(zeros)).unwrap();
        assert_eq!(found, [0.0, 1.0, 2.0, 3.0, 0.0, 7.5, 0.0, 4.0, 3.5, 2.0]);
        let zeros = tensor("zeros", &[4], FLOAT, floats(&[0.5, 9.0, 8.0, 8.0]));
        assert_eq!(read(4, packed, Some(zeros)).unwrap()[..5], [0.5, 1.5, 2.5, 3.5, 0.0]);
    }

    #[test]
    fn eight_bits_have_their_middle_at_128() {
        let packed = vec![129, 128, 127, 0, 255, 0, 0, 0, 128, 130, 128, 128, 120, 0, 0, 0];
        let found = read(8, packed, None).unwrap();
        assert_eq!(found, [1.0, 0.0, -1.0, -128.0, 1270.0, 0.0, 1.0, 0.0, 0.0, -16.0]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let error = read(4, vec![0; 7], None).unwrap_err().to_string();
        assert!(error.contains("the size of \"packed\" is 7, accepted is 8"), "{error}");
        let zeros = tensor("zeros", &[3], UINT8, vec![0; 3]);
        let error = read(4, vec![0; 8], Some(zeros)).unwrap_err().to_string();
        assert!(error.contains("the size of \"zeros\" is 3, accepted is 2"), "{error}");
        let error = read(3, vec![0; 8], None).unwrap_err().to_string();
        assert!(error.contains("is 3, accepted is 4 or 8"), "{error}");
    }
}
