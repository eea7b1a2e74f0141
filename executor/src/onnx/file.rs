//! The container: nodes, constants, and where their numbers lie.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
};

use half::{bf16, f16};
use prost::Message;

use crate::{
    family::ModelError,
    gguf::DenseTensor,
    graph::proto::{BFLOAT16, FLOAT, FLOAT16, Graph, Model, Node, Tensor, UINT8},
};

/// A constant of the graph: an initializer, or what nodes without inputs make of one.
#[derive(Debug, Clone, Copy)]
struct Constant {
    place: Place,
    /// The graph uses the transpose of what is stored.
    transposed: bool,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Initializer(usize),
    /// A `Constant` node.
    Node(usize),
}

/// An exported graph, read and not run.
#[derive(Debug)]
pub(super) struct OnnxFile {
    path: PathBuf,
    /// Revision of the file format.
    pub(super) revision: i64,
    pub(super) graph: Graph,
    constants: BTreeMap<String, Constant>,
}

impl OnnxFile {
    pub(super) fn open(path: &Path) -> Result<Self, ModelError> {
        let kind = path.metadata().map_err(ModelError::io("open", path))?;
        let damaged = |found: String| ModelError::Onnx {
            path: path.to_owned(),
            what: "the file".to_owned(),
            found,
            accepted: "an ONNX model".to_owned(),
        };
        if !kind.is_file() {
            return Err(damaged("neither a file nor a link to one".to_owned()));
        }
        let bytes = std::fs::read(path).map_err(ModelError::io("read", path))?;
        let model =
            Model::decode(bytes.as_slice()).map_err(|error| damaged(format!("something else ({error})")))?;
        let revision = model.ir_version;
        let graph = model.graph.ok_or_else(|| damaged("a file without a graph".to_owned()))?;
        Ok(Self { revision, ..Self::of_graph(path, graph)? })
    }

