//! CUDA: how it is registered, whether it works, and why not.

use std::path::Path;

use ort::{
    ep,
    session::{Session as OrtSession, SessionInputValue},
    value::Tensor as OrtTensor,
};

use super::environment::Running;
use crate::{graph, setup::CUDA_NEEDS};

pub(super) fn cuda() -> ep::ExecutionProviderDispatch {
    // Full f32 products, so that results are comparable with the CPU's.
    ep::CUDA::default().with_tf32(false).build().error_on_failure()
}

/// Registers CUDA, then really runs a small session on it. Registration alone says nothing: without a driver it can
/// succeed, and by default its failure is silent.
pub(super) fn try_cuda(running: &Running) -> Result<(), String> {
    let environment = &running.environment;
    let folder = running.library.path.parent().unwrap_or(Path::new(""));
    // The provider looks for NVIDIA's libraries where the system does; those beside it are found once they are loaded.
    for path in CUDA_NEEDS.iter().map(|name| folder.join(name)).filter(|path| path.is_file()) {
        ort::util::preload_dylib(&path)
            .map_err(|error| format!("{} cannot be loaded: {error}", path.display()))?;
    }
    let attempt = || -> ort::Result<()> {
        let mut builder = OrtSession::builder(environment)?;
        cuda().register(&mut builder)?;
        let mut session = builder.with_disable_cpu_fallback()?.commit_from_memory(&graph::probe(None))?;
        let input = OrtTensor::from_array(([1_usize, 1], vec![1.0_f32]))?;
        session.run(vec![(graph::io::ROWS, SessionInputValue::from(input))])?;
        Ok(())
    };
    attempt().map_err(|error| cuda_reason(folder, error.message()))
}

/// Why CUDA does not work, from the runtime's own words where there are no better ones.
fn cuda_reason(folder: &Path, said: &str) -> String {
    const PROVIDER: &str = "libonnxruntime_providers_cuda.so";
    // Files and functions of the runtime come first, then what happened.
    let said = said.rsplit(" : FAIL : ").next().unwrap_or(said).trim();
    if said.contains("not enabled in this build") {
        return format!("the ONNX Runtime library in {} was built without CUDA", folder.display());
    }
    if !said.starts_with("Failed to load library") {
        return said.to_owned();
    }
    let parts = ["libonnxruntime_providers_shared.so", PROVIDER];
    if let Some(part) = parts.into_iter().find(|part| !folder.join(part).is_file()) {
        return format!(
            "the provider library {part} is not in {}, beside the ONNX Runtime library",
            folder.display()
        );
    }
    let missing: Vec<&str> =
        CUDA_NEEDS.into_iter().filter(|name| ort::util::preload_dylib(*name).is_err()).collect();
    match missing.as_slice() {
        [] => said.to_owned(),
        ["libcuda.so.1"] => {
            "libcuda.so.1 is missing: it comes with NVIDIA's driver, so this machine has none, or no GPU"
                .to_owned()
        }
        _ => format!("libraries that {PROVIDER} needs are missing: {}", missing.join(", ")),
    }
}
