//! Where keys, values and hidden states lie between runs, and what is done to them there.
//!
//! Under CUDA they stay in the memory of the GPU: a pass takes from the host what does not grow with the cache, and gives to it the new rows of keys
//! and values and what is tapped. The CPU provider computes in the host's memory, so there is nothing to keep away from it; it can be told to
//! treat its own memory as a device's, which is how the other path is tested on any machine.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::{
    family::DecoderConfig,
    graph::{Residence, gather_graph, io, join_graph, lanes_graph, visible_graph},
    runtime::{DeviceMemory, DeviceTensor, Feed, Named, Provider, Runtime, RuntimeError, Session, Tensor},
};

/// Where keys and values lie between runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMemory {
    /// In the memory of the provider: the GPU's under CUDA, the host's under the CPU provider.
    #[default]
    Provider,
    /// On the host, whatever the provider: each pass takes them along and gives them back.
    Host,
    /// As on a GPU, whatever the provider: the host sees new rows only.
    Device,
}

/// Where keys and values of a model lie.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    /// The host reads them.
    Host,
    /// Sessions read them.
    Device(Arc<Device>),
}

impl Memory {
    pub(crate) fn new(
        asked: CacheMemory,
        runtime: &Runtime,
        config: &DecoderConfig,
    ) -> Result<Self, RuntimeError> {
        let is_device = match asked {
            CacheMemory::Provider => runtime.report().provider == Provider::Cuda,
            CacheMemory::Host => false,
            CacheMemory::Device => true,
        };
        Ok(if is_device { Self::Device(Arc::new(Device::new(runtime, config)?)) } else { Self::Host })
    }

    /// What graphs have to give for it.
    pub(crate) fn residence(&self) -> Residence {
        match self {
            Self::Host => Residence::Host,
            Self::Device(_) => Residence::Device,
        }
    }

    /// Brings numbers to where sessions read them, for more than one run.
    pub(crate) fn place(&self, shape: &[usize], data: Vec<f32>) -> Result<Value, RuntimeError> {
        match self {
            Self::Host => Tensor::new(shape, data).map(Value::Host),
            Self::Device(device) => device.memory.upload(shape, data).map(Value::Device),
        }
    }
}

/// An array, wherever it lies.
#[derive(Debug)]
pub(crate) enum Value {
    /// On the host.
    Host(Tensor),
    /// On the device.
    Device(DeviceTensor),
}

impl Value {
    pub(crate) fn feed(&self) -> Feed<'_> {
        match self {
            Self::Host(tensor) => tensor.feed(),
            Self::Device(tensor) => tensor.feed(),
        }
    }
}

/// The memory of the device, and the graphs that work on caches there.
#[derive(Debug)]
pub(crate) struct Device {
    memory: DeviceMemory,
    gather: Mutex<Session>,
    join: Mutex<Session>,
    visible: Mutex<Session>,
    lanes: Mutex<Session>,
}

