//! Models and golden files for the tests of this folder.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use kvlab_executor::{
    LoadOptions, Model, ProviderChoice, Quiet, TinySpec,
    branches::{BranchPlan, Protocol, TreeSet},
    embedded_model,
    setup::{SetupOptions, ensure_library, ensure_model},
};
use kvlab_sim::trace::{ToolInfo, WorkloadInfo};
use safetensors::SafeTensors;

/// One thread for all tests: the process can have only one answer.
pub(crate) fn load_options() -> LoadOptions {
    let library = ensure_library(&SetupOptions::from_env(), &Quiet).unwrap();
    LoadOptions {
        threads: NonZeroUsize::new(2).unwrap(),
        provider: ProviderChoice::Cpu,
        attention: true,
        ..LoadOptions::new(library)
    }
}

pub(crate) fn tiny(spec: TinySpec) -> Model {
    Model::tiny(spec, &load_options()).unwrap()
}

/// The embedded model, unpacked into `cache`, from where its digests are read again.
pub(crate) fn embedded(cache: &Path) -> Model {
    let options = SetupOptions { cache: Some(cache.to_owned()), ..SetupOptions::from_env() };
    Model::load(&embedded_model(&options).unwrap(), &load_options(), &Quiet).unwrap()
}

/// How the tests of this folder record and run the trees of `set`.
pub(crate) fn branch_plan(set: &TreeSet) -> BranchPlan {
    BranchPlan {
        chunk: chunk(64),
        max_new_tokens: 120,
        batch: NonZeroUsize::MIN,
        protocol: Protocol::Corrected,
        steps: true,
        times: false,
        tool: ToolInfo { name: "kvlab".to_owned(), version: "0".to_owned(), revision: None },
        workload: WorkloadInfo { name: set.name.clone(), seed: 7, file_sha256: None },
        seed: 7,
        grader: set.grader,
        verdict_words: set.verdict_words,
    }
}

/// The demonstration model, loaded once for all tests.
pub(crate) fn smollm2() -> MutexGuard<'static, Model> {
    static MODEL: OnceLock<Mutex<Model>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let file = ensure_model(&SetupOptions::from_env(), &Quiet).unwrap();
        let options = LoadOptions { attention: false, ..load_options() };
        Mutex::new(Model::load(&file.path, &options, &Quiet).unwrap())
    });
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn chunk(size: usize) -> NonZeroUsize {
    NonZeroUsize::new(size).unwrap()
}

/// A file of expected numbers.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn forward(name: &str) -> Self {
        Self::open(&golden_folder().join("forward").join(name))
    }

    pub(crate) fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn bytes(&self, name: &str, width: usize) -> (Vec<usize>, Vec<Vec<u8>>) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        (tensor.shape().to_vec(), tensor.data().chunks_exact(width).map(<[u8]>::to_vec).collect())
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        let (_, items) = self.bytes(name, 4);
        items.iter().map(|item| f32::from_le_bytes(item.as_slice().try_into().unwrap())).collect()
    }

    pub(crate) fn f16(&self, name: &str) -> Vec<f32> {
        let (_, items) = self.bytes(name, 2);
        items
            .iter()
            .map(|item| half::f16::from_le_bytes(item.as_slice().try_into().unwrap()).to_f32())
            .collect()
    }

    pub(crate) fn f64(&self, name: &str) -> Vec<f64> {
        let (_, items) = self.bytes(name, 8);
        items.iter().map(|item| f64::from_le_bytes(item.as_slice().try_into().unwrap())).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let (_, items) = self.bytes(name, 4);
        items
            .iter()
            .map(|item| i32::from_le_bytes(item.as_slice().try_into().unwrap()).cast_unsigned())
            .collect()
    }
}

pub(crate) fn golden_folder() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = if here.ends_with("executor") { here.parent().unwrap().to_owned() } else { here };
    root.join("tests").join("golden")
}

/// The largest difference of two rows.
pub(crate) fn worst(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max)
}

pub(crate) fn worst64(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}
