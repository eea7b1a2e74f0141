//! Which constant is which weight, found by what the graph does with it.
//!
//! Linear layers come in groups by how many others lie before them: queries, keys and values; the output of attention; gate
//! and up; down; and at the end the head. Within a group the paths to `present.*` tell keys from values, and the activation
//! tells gate from up. Names and order of nodes and constants are not looked at: exporters change them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{
    blocks::Blocks,
    file::{OnnxFile, number},
};
use crate::{family::ModelError, graph::proto::Node};

/// A matrix, `[out, in]` once read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Matrix {
    /// A constant, `[out, in]`.
    Rows(String),
    /// A constant, `[in, out]`.
    Columns(String),
    /// Blocks of integers.
    Blocks(Blocks),
}

/// Where a weight lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Some elements of a constant with one axis.
    Vector(String, Range<usize>),
    /// Some outputs of a matrix.
    Matrix(Matrix, Range<usize>),
}

/// A multiplication with a constant matrix.
#[derive(Debug)]
struct Linear<'a> {
    node: &'a Node,
    matrix: Matrix,
    /// `[out, in]`
    shape: [usize; 2],
    /// A bias that is part of the node.
    bias: Option<String>,
}

impl Linear<'_> {
    fn input(&self) -> &str {
        &self.node.input[0]
    }

    fn output(&self) -> &str {
        &self.node.output[0]
    }
}

/// Weights of one layer under the names of a Hugging Face folder, without `model.layers.N.`.
pub(super) type Layer = BTreeMap<&'static str, Piece>;

/// Everything found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) layers: Vec<Layer>,
    /// `[vocab, hidden]`
    pub(super) embedding: Piece,
    /// `[hidden]`
    pub(super) final_norm: Piece,
    /// `[vocab, hidden]`
    pub(super) head: Piece,
    pub(super) vocab: usize,
    pub(super) hidden: usize,
    pub(super) ffn: usize,
    /// Added to the mean square in the norms, where a norm is one node.
    pub(super) rms_eps: Option<f32>,
}

/// Widths that the graph alone does not tell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    pub(super) layers: usize,
    /// All queries of a token.
    pub(super) queries: usize,
    /// All keys of a token.
    pub(super) keys: usize,
    pub(super) head_dim: usize,
}

/// Finds every weight.
pub(super) fn find(file: &OnnxFile, widths: Widths) -> Result<Found, ModelError> {
    refuse_unknown(file)?;
    Finder::new(file, widths)?.found()
}

/// Graphs that hide what they compute.
fn refuse_unknown(file: &OnnxFile) -> Result<(), ModelError> {
    let kind = |wanted: &[&str]| file.graph.node.iter().find(|node| wanted.contains(&node.op_type.as_str()));
    if let Some(node) = kind(&["If", "Loop", "Scan"]) {
        return Err(file.wrong(
            "the graph",
            format!("split by the operator {}: {:?}", node.op_type, node.name),
            "a graph without branches; export one decoder with its cache, not a merged pair",
        ));
    }
    let layered =
        kind(&["LayerNormalization", "SkipLayerNormalization", "GatherBlockQuantized", "DequantizeLinear"]);
    match layered {
        None => Ok(()),
        Some(node) => Err(file.wrong(
            "the graph",
            format!("with the operator {}: {:?}", node.op_type, node.name),
            "RMS norms, float weights and MatMulNBits",
        )),
    }
}

struct Finder<'a> {
    file: &'a OnnxFile,
    widths: Widths,
    linears: Vec<Linear<'a>>,
    /// The linear layer at a node.
    linear_at: BTreeMap<usize, usize>,
    producers: BTreeMap<&'a str, usize>,
    consumers: BTreeMap<&'a str, Vec<usize>>,
}

/// Operators that are attention as a whole, with keys at input 1 and values at input 2.
const ATTENTION: &[&str] = &["GroupQueryAttention", "MultiHeadAttention"];