impl Device {
    fn new(runtime: &Runtime, config: &DecoderConfig) -> Result<Self, RuntimeError> {
        let session = |graph| runtime.session(graph).map(Mutex::new);
        Ok(Self {
            memory: runtime.memory(),
            gather: session(gather_graph(config))?,
            join: session(join_graph(config))?,
            visible: session(visible_graph(config))?,
            lanes: session(lanes_graph(config))?,
        })
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// The rows of the slots given, `[kv_head][]`, zero-padded to `longest`.
    pub(crate) fn gather(
        &self,
        rows: &DeviceTensor,
        slots: &[Vec<usize>],
        longest: usize,
    ) -> Result<DeviceTensor, RuntimeError> {
        let [heads, past, width] = [0, 1, 2].map(|axis| rows.shape()[axis]);
        if longest == 0 {
            return self.memory.upload(&[heads, 0, width], Vec::new());
        }
        let index = |slot: usize| i64::try_from(slot).unwrap_or(i64::MAX);
        let mut taken = Vec::with_capacity(heads * longest);
        for slots in slots {
            taken.extend(slots.iter().map(|slot| index(*slot)));
            taken.resize(taken.len() + longest - slots.len(), index(past));
        }
        let inputs = [
            (io::STORED, rows.feed()),
            (io::TAKEN, Feed::Indices { shape: &[heads, longest, 1], data: &taken }),
        ];
        run(&self.gather, &inputs, &[io::RESULT])?.take(io::RESULT)
    }

    /// Rows of several, one behind the other in every KV head; at least one of them.
    pub(crate) fn join(&self, parts: &[&DeviceTensor]) -> Result<DeviceTensor, RuntimeError> {
        let mut joined: Option<DeviceTensor> = None;
        let shape = parts.first().map_or_else(Vec::new, |part| part.shape().to_vec());
        let empty = self.memory.upload(&[shape[0], 0, shape[2]], Vec::new())?;
        for part in parts.iter().filter(|part| part.shape()[1] > 0) {
            let before = joined.as_ref().unwrap_or(&empty);
            let inputs = [(io::STORED, before.feed()), (io::ADDED, part.feed())];
            joined = Some(run(&self.join, &inputs, &[io::RESULT])?.take(io::RESULT)?);
        }
        Ok(joined.unwrap_or(empty))
    }

    /// What is added to the scores of the queries at `new`, and the marks of all keys after them. Marks are positions, `[1 or kv_head, 1, slot]`,
    /// minus infinity where a slot is hidden.
    pub(crate) fn visible(
        &self,
        past: &DeviceTensor,
        new: &[f32],
        reach: f32,
    ) -> Result<(DeviceTensor, DeviceTensor), RuntimeError> {
        let heads = past.shape()[0];
        let (repeated, count) = (new.repeat(heads), new.len());
        let inputs = [
            (io::PAST_MARKS, past.feed()),
            (io::NEW_MARKS, Feed::View { shape: &[heads, 1, count], data: &repeated }),
            (io::QUERY_MARKS, Feed::View { shape: &[1, count, 1], data: new }),
            (io::REACH, Feed::View { shape: &[1, 1, 1], data: &[reach] }),
        ];
        let mut given = run(&self.visible, &inputs, &[io::BIAS, io::PRESENT_MARKS])?;
        Ok((given.take(io::BIAS)?, given.take(io::PRESENT_MARKS)?))
    }

    /// What is added to the scores of rows of the lanes `new`, and the marks of all keys after them. Marks are lanes, `[1, 1, slot]`, below 0 for
    /// what all have in common; `among` is what is added for the new rows themselves, `[row * row]`.
    pub(crate) fn lanes(
        &self,
        past: &DeviceTensor,
        new: &[f32],
        among: &[f32],
    ) -> Result<(DeviceTensor, DeviceTensor), RuntimeError> {
        let count = new.len();
        let inputs = [
            (io::PAST_MARKS, past.feed()),
            (io::NEW_MARKS, Feed::View { shape: &[1, 1, count], data: new }),
            (io::QUERY_MARKS, Feed::View { shape: &[1, count, 1], data: new }),
            (io::NEW_BIAS, Feed::View { shape: &[1, count, count], data: among }),
        ];
        let mut given = run(&self.lanes, &inputs, &[io::BIAS, io::PRESENT_MARKS])?;
        Ok((given.take(io::BIAS)?, given.take(io::PRESENT_MARKS)?))
    }
}

/// Runs a graph all of whose outputs stay on the device.
fn run(
    session: &Mutex<Session>,
    inputs: &[(&'static str, Feed<'_>)],
    outputs: &[&'static str],
) -> Result<Named<DeviceTensor>, RuntimeError> {
    // A run that failed leaves nothing behind in a session.
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(session.run_bound(inputs, &[], outputs)?.1)
}
