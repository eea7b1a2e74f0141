//! The model that ships inside the program: a tiny decoder that solves the `chain` problems step by step.
//!
//! Responsible for putting its files where [`crate::Model::load`] can read them. Not responsible for training it: see
//! `tools/train` in the repository.

use crate::setup::{SetupOptions, sha256_of_bytes};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of the model, as a Hugging Face folder has them.
const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../assets/chain-model/config.json")),
    ("generation_config.json", include_bytes!("../assets/chain-model/generation_config.json")),
    ("model.safetensors", include_bytes!("../assets/chain-model/model.safetensors")),
    ("tokenizer.json", include_bytes!("../assets/chain-model/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../assets/chain-model/tokenizer_config.json")),
];

/// The embedded model cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No cache folder can be chosen.
    #[error(
        "failed to choose a cache folder for the embedded model: none of KVLAB_CACHE, XDG_CACHE_HOME and HOME is set"
    )]
    NoCacheFolder,
    /// A file cannot be written or read.
    #[error("failed to unpack the embedded model to {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The folder of the embedded model in the cache; it is unpacked when it is not there or differs.
///
/// # Errors
/// When there is no cache folder or it cannot be written.
pub fn embedded_model(options: &SetupOptions) -> Result<PathBuf, EmbeddedError> {
    let cache = options.cache.as_deref().ok_or(EmbeddedError::NoCacheFolder)?;
    let weights =
        FILES.iter().find(|(name, _)| *name == "model.safetensors").map_or(&[][..], |(_, bytes)| bytes);
    let digest = sha256_of_bytes(weights);
    let folder = cache.join(format!("chain-model-{}", &digest[..12]));
    fs::create_dir_all(&folder).map_err(|source| EmbeddedError::Io { path: folder.clone(), source })?;
    for (name, bytes) in FILES {
        let path = folder.join(name);
        place(&path, bytes).map_err(|source| EmbeddedError::Io { path: path.clone(), source })?;
    }
    Ok(folder)
}

/// Writes `bytes` to `path` unless they are there. Two programs at once write the same bytes and rename: either wins.
fn place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::read(path) {
        Ok(found) if found == bytes => return Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let partial = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&partial, bytes)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_in_the_cache_is_mended_and_intact_files_are_left_alone() {
        let cache = tempfile::tempdir().unwrap();
        let options = SetupOptions { cache: Some(cache.path().to_owned()), ..SetupOptions::from_env() };
        let folder = embedded_model(&options).unwrap();
        fs::write(folder.join("config.json"), "{}").unwrap();
        assert_eq!(embedded_model(&options).unwrap(), folder);
        for (name, bytes) in FILES {
            assert_eq!(&fs::read(folder.join(name)).unwrap(), bytes, "{name}");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), FILES.len(), "no temporary file is left");
    }
}
