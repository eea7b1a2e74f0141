//! Building a graph node by node.

use prost::Message;

use super::{
    WEIGHTS_LOCATION,
    proto::{
        Attribute, Dimension, Entry, FLOAT, Graph, INT64, Model, Node, OperatorSet, Shape, Tensor,
        TensorType, Type, ValueInfo,
    },
};

const IR_VERSION: i64 = 10;
const OPSET_VERSION: i64 = 21;

/// A model that says to be of another revision of the file format.
pub(super) fn with_revision(model: Vec<u8>, revision: i64) -> Vec<u8> {
    match Model::decode(model.as_slice()) {
        Ok(decoded) => Model { ir_version: revision, ..decoded }.encode_to_vec(),
        Err(_) => model,
    }
}

/// A finished graph and the weights that belong to it.
pub(crate) struct BuiltGraph {
    /// The serialised model. It names its weights by place and length and does not hold them.
    pub(crate) model: Vec<u8>,
    /// All weights, one after the other, as little-endian `f32`.
    pub(crate) weights: Vec<u8>,
}

/// A dimension of an input or output.
#[derive(Debug, Clone, Copy)]
pub(super) enum Dim {
    Fixed(usize),
    Named(&'static str),
}

/// A value in the graph.
pub(super) type Name = String;

/// Collects nodes, weights, inputs and outputs.
#[derive(Default)]
pub(super) struct GraphBuilder {
    graph: Graph,
    weights: Vec<u8>,
}

impl GraphBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self { graph: Graph { name: name.to_owned(), ..Graph::default() }, weights: Vec::new() }
    }

    pub(super) fn input(&mut self, name: &str, dims: &[Dim]) -> Name {
        self.graph.input.push(value_info(name, FLOAT, dims));
        name.to_owned()
    }

    /// An input of integers of 64 bits.
    pub(super) fn integer_input(&mut self, name: &str, dims: &[Dim]) -> Name {
        self.graph.input.push(value_info(name, INT64, dims));
        name.to_owned()
    }

    pub(super) fn output(&mut self, name: &str, dims: &[Dim]) {
        self.graph.output.push(value_info(name, FLOAT, dims));
    }

    /// A weight that lies outside the model. Several parts are laid one after the other, which joins them by rows.
    pub(super) fn weight(&mut self, name: &str, dims: &[usize], parts: &[&[f32]]) -> Name {
        let begin = self.weights.len();
        let count: usize = parts.iter().map(|part| part.len()).sum();
        self.weights.resize(begin + 4 * count, 0);
        let (places, _) = self.weights[begin..].as_chunks_mut::<4>();
        places
            .iter_mut()
            .zip(parts.iter().copied().flatten())
            .for_each(|(place, value)| *place = value.to_le_bytes());
        let length = self.weights.len() - begin;
        debug_assert_eq!(
            length,
            4 * dims.iter().product::<usize>(),
            "weight {name} has another size than its shape"
        );
        let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
        self.graph.initializer.push(Tensor {
            dims: dims.iter().map(|size| *size as i64).collect(),
            data_type: FLOAT,
            name: name.to_owned(),
            external_data: vec![
                entry("location", WEIGHTS_LOCATION.to_owned()),
                entry("offset", begin.to_string()),
                entry("length", length.to_string()),
            ],
            data_location: Some(1),
            ..Tensor::default()
        });
        name.to_owned()
    }

    /// A constant that lies inside the model.
    pub(super) fn scalar(&mut self, name: &str, value: f32) -> Name {
        self.constant(name, FLOAT, &[], value.to_le_bytes().to_vec())
    }

    /// Zeros that lie inside the model.
    pub(super) fn zeros(&mut self, name: &str, dims: &[usize]) -> Name {
        self.constant(name, FLOAT, dims, vec![0; 4 * dims.iter().product::<usize>()])
    }

    /// A list of integers that lies inside the model.
    pub(super) fn integers(&mut self, name: &str, values: &[i64]) -> Name {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(name, INT64, &[values.len()], bytes)
    }

    fn constant(&mut self, name: &str, data_type: i32, dims: &[usize], raw_data: Vec<u8>) -> Name {
        self.graph.initializer.push(Tensor {
            dims: dims.iter().map(|size| *size as i64).collect(),
            data_type,
            name: name.to_owned(),
            raw_data: Some(raw_data),
            ..Tensor::default()
        });
        name.to_owned()
    }

    /// A node with one output, which gets the name given.
    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        output: &str,
        attributes: &[(&str, Attr<'_>)],
    ) -> Name {
        self.push(op, inputs, &[output], attributes);
        output.to_owned()
    }

    /// A split along an axis into two parts, whose sizes are in `sizes`.
    pub(super) fn split(&mut self, input: &str, sizes: &str, axis: i64, outputs: [&str; 2]) -> [Name; 2] {
        self.push("Split", &[input, sizes], &outputs, &[("axis", Attr::Int(axis))]);
        outputs.map(str::to_owned)
    }

    fn push(&mut self, op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attr<'_>)]) {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        self.graph.node.push(Node {
            input: owned(inputs),
            output: owned(outputs),
            name: outputs[0].to_owned(),
            op_type: op.to_owned(),
            domain: String::new(),
            attribute: attributes.iter().map(|(name, value)| value.message(name)).collect(),
        });
    }

    pub(super) fn finish(self) -> BuiltGraph {
        let model = Model {
            ir_version: IR_VERSION,
            producer_name: "kvlab".to_owned(),
            graph: Some(self.graph),
            opset_import: vec![OperatorSet { domain: String::new(), version: OPSET_VERSION }],
        };
        BuiltGraph { model: model.encode_to_vec(), weights: self.weights }
    }
}

/// An attribute value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attr<'a> {
    Int(i64),
    Ints(&'a [i64]),
}

impl Attr<'_> {
    fn message(&self, name: &str) -> Attribute {
        let name = name.to_owned();
        match self {
            Self::Int(value) => Attribute { name, i: Some(*value), kind: 2, ..Attribute::default() },
            Self::Ints(values) => Attribute { name, ints: values.to_vec(), kind: 7, ..Attribute::default() },
        }
    }
}

fn value_info(name: &str, elem_type: i32, dims: &[Dim]) -> ValueInfo {
    let dim = dims
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(size) => Dimension { value: Some(*size as i64), name: None },
            Dim::Named(name) => Dimension { value: None, name: Some((*name).to_owned()) },
        })
        .collect();
    let tensor = TensorType { elem_type, shape: Some(Shape { dim }) };
    ValueInfo { name: name.to_owned(), kind: Some(Type { tensor: Some(tensor) }) }
}