    pub(super) fn of_graph(path: &Path, graph: Graph) -> Result<Self, ModelError> {
        let mut file = Self { path: path.to_owned(), revision: 0, graph, constants: BTreeMap::new() };
        file.constants = file.find_constants()?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn wrong(
        &self,
        what: impl Into<String>,
        found: impl Into<String>,
        accepted: impl Into<String>,
    ) -> ModelError {
        ModelError::Onnx {
            path: self.path.clone(),
            what: what.into(),
            found: found.into(),
            accepted: accepted.into(),
        }
    }

    fn find_constants(&self) -> Result<BTreeMap<String, Constant>, ModelError> {
        let mut constants = BTreeMap::new();
        for (index, tensor) in self.graph.initializer.iter().enumerate() {
            let constant = Constant { place: Place::Initializer(index), transposed: false };
            if constants.insert(tensor.name.clone(), constant).is_some() {
                return Err(self.wrong("initializer", format!("{:?} twice", tensor.name), "a name for each"));
            }
        }
        for (index, node) in self.graph.node.iter().enumerate() {
            let Some(output) = node.output.first() else { continue };
            let of_input = || node.input.first().and_then(|name| constants.get(name)).copied();
            let constant = match node.op_type.as_str() {
                "Constant" if attribute_tensor(node).is_some() => {
                    Some(Constant { place: Place::Node(index), transposed: false })
                }
                "Cast" | "Identity" => of_input(),
                "Transpose" => of_input()
                    .filter(|constant| self.stored(*constant).is_some_and(|tensor| tensor.dims.len() == 2))
                    .filter(|_| matches!(integers(node, "perm"), None | Some([1, 0])))
                    .map(|constant| Constant { transposed: !constant.transposed, ..constant }),
                _ => None,
            };
            if let Some(constant) = constant {
                constants.insert(output.clone(), constant);
            }
        }
        Ok(constants)
    }

    fn stored(&self, constant: Constant) -> Option<&Tensor> {
        match constant.place {
            Place::Initializer(index) => self.graph.initializer.get(index),
            Place::Node(index) => attribute_tensor(self.graph.node.get(index)?),
        }
    }

    /// The shape of a constant, outermost first; nothing for what is computed, and for shapes that cannot be.
    pub(super) fn dims(&self, name: &str) -> Option<Vec<usize>> {
        let constant = *self.constants.get(name)?;
        let mut dims = sizes(self.stored(constant)?)?;
        if constant.transposed {
            dims.reverse();
        }
        Some(dims)
    }

    /// A constant as the graph uses it, in `f32`.
    pub(super) fn read(&self, name: &str) -> Result<DenseTensor, ModelError> {
        let missing = || self.wrong(format!("{name:?}"), "computed by the graph", "a constant");
        let constant = *self.constants.get(name).ok_or_else(missing)?;
        let tensor = self.stored(constant).ok_or_else(missing)?;
        let shape = self.shape_of(tensor)?;
        let bytes = self.bytes(tensor)?;
        let data: Vec<f32> = match tensor.data_type {
            FLOAT => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            FLOAT16 => bytes.as_chunks().0.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
            BFLOAT16 => bytes.as_chunks().0.iter().map(|two| bf16::from_le_bytes(*two).to_f32()).collect(),
            other => return Err(self.wrong_type(tensor, other, "1 (float), 10 (float16) or 16 (bfloat16)")),
        };
        let [rows, columns] = shape.as_slice() else { return Ok(DenseTensor { shape, data }) };
        if !constant.transposed {
            return Ok(DenseTensor { shape, data });
        }
        Ok(DenseTensor { shape: vec![*columns, *rows], data: transpose(&data, *columns) })
    }

    /// A constant of bytes, as it is stored.
    pub(super) fn read_bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, ModelError> {
        let constant = self.constants.get(name).filter(|constant| !constant.transposed);
        let Some(tensor) = constant.and_then(|constant| self.stored(*constant)) else {
            return Err(self.wrong(format!("{name:?}"), "computed by the graph", "a constant"));
        };
        if tensor.data_type != UINT8 {
            return Err(self.wrong_type(tensor, tensor.data_type, "2 (uint8)"));
        }
        self.bytes(tensor)
    }

    /// Whether a constant holds bytes.
    pub(super) fn is_bytes(&self, name: &str) -> bool {
        let tensor = self.constants.get(name).and_then(|constant| self.stored(*constant));
        tensor.is_some_and(|tensor| tensor.data_type == UINT8)
    }

    fn wrong_type(&self, tensor: &Tensor, found: i32, accepted: &str) -> ModelError {
        self.wrong(format!("the element type of {:?}", tensor.name), found.to_string(), accepted)
    }

    fn shape_of(&self, tensor: &Tensor) -> Result<Vec<usize>, ModelError> {
        sizes(tensor).ok_or_else(|| {
            let found = format!("{:?}", tensor.dims);
            self.wrong(
                format!("the shape of {:?}", tensor.name),
                found,
                "sizes of 0 or more that fit in memory",
            )
        })
    }

    /// The numbers of a tensor, little-endian, wherever they lie; exactly as many as its shape says.
    fn bytes<'a>(&'a self, tensor: &'a Tensor) -> Result<Cow<'a, [u8]>, ModelError> {
        let width = match tensor.data_type {
            FLOAT => 4,
            FLOAT16 | BFLOAT16 => 2,
            UINT8 => 1,
            other => return Err(self.wrong_type(tensor, other, "1, 2, 10 or 16")),
        };
        let count: usize = self.shape_of(tensor)?.iter().product();
        let wanted = count * width;
        let bytes = if tensor.data_location == Some(1) {
            Cow::Owned(self.external(tensor, wanted)?)
        } else if let Some(raw) = &tensor.raw_data {
            Cow::Borrowed(raw.as_slice())
        } else if tensor.data_type == FLOAT {
            Cow::Owned(tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect())
        } else {
            // One number an element, whatever its type; the low bytes count.
            let low = |value: &i32| value.to_le_bytes().into_iter().take(width);
            Cow::Owned(tensor.int32_data.iter().flat_map(low).collect())
        };
        if bytes.len() == wanted {
            return Ok(bytes);
        }
        let what = format!("the data of {:?}", tensor.name);
        Err(self.wrong(what, format!("{} bytes", bytes.len()), format!("{wanted} bytes")))
    }

    fn external(&self, tensor: &Tensor, wanted: usize) -> Result<Vec<u8>, ModelError> {
        let entry = |key: &str| {
            tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
        };
        let number = |key: &str, absent: u64| -> Result<u64, ModelError> {
            let Some(text) = entry(key) else { return Ok(absent) };
            text.parse().map_err(|_| {
                self.wrong(format!("the {key} of {:?}", tensor.name), format!("{text:?}"), "a number")
            })
        };
        let location = entry("location").unwrap_or_default();
        let path = self.beside(location, &tensor.name)?;
        let (offset, length) = (number("offset", 0)?, number("length", wanted as u64)?);
        let mut file = File::open(&path).map_err(|error| {
            // People start programs from other folders: the whole path says where it was looked for.
            let whole = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
            let found = format!("to lie in {}, which cannot be opened ({error})", whole.display());
            self.wrong(format!("the data of {:?}", tensor.name), found, "that file beside the graph")
        })?;
        let there = file.metadata().map_err(ModelError::io("read", &path))?.len();
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= there);
        if !is_inside || length != wanted as u64 {
            let found = format!("{length} bytes at {offset} of {location:?}, which has {there}");
            let what = format!("the data of {:?}", tensor.name);
            return Err(self.wrong(what, found, format!("{wanted} bytes inside the file")));
        }
        let mut bytes = vec![0; wanted];
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(ModelError::io("read", &path))?;
        Ok(bytes)
    }

