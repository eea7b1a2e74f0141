//! Damage: no changed, missing or additional byte of a trace goes unnoticed.

use super::branches::with_branches;
use super::support::{Folder, files, recorded_header};
use super::weights::with_all_weights;
use kvlab_sim::trace::synth::{BranchParams, SynthLength, SynthSpec, Synthetic, SyntheticBranches};
use kvlab_sim::trace::{
    Dtype, Leftover, Request, StoredFields, StoredRequests, TraceError, TraceSource, TraceWriter, verify,
};
use kvlab_sim::types::ModelShape;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};

/// As few bytes as a trace can have with every kind of file in it.
fn smallest() -> Folder {
    let folder = Folder::empty();
    let shape = ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 1, hidden: 1, vocab: 3 };
    let spec = SynthSpec { shape, lengths: vec![SynthLength { prompt_len: 1, len: 2 }], seed: 1 };
    let source = Synthetic::build("noise", spec).unwrap();
    source.write(&folder.trace(), Dtype::F16, 1, 8, Leftover::Refuse).unwrap();
    folder
}

/// The same with everything that format 1.1 brought: weights, branch trees, requests.
fn smallest_of_1_1() -> Folder {
    let folder = Folder::empty();
    let shape = ModelShape { layers: 1, q_heads: 1, kv_heads: 1, head_dim: 2, hidden: 1, vocab: 3 };
    let params = BranchParams {
        problems: 1,
        branches: 1,
        prefix_tokens: 1,
        suffix_tokens: 1,
        generated: 1,
        ..BranchParams::default()
    };
    let problem = SyntheticBranches::build(shape, 1, params).unwrap().problem(0).unwrap();
    let mut header = with_branches(with_all_weights(recorded_header(Dtype::F16)));
    header.shape = shape;
    header.rope.as_mut().unwrap().inv_freq = Some(vec![1.0]);
    header.fields = StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 };
    header.branches.as_mut().unwrap().yes_token = Some(1);
    header.branches.as_mut().unwrap().no_token = Some(2);
    header.requests = Some(StoredRequests { block_tokens: 4 });
    let mut writer = TraceWriter::create(&folder.trace(), header, Leftover::Refuse).unwrap();
    for weight in writer.missing_weights() {
        let count = weight.dims(&shape).iter().product::<u64>();
        writer.put_weight(weight, &vec![1.5; usize::try_from(count).unwrap()]).unwrap();
    }
    writer.push_problem(&problem).unwrap();
    let request = Request { timestamp_ms: 3, input_tokens: 5, output_tokens: 1, hashes: vec![0, 7] };
    writer.push_requests(&[request]).unwrap();
    writer.finish().unwrap();
    folder
}

#[test]
fn every_changed_byte_of_the_parts_of_1_1_is_refused() {
    let folder = smallest_of_1_1();
    let found = files(&folder.trace());
    assert!(found.len() > 12, "{found:?}");
    for (inside, content) in found {
        let mut file = open(&folder, &inside);
        for (at, &byte) in content.iter().enumerate() {
            overwrite(&mut file, at, byte ^ (1 << (at % 8)));
            assert!(verify(&folder.trace()).is_err(), "{inside}: byte {at}");
            overwrite(&mut file, at, byte);
        }
        for length in [0, content.len() / 2, content.len() - 1] {
            file.set_len(length as u64).unwrap();
            assert!(verify(&folder.trace()).is_err(), "{inside} cut to {length} bytes");
        }
        drop(file);
        fs::remove_file(folder.path(&inside)).unwrap();
        let error = verify(&folder.trace()).unwrap_err();
        assert!(error.to_string().contains(&inside), "{inside}: {error}");
        fs::write(folder.path(&inside), &content).unwrap();
    }
    verify(&folder.trace()).unwrap();
}

/// Opens a file of the trace to change it in place.
fn open(folder: &Folder, inside: &str) -> File {
    File::options().read(true).write(true).open(folder.path(inside)).unwrap()
}

fn overwrite(file: &mut File, at: usize, byte: u8) {
    file.seek(SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&[byte]).unwrap();
}

#[test]
fn every_changed_byte_is_refused() {
    let folder = smallest();
    for (inside, content) in files(&folder.trace()) {
        let mut file = open(&folder, &inside);
        for (at, &byte) in content.iter().enumerate() {
            overwrite(&mut file, at, byte ^ (1 << (at % 8)));
            assert!(verify(&folder.trace()).is_err(), "{inside}: byte {at}");
            overwrite(&mut file, at, byte);
        }
    }
    verify(&folder.trace()).unwrap();
}

#[test]
fn every_cut_is_refused_and_so_is_every_addition() {
    let folder = smallest();
    for (inside, content) in files(&folder.trace()) {
        let mut file = open(&folder, &inside);
        for more in [b' ', b'\n', 0] {
            overwrite(&mut file, content.len(), more);
            assert!(verify(&folder.trace()).is_err(), "{inside} with {more:?} added");
        }
        for length in (0..content.len()).rev() {
            file.set_len(length as u64).unwrap();
            assert!(verify(&folder.trace()).is_err(), "{inside} cut to {length} bytes");
        }
        fs::write(folder.path(&inside), &content).unwrap();
    }
    verify(&folder.trace()).unwrap();
}

#[test]
fn every_missing_file_is_refused_with_its_name() {
    let folder = smallest();
    for (inside, content) in files(&folder.trace()) {
        fs::remove_file(folder.path(&inside)).unwrap();
        let error = verify(&folder.trace()).unwrap_err();
        assert!(error.to_string().contains(&inside), "{inside}: {error}");
        fs::write(folder.path(&inside), content).unwrap();
    }
}

#[test]
fn damage_in_a_tensor_is_named_with_both_digests() {
    let folder = Folder::with_trace();
    let inside = "tensors/00000-00000004.safetensors";
    let mut content = fs::read(folder.path(inside)).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    fs::write(folder.path(inside), content).unwrap();
    match verify(&folder.trace()).unwrap_err() {
        TraceError::Checksum { path, expected, found } => {
            assert_eq!(path, folder.path(inside));
            assert!(expected.len() == 64 && found.len() == 64 && expected != found);
        }
        other => panic!("{other}"),
    }
}