impl<'a> Finder<'a> {
    fn new(file: &'a OnnxFile, widths: Widths) -> Result<Self, ModelError> {
        let nodes = &file.graph.node;
        let (mut producers, mut consumers) = (BTreeMap::new(), BTreeMap::<&str, Vec<usize>>::new());
        let (mut linears, mut linear_at) = (Vec::new(), BTreeMap::new());
        for (index, node) in nodes.iter().enumerate() {
            producers.extend(
                node.output.iter().filter(|name| !name.is_empty()).map(|name| (name.as_str(), index)),
            );
            for name in node.input.iter().filter(|name| !name.is_empty()) {
                consumers.entry(name.as_str()).or_default().push(index);
            }
            if let Some(linear) = linear(file, node)? {
                linear_at.insert(index, linears.len());
                linears.push(linear);
            }
        }
        Ok(Self { file, widths, linears, linear_at, producers, consumers })
    }

    fn found(&self) -> Result<Found, ModelError> {
        let groups = self.groups()?;
        let layers = self.widths.layers;
        if groups.len() != 4 * layers + 1 {
            let found = format!("{} linear layers in {} groups", self.linears.len(), groups.len());
            let accepted = format!("{} groups for {layers} layers: 4 a layer and the head", 4 * layers + 1);
            return Err(self.file.wrong("the graph", found, accepted));
        }
        let [vocab, hidden] = self.linears[groups[4 * layers][0]].shape;
        let found_layers: Vec<Layer> = (0..layers)
            .map(|layer| self.layer(layer, &groups[4 * layer..4 * layer + 4], hidden))
            .collect::<Result<_, _>>()?;
        let head = &self.linears[groups[4 * layers][0]];
        let down = &self.linears[groups[3][0]];
        let (final_norm, rms_eps) = self.norm_before(head, hidden)?;
        Ok(Found {
            layers: found_layers,
            embedding: self.embedding()?,
            final_norm,
            head: Piece::Matrix(head.matrix.clone(), 0..vocab),
            vocab,
            hidden,
            ffn: down.shape[1],
            rms_eps,
        })
    }

