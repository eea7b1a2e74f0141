//! Arrays that the runtime holds, on the host and on the device of the provider.

use std::sync::Arc;

use ort::{
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    value::{DynValue, Tensor as OrtTensor, TensorValueType, Value},
};

use super::{environment::Provider, error::RuntimeError, session::Feed, traffic::Traffic};

/// Bytes of so many numbers.
pub(super) fn bytes_of(shape: &[usize]) -> usize {
    shape.iter().product::<usize>() * size_of::<f32>()
}

/// An array of `f32` that the runtime holds where the host reads it.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(super) value: DynValue,
    shape: Vec<usize>,
}

impl Tensor {
    /// Takes an array over.
    pub(crate) fn new(shape: &[usize], data: Vec<f32>) -> Result<Self, RuntimeError> {
        let value = owned(shape, data).map_err(RuntimeError::call("make a value"))?;
        Ok(Self { value: value.into_dyn(), shape: shape.to_vec() })
    }

    pub(super) fn from_output(value: Option<DynValue>, name: &'static str) -> Result<Self, RuntimeError> {
        let (value, shape) = checked(value, name)?;
        let value = value.into_dyn();
        // What lies elsewhere cannot be read, and says so here rather than when somebody looks.
        value.try_extract_tensor::<f32>().map_err(|error| wrong(name)(error.message().to_owned()))?;
        Ok(Self { value, shape })
    }

    /// Outermost first.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Row-major.
    pub(crate) fn data(&self) -> &[f32] {
        let (_, data) = self.value.try_extract_tensor::<f32>().expect("it was read as f32 when it was made");
        data
    }

    pub(crate) fn feed(&self) -> Feed<'_> {
        Feed::Held(self)
    }
}

/// An array of `f32` on the device of the provider. Only sessions read it.
#[derive(Debug)]
pub(crate) struct DeviceTensor {
    pub(super) value: OrtTensor<f32>,
    shape: Vec<usize>,
    memory: DeviceMemory,
}

impl DeviceTensor {
    pub(super) fn from_output(
        value: Option<DynValue>,
        name: &'static str,
        memory: &DeviceMemory,
    ) -> Result<Self, RuntimeError> {
        let (value, shape) = checked(value, name)?;
        Ok(Self { value, shape, memory: memory.clone() })
    }

    /// Outermost first.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn feed(&self) -> Feed<'_> {
        Feed::Device(self)
    }

    /// A copy on the host.
    pub(crate) fn to_host(&self) -> Result<Tensor, RuntimeError> {
        if bytes_of(&self.shape) == 0 {
            return Tensor::new(&self.shape, Vec::new());
        }
        self.memory.traffic.count_to_host(bytes_of(&self.shape));
        let value = self.value.to(AllocationDevice::CPU, 0);
        let value = value.map_err(RuntimeError::call("copy a value to the host"))?;
        Ok(Tensor { value: value.into_dyn(), shape: self.shape.clone() })
    }
}

/// The memory that sessions of a provider compute in: that of the GPU under CUDA, the host's own under the CPU provider.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMemory {
    provider: Provider,
    traffic: Arc<Traffic>,
}

impl DeviceMemory {
    pub(super) fn new(provider: Provider, traffic: Arc<Traffic>) -> Self {
        Self { provider, traffic }
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn device(&self) -> AllocationDevice<'static> {
        match self.provider {
            Provider::Cuda => AllocationDevice::CUDA,
            Provider::Cpu => AllocationDevice::CPU,
        }
    }

    pub(super) fn info(&self) -> ort::Result<MemoryInfo<'static>> {
        MemoryInfo::new(self.device(), 0, AllocatorType::Device, MemoryType::Default)
    }

    /// Copies an array there.
    pub(crate) fn upload(&self, shape: &[usize], data: Vec<f32>) -> Result<DeviceTensor, RuntimeError> {
        self.traffic.count_to_device(bytes_of(shape));
        let attempt = || {
            let value = owned(shape, data)?;
            // Nothing can be copied of an array without elements, and under the CPU provider it is there.
            if self.provider == Provider::Cpu || bytes_of(shape) == 0 {
                return Ok(value);
            }
            value.to(self.device(), 0)
        };
        let value = attempt().map_err(RuntimeError::call("copy a value to the device"))?;
        Ok(DeviceTensor { value, shape: shape.to_vec(), memory: self.clone() })
    }
}

fn wrong(name: &str) -> impl Fn(String) -> RuntimeError {
    move |why| RuntimeError::Output { output: name.to_owned(), why }
}

/// A value of the host that keeps its numbers.
pub(super) fn owned(shape: &[usize], data: Vec<f32>) -> ort::Result<OrtTensor<f32>> {
    if data.is_empty() {
        // Allocated by the runtime, since an empty vector has no address to hand over.
        return OrtTensor::<f32>::new(&Allocator::default(), shape.to_vec());
    }
    OrtTensor::from_array((shape.to_vec(), data))
}

/// An output as `f32`, and its shape.
fn checked(
    value: Option<DynValue>,
    name: &'static str,
) -> Result<(Value<TensorValueType<f32>>, Vec<usize>), RuntimeError> {
    let wrong = wrong(name);
    let value = value.ok_or_else(|| wrong("it did not come".to_owned()))?;
    let value: OrtTensor<f32> = value.downcast().map_err(|error| wrong(error.message().to_owned()))?;
    let shape = value.shape().iter().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| wrong("a dimension is negative".to_owned()))?;
    Ok((value, shape))
}
