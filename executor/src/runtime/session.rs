//! A graph ready to run.

use ort::{
    memory::MemoryInfo,
    session::{OutputSelector, RunOptions, Session as OrtSession, SessionInputValue},
    value::{DynValue, Tensor as OrtTensor, TensorRef},
};

use super::{
    error::RuntimeError,
    tensor::{DeviceMemory, DeviceTensor, Tensor, bytes_of, owned},
};

/// An input of a session.
pub(crate) enum Feed<'a> {
    /// Numbers of ours, not empty.
    View { shape: &'a [usize], data: &'a [f32] },
    /// Indices of ours, not empty.
    Indices { shape: &'a [usize], data: &'a [i64] },
    /// An output of an earlier run, on the host.
    Held(&'a Tensor),
    /// An output of an earlier run, on the device.
    Device(&'a DeviceTensor),
}

impl Feed<'_> {
    /// What crosses to the device.
    fn crossing_bytes(&self) -> usize {
        match self {
            Self::View { shape, .. } => bytes_of(shape),
            Self::Indices { data, .. } => size_of_val(*data),
            Self::Held(tensor) => bytes_of(tensor.shape()),
            Self::Device(_) => 0,
        }
    }
}

/// A graph ready to run.
#[derive(Debug)]
pub(crate) struct Session {
    session: OrtSession,
    memory: DeviceMemory,
}

impl Session {
    pub(super) fn new(session: OrtSession, memory: DeviceMemory) -> Self {
        Self { session, memory }
    }

    /// Runs the graph and gives the outputs named, all of them on the host.
    pub(crate) fn run(
        &mut self,
        inputs: &[(&'static str, Feed<'_>)],
        outputs: &[&'static str],
    ) -> Result<Named<Tensor>, RuntimeError> {
        let taken = self.run_inner(inputs, outputs).map_err(RuntimeError::call("run a session"))?;
        let tensors = Named::read(taken, outputs, Tensor::from_output)?;
        self.count(inputs, &tensors);
        Ok(tensors)
    }

    /// Runs the graph. The outputs in `host` come to the host, those in `device` stay where they are made.
    pub(crate) fn run_bound(
        &mut self,
        inputs: &[(&'static str, Feed<'_>)],
        host: &[&'static str],
        device: &[&'static str],
    ) -> Result<(Named<Tensor>, Named<DeviceTensor>), RuntimeError> {
        let failed = RuntimeError::call("run a session with bound values");
        let (taken, stay) = self.bound_inner(inputs, host, device).map_err(failed)?;
        let tensors = Named::read(taken, host, Tensor::from_output)?;
        self.count(inputs, &tensors);
        let stay =
            Named::read(stay, device, |value, name| DeviceTensor::from_output(value, name, &self.memory))?;
        Ok((tensors, stay))
    }

    fn count(&self, inputs: &[(&'static str, Feed<'_>)], outputs: &Named<Tensor>) {
        let traffic = self.memory.traffic();
        traffic.count_to_device(inputs.iter().map(|(_, feed)| feed.crossing_bytes()).sum());
        traffic.count_to_host(outputs.0.iter().map(|(_, tensor)| bytes_of(tensor.shape())).sum());
    }

    fn run_inner(
        &mut self,
        inputs: &[(&'static str, Feed<'_>)],
        outputs: &[&'static str],
    ) -> ort::Result<Vec<Option<DynValue>>> {
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
        for (name, feed) in inputs {
            let value = match feed {
                Feed::View { shape, data } => TensorRef::from_array_view((*shape, *data))?.into(),
                Feed::Indices { shape, data } => TensorRef::from_array_view((*shape, *data))?.into(),
                Feed::Held(tensor) => SessionInputValue::from(&tensor.value),
                Feed::Device(tensor) => SessionInputValue::from(&tensor.value),
            };
            values.push((name, value));
        }
        let selected =
            outputs.iter().fold(OutputSelector::no_default(), |selector, name| selector.with(*name));
        let options = RunOptions::new()?.with_outputs(selected);
        let mut results = self.session.run_with_options(values, &options)?;
        Ok(outputs.iter().map(|name| results.remove(name)).collect())
    }

    #[expect(clippy::type_complexity, reason = "two lists of the same, taken apart by the caller at once")]
    fn bound_inner(
        &mut self,
        inputs: &[(&'static str, Feed<'_>)],
        host: &[&'static str],
        device: &[&'static str],
    ) -> ort::Result<(Vec<Option<DynValue>>, Vec<Option<DynValue>>)> {
        // A binding keeps its inputs and outputs until it goes, and would write into the same outputs again: one for each run.
        let mut binding = self.session.create_binding()?;
        for (name, feed) in inputs {
            match feed {
                // A view would be copied by a session of its own before it is bound.
                Feed::View { shape, data } => binding.bind_input(*name, &owned(shape, data.to_vec())?)?,
                Feed::Indices { shape, data } => {
                    binding.bind_input(*name, &OrtTensor::from_array((shape.to_vec(), data.to_vec()))?)?;
                }
                Feed::Held(tensor) => binding.bind_input(*name, &tensor.value)?,
                Feed::Device(tensor) => binding.bind_input(*name, &tensor.value)?,
            }
        }
        let (here, there) = (MemoryInfo::default(), self.memory.info()?);
        for name in host {
            binding.bind_output_to_device(*name, &here)?;
        }
        for name in device {
            binding.bind_output_to_device(*name, &there)?;
        }
        binding.synchronize_inputs()?;
        let mut results = self.session.run_binding(&binding)?;
        let mut take = |names: &[&'static str]| names.iter().map(|name| results.remove(name)).collect();
        Ok((take(host), take(device)))
    }
}

/// Outputs by name.
pub(crate) struct Named<T>(Vec<(&'static str, T)>);

impl<T> Named<T> {
    fn read(
        values: Vec<Option<DynValue>>,
        names: &[&'static str],
        read: impl Fn(Option<DynValue>, &'static str) -> Result<T, RuntimeError>,
    ) -> Result<Self, RuntimeError> {
        let each = values.into_iter().zip(names);
        each.map(|(value, name)| Ok((*name, read(value, name)?))).collect::<Result<_, _>>().map(Self)
    }

    /// Takes an output out.
    pub(crate) fn take(&mut self, name: &'static str) -> Result<T, RuntimeError> {
        let missing =
            || RuntimeError::Output { output: name.to_owned(), why: "it was not asked for".to_owned() };
        let at = self.0.iter().position(|(own, _)| *own == name).ok_or_else(missing)?;
        Ok(self.0.swap_remove(at).1)
    }
}