    /// Linear layers by how many lie on the longest way to them, which is one group after the other in a decoder.
    fn groups(&self) -> Result<Vec<Vec<usize>>, ModelError> {
        let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, linear) in self.linears.iter().enumerate() {
            let depth = self.depth(linear.input(), &mut depths)?;
            groups.entry(depth).or_default().push(index);
        }
        for group in groups.values() {
            let input = self.linears[group[0]].input();
            if let Some(other) = group.iter().find(|at| self.linears[**at].input() != input) {
                let what = format!("the input of {:?}", self.linears[*other].node.name);
                return Err(self.file.wrong(
                    what,
                    format!("{:?}", self.linears[*other].input()),
                    format!("{input:?}, as for its neighbours"),
                ));
            }
        }
        Ok(groups.into_values().collect())
    }

    /// Linear layers on the longest way to a value, by a walk that needs no stack of the machine.
    fn depth<'d>(
        &'d self,
        name: &'d str,
        depths: &mut BTreeMap<&'d str, usize>,
    ) -> Result<usize, ModelError> {
        let mut open = vec![(name, false)];
        let mut on_the_way = BTreeSet::new();
        while let Some((name, is_back)) = open.pop() {
            if depths.contains_key(name) {
                continue;
            }
            let Some(&index) = self.producers.get(name) else {
                depths.insert(name, 0);
                continue;
            };
            let inputs =
                || self.node(index).input.iter().filter(|input| !input.is_empty()).map(String::as_str);
            if is_back {
                let before = inputs().filter_map(|input| depths.get(input)).max().copied().unwrap_or(0);
                depths.insert(name, before + usize::from(self.linear_at.contains_key(&index)));
                on_the_way.remove(name);
                continue;
            }
            if !on_the_way.insert(name) {
                return Err(self.file.wrong(
                    format!("{name:?}"),
                    "made from itself",
                    "a graph without circles",
                ));
            }
            open.push((name, true));
            open.extend(inputs().filter(|input| !depths.contains_key(input)).map(|input| (input, false)));
        }
        Ok(depths.get(name).copied().unwrap_or(0))
    }

    fn layer(&self, layer: usize, groups: &[Vec<usize>], hidden: usize) -> Result<Layer, ModelError> {
        let mut parts = Layer::new();
        self.attention(layer, &groups[0], &mut parts)?;
        let single = |group: &[usize], what: &str| match group {
            [one] => Ok(&self.linears[*one]),
            many => {
                let found = format!("{} matrices", many.len());
                Err(self.file.wrong(format!("layer {layer}, {what}"), found, "1 matrix"))
            }
        };
        let output = single(&groups[1], "after attention")?;
        parts.insert("self_attn.o_proj.weight", whole(output));
        self.gate_and_up(layer, &groups[2], &mut parts)?;
        let down = single(&groups[3], "after the activation")?;
        parts.insert("mlp.down_proj.weight", whole(down));
        for linear in groups[1..].iter().flatten().map(|at| &self.linears[*at]) {
            if let Some(bias) = self.bias(linear) {
                let what = format!("layer {layer}, {:?}", linear.node.name);
                return Err(self.file.wrong(
                    what,
                    format!("with the bias {bias:?}"),
                    "no bias but for queries, keys and values",
                ));
            }
        }
        parts.insert("input_layernorm.weight", self.norm_before(&self.linears[groups[0][0]], hidden)?.0);
        parts.insert(
            "post_attention_layernorm.weight",
            self.norm_before(&self.linears[groups[2][0]], hidden)?.0,
        );
        Ok(parts)
    }

    fn attention(&self, layer: usize, group: &[usize], parts: &mut Layer) -> Result<(), ModelError> {
        let key = self.origin(&self.present(layer, "key")?, group)?;
        let value = self.origin(&self.present(layer, "value")?, group)?;
        let (q, kv) = (self.widths.queries, self.widths.keys);
        let wrong = |found: String| {
            let accepted = format!("one matrix of {} rows, or matrices of {q}, {kv} and {kv}", q + 2 * kv);
            self.file.wrong(format!("layer {layer}, before attention"), found, accepted)
        };
        let joined = [("q_proj", 0..q), ("k_proj", q..q + kv), ("v_proj", q + kv..q + 2 * kv)];
        let projections: Vec<(&str, usize, Range<usize>)> = match group.len() {
            1 => joined.into_iter().map(|(name, rows)| (name, group[0], rows)).collect(),
            3 if key != value => {
                let query = group.iter().copied().find(|at| ![key, value].contains(at)).unwrap_or(group[0]);
                vec![("q_proj", query, 0..q), ("k_proj", key, 0..kv), ("v_proj", value, 0..kv)]
            }
            many => return Err(wrong(format!("{many} matrices"))),
        };
        for (name, at, rows) in projections {
            let linear = &self.linears[at];
            let out = linear.shape[0];
            if rows.end > out || (group.len() == 3 && rows.end != out) {
                return Err(wrong(format!("a matrix of {out} rows for {name}")));
            }
            let [weight, bias, norm] = match name {
                "q_proj" => ["self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.q_norm.weight"],
                "k_proj" => ["self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.k_norm.weight"],
                _ => ["self_attn.v_proj.weight", "self_attn.v_proj.bias", ""],
            };
            parts.insert(weight, Piece::Matrix(linear.matrix.clone(), rows.clone()));
            if let Some(found) = self.bias(linear) {
                parts.insert(bias, Piece::Vector(found, rows));
            }
            if let Some(found) = self.head_norm(linear).filter(|_| !norm.is_empty() && group.len() == 3) {
                parts.insert(norm, Piece::Vector(found, 0..self.widths.head_dim));
            }
        }
        Ok(())
    }

    fn gate_and_up(&self, layer: usize, group: &[usize], parts: &mut Layer) -> Result<(), ModelError> {
        const ACTIVATIONS: &[&str] = &["Sigmoid", "Silu", "Swish", "QuickGelu"];
        let what = || format!("layer {layer}, the feed-forward part");
        if let [joined] = group {
            let joined = &self.linears[*joined];
            let half = joined.shape[0] / 2;
            parts.insert("mlp.gate_proj.weight", Piece::Matrix(joined.matrix.clone(), 0..half));
            parts.insert("mlp.up_proj.weight", Piece::Matrix(joined.matrix.clone(), half..2 * half));
            return Ok(());
        }
        let activated = |at: &usize| {
            let consumers = self.consumers.get(self.linears[*at].output()).into_iter().flatten();
            consumers.into_iter().any(|node| ACTIVATIONS.contains(&self.node(*node).op_type.as_str()))
        };
        let (gates, ups): (Vec<usize>, Vec<usize>) = group.iter().copied().partition(activated);
        let ([gate], [up]) = (gates.as_slice(), ups.as_slice()) else {
            let found = format!("{} matrices, {} of them before {ACTIVATIONS:?}", group.len(), gates.len());
            return Err(self.file.wrong(what(), found, "a gate with SiLU, and up"));
        };
        parts.insert("mlp.gate_proj.weight", whole(&self.linears[*gate]));
        parts.insert("mlp.up_proj.weight", whole(&self.linears[*up]));
        Ok(())
    }

    fn node(&self, index: usize) -> &'a Node {
        &self.file.graph.node[index]
    }

    /// The output that holds the keys or values of a layer.
    fn present(&self, layer: usize, kind: &str) -> Result<String, ModelError> {
        let is_it = |name: &&str| {
            let parts: Vec<&str> = name.split('.').collect();
            parts[0].starts_with("present") && parts[1..] == [layer.to_string().as_str(), kind]
        };
        let mut names = self.file.graph.output.iter().map(|output| output.name.as_str());
        names.find(is_it).map(str::to_owned).ok_or_else(|| {
            let missing = format!("without present.{layer}.{kind}");
            self.file.wrong("the graph", missing, "present.N.key and present.N.value for every layer")
        })
    }

    /// The one linear layer of a group that a value is made from.
    fn origin(&self, name: &str, group: &[usize]) -> Result<usize, ModelError> {
        let (mut open, mut seen, mut found) = (vec![name], BTreeSet::new(), BTreeSet::new());
        while let Some(name) = open.pop() {
            let Some(&index) = self.producers.get(name).filter(|_| seen.insert(name)) else { continue };
            if let Some(linear) = self.linear_at.get(&index) {
                found.extend(group.contains(linear).then_some(*linear));
                continue;
            }
            let node = self.node(index);
            match node.op_type.as_str() {
                // Sizes are no part of the value.
                "Shape" | "Size" => {}
                op if ATTENTION.contains(&op) => {
                    let output = node.output.iter().position(|output| output == name).unwrap_or(0);
                    let of = node.input.get(output).filter(|input| !input.is_empty()).or(node.input.first());
                    open.extend(of.map(String::as_str));
                }
                _ => open.extend(node.input.iter().map(String::as_str)),
            }
        }
        let found: Vec<usize> = found.into_iter().collect();
        match found.as_slice() {
            [one] => Ok(*one),
            several => Err(self.file.wrong(
                format!("{name:?}"),
                format!("made from {} of the layer's matrices", several.len()),
                "made from 1",
            )),
        }
    }

    /// The weight of the norm that a linear layer reads, and its epsilon where the norm is one node.
    fn norm_before(&self, linear: &Linear<'_>, hidden: usize) -> Result<(Piece, Option<f32>), ModelError> {
        let mut name = linear.input();
        let wrong = |found: &str| {
            let what = format!("the input of {:?}", linear.node.name);
            self.file.wrong(what, found, "an RMS norm with a weight of the hidden size")
        };
        loop {
            let Some(&index) = self.producers.get(name) else { return Err(wrong("no output of a node")) };
            let node = self.node(index);
            if matches!(node.op_type.as_str(), "Cast" | "Identity") {
                name = node.input.first().map(String::as_str).unwrap_or_default();
                continue;
            }
            let is_weight = |name: &&String| self.file.dims(name).is_some_and(|dims| dims == [hidden]);
            let mut weights = node.input.iter().filter(is_weight);
            return match (weights.next(), weights.next()) {
                (Some(weight), None) => {
                    Ok((Piece::Vector(weight.clone(), 0..hidden), number(node, "epsilon")))
                }
                _ => Err(wrong(&format!("the output of {}", node.op_type))),
            };
        }
    }

    /// The constant that is added to the output of a linear layer.
    fn bias(&self, linear: &Linear<'_>) -> Option<String> {
        let width = linear.shape[0];
        let is_bias = |name: &&String| self.file.dims(name).is_some_and(|dims| dims == [width]);
        let consumers =
            self.consumers.get(linear.output()).into_iter().flatten().map(|index| self.node(*index));
        let added =
            consumers.filter(|node| node.op_type == "Add").find_map(|node| node.input.iter().find(is_bias));
        linear.bias.clone().or_else(|| added.cloned())
    }

    /// The weight of a norm over the heads of a linear layer's output, if there is one before attention.
    fn head_norm(&self, linear: &Linear<'_>) -> Option<String> {
        let is_weight =
            |name: &&String| self.file.dims(name).is_some_and(|dims| dims == [self.widths.head_dim]);
        let (mut open, mut seen) = (std::collections::VecDeque::from([linear.output()]), BTreeSet::new());
        while let Some(name) = open.pop_front() {
            for &index in self.consumers.get(name).into_iter().flatten() {
                let node = self.node(index);
                let op = node.op_type.as_str();
                let ends = ATTENTION.contains(&op)
                    || matches!(op, "MatMul" | "Concat" | "RotaryEmbedding" | "Shape");
                if ends || self.linear_at.contains_key(&index) || !seen.insert(index) {
                    continue;
                }
                let is_norm = matches!(op, "Mul" | "SimplifiedLayerNormalization" | "RMSNormalization");
                if let Some(weight) = node.input.iter().find(is_weight).filter(|_| is_norm) {
                    return Some(weight.clone());
                }
                open.extend(node.output.iter().map(String::as_str));
            }
        }
        None
    }

    /// The table that token ids are looked up in.
    fn embedding(&self) -> Result<Piece, ModelError> {
        let is_lookup = |node: &&Node| {
            node.op_type == "Gather" && node.input.get(1).is_some_and(|name| name == "input_ids")
        };
        let table = self.file.graph.node.iter().find(is_lookup).map(|node| &node.input[0]);
        let dims = table.and_then(|name| Some((name, self.file.dims(name)?)));
        match dims.as_ref().map(|(name, dims)| (name, dims.as_slice())) {
            Some((name, [vocab, _])) => Ok(Piece::Matrix(Matrix::Rows((*name).clone()), 0..*vocab)),
            _ => Err(self.file.wrong(
                "the graph",
                "without a table for input_ids",
                "a Gather from a constant table",
            )),
        }
    }
}

