//! Results folders that nobody vouches for.

use super::fixture::study;
use crate::fuzz::fuzz;
use kvlab_sim::results::{Formats, read, write};
use std::fs;

#[test]
fn results_folders() {
    let folder = tempfile::tempdir().unwrap();
    let source = study();
    write(folder.path(), &source, Formats::PARQUET).unwrap();
    for file in ["results.json", "cells.parquet", "series.parquet"] {
        let content = fs::read(folder.path().join(file)).unwrap();
        fuzz(file, std::slice::from_ref(&content), |bytes| {
            fs::write(folder.path().join(file), bytes).unwrap();
            drop(read(folder.path()));
        });
        fs::write(folder.path().join(file), content).unwrap();
    }
}