    /// A file in the folder of the graph. The folder is the one that was named, also where the graph is a link into a cache.
    fn beside(&self, location: &str, tensor: &str) -> Result<PathBuf, ModelError> {
        let path = Path::new(location);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        if location.is_empty() || !is_inside {
            return Err(self.wrong(
                format!("the place of the data of {tensor:?}"),
                format!("{location:?}"),
                "a file beside the graph",
            ));
        }
        Ok(self.path.parent().unwrap_or(Path::new("")).join(path))
    }

    /// The files that hold constants, by the name under which the graph knows them.
    pub(super) fn external_files(&self) -> Result<Vec<(String, PathBuf)>, ModelError> {
        let of_nodes = self.graph.node.iter().filter_map(attribute_tensor);
        let outside = self.graph.initializer.iter().chain(of_nodes).filter(|t| t.data_location == Some(1));
        let locations = outside.flat_map(|tensor| {
            let entries = tensor.external_data.iter().filter(|entry| entry.key == "location");
            entries.map(|entry| (entry.value.as_str(), tensor.name.as_str()))
        });
        let names: BTreeMap<&str, &str> = locations.collect();
        names.into_iter().map(|(name, tensor)| Ok((name.to_owned(), self.beside(name, tensor)?))).collect()
    }

    /// Element type, count of numbers and bytes of every initializer.
    pub(super) fn summaries(&self) -> impl Iterator<Item = (String, u64, u64)> {
        self.graph.initializer.iter().map(|tensor| {
            let (name, width) = match tensor.data_type {
                FLOAT => ("F32".to_owned(), 4),
                FLOAT16 => ("F16".to_owned(), 2),
                BFLOAT16 => ("BF16".to_owned(), 2),
                UINT8 => ("U8".to_owned(), 1),
                other => (format!("type {other}"), 8),
            };
            let count = sizes(tensor).map_or(0, |dims| dims.iter().product::<usize>()) as u64;
            (name, count, count * width)
        })
    }
}

/// The shape, if all of it is possible.
fn sizes(tensor: &Tensor) -> Option<Vec<usize>> {
    let dims: Vec<usize> =
        tensor.dims.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
    let bytes = dims.iter().try_fold(8_usize, |product, size| product.checked_mul(*size))?;
    (bytes <= isize::MAX as usize).then_some(dims)
}

fn attribute_tensor(node: &Node) -> Option<&Tensor> {
    if node.op_type != "Constant" {
        return None;
    }
    node.attribute.iter().find(|attribute| attribute.name == "value")?.t.as_ref()
}

/// An attribute that is a list of integers.
fn integers<'a>(node: &'a Node, name: &str) -> Option<&'a [i64]> {
    node.attribute.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.ints.as_slice())
}

/// An attribute that is an integer.
pub(super) fn integer(node: &Node, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name == name)?.i
}

/// An attribute that is a number.
pub(super) fn number(node: &Node, name: &str) -> Option<f32> {
    node.attribute.iter().find(|attribute| attribute.name == name)?.f
}

/// `[rows, columns]` to `[columns, rows]`.
pub(super) fn transpose(data: &[f32], columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(data.len());
    for column in 0..columns {
        out.extend(data.iter().skip(column).step_by(columns));
    }
    out
}