fn whole(linear: &Linear<'_>) -> Piece {
    Piece::Matrix(linear.matrix.clone(), 0..linear.shape[0])
}

/// A node as a linear layer, if its matrix is constant.
fn linear<'a>(file: &OnnxFile, node: &'a Node) -> Result<Option<Linear<'a>>, ModelError> {
    if node.op_type == "MatMulNBits" && node.input.len() >= 3 && !node.output.is_empty() {
        let blocks = Blocks::of(node, file)?;
        let bias = node.input.get(5).filter(|name| !name.is_empty()).cloned();
        return Ok(Some(Linear { node, shape: blocks.shape, matrix: Matrix::Blocks(blocks), bias }));
    }
    let ([_, weight, rest @ ..], [_, ..]) = (node.input.as_slice(), node.output.as_slice()) else {
        return Ok(None);
    };
    let Some([first, second]) = file.dims(weight).and_then(|dims| <[usize; 2]>::try_from(dims).ok()) else {
        return Ok(None);
    };
    let is_transposed = super::file::integer(node, "transB") == Some(1);
    Ok(match node.op_type.as_str() {
        "MatMul" => {
            Some(Linear { node, matrix: Matrix::Columns(weight.clone()), shape: [second, first], bias: None })
        }
        "Gemm" if is_transposed => Some(Linear {
            node,
            matrix: Matrix::Rows(weight.clone()),
            shape: [first, second],
            bias: rest.first().cloned(),
        }),
        "Gemm" => Some(Linear {
            node,
            matrix: Matrix::Columns(weight.clone()),
            shape: [second, first],
            bias: rest.first().cloned(),
        }),
        _ => None,
    })
}
