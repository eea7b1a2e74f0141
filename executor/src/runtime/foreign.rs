//! A graph that somebody else made, run once.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ort::{
    memory::Allocator,
    session::SessionInputValue,
    value::{DynValue, Tensor as OrtTensor},
};

use super::{
    environment::{Runtime, plain_builder},
    error::RuntimeError,
};

/// A graph that somebody else made, run once.
pub(crate) struct Foreign<'a> {
    /// The graph.
    pub(crate) path: &'a Path,
    /// Files with its constants, by the names the graph has for them.
    pub(crate) externals: &'a [(String, PathBuf)],
    /// What is changed in its bytes before it runs.
    pub(crate) edit: &'a dyn Fn(&mut [u8]),
}

/// An input of such a graph.
pub(crate) enum ForeignInput {
    /// Integers of 64 bits.
    Integers { shape: [usize; 2], values: Vec<i64> },
    /// An array without elements, of single or half precision.
    Empty { shape: [usize; 4], is_half: bool },
}

impl Foreign<'_> {
    /// All elements of an output of single or half precision. The session is gone afterwards.
    pub(crate) fn run(
        &self,
        runtime: &Runtime,
        inputs: Vec<(&str, ForeignInput)>,
        output: &str,
    ) -> Result<Vec<f32>, RuntimeError> {
        let read = |path: &Path| {
            let why = |error: std::io::Error| format!("{}: {error}", path.display());
            std::fs::read(path)
                .map_err(|error| RuntimeError::Call { action: "read a graph", why: why(error) })
        };
        let mut graph = read(self.path)?;
        (self.edit)(&mut graph);
        let externals = self
            .externals
            .iter()
            .map(|(name, path)| Ok((name.as_str(), Arc::<[u8]>::from(read(path)?))))
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        let value = self
            .run_inner(runtime, &graph, externals, inputs, output)
            .map_err(RuntimeError::call("run the exported graph"))?;
        let wrong = |why: &str| RuntimeError::Output { output: output.to_owned(), why: why.to_owned() };
        let value = value.ok_or_else(|| wrong("it did not come"))?;
        if let Ok((_, data)) = value.try_extract_tensor::<f32>() {
            return Ok(data.to_vec());
        }
        match value.try_extract_tensor::<half::f16>() {
            Ok((_, data)) => Ok(data.iter().map(|value| value.to_f32()).collect()),
            Err(error) => Err(wrong(error.message())),
        }
    }

    fn run_inner(
        &self,
        runtime: &Runtime,
        graph: &[u8],
        externals: Vec<(&str, Arc<[u8]>)>,
        inputs: Vec<(&str, ForeignInput)>,
        output: &str,
    ) -> ort::Result<Option<DynValue>> {
        let mut builder = plain_builder(&runtime.running.environment)?;
        for (name, bytes) in externals {
            builder = builder.with_external_initializer_file_in_memory(name, bytes)?;
        }
        let mut session = builder.commit_from_memory(graph)?;
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
        for (name, input) in inputs {
            let value = match input {
                ForeignInput::Integers { shape, values } => {
                    OrtTensor::from_array((shape, values))?.into_dyn()
                }
                ForeignInput::Empty { shape, is_half: false } => {
                    OrtTensor::<f32>::new(&Allocator::default(), shape)?.into_dyn()
                }
                ForeignInput::Empty { shape, is_half: true } => {
                    OrtTensor::<half::f16>::new(&Allocator::default(), shape)?.into_dyn()
                }
            };
            values.push((name, SessionInputValue::from(value)));
        }
        let mut results = session.run(values)?;
        Ok(results.remove(output))
    }
}
