//! What is written is read, whatever the shapes, the chunks and the storage type.

use super::support::{Folder, Recorded, SHAPE, files, generated, recorded_header, sha256};
use kvlab_sim::trace::synth::{SynthLength, SynthSpec, Synthetic, WORKLOADS};
use kvlab_sim::trace::{Dtype, Leftover, Trace, TraceError, TraceSource, TraceWriter, verify};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};
use ndarray::Array3;
use proptest::prelude::*;
use std::fs;

fn spec() -> impl Strategy<Value = SynthSpec> {
    let shape = (1..=3_u16, 1..=2_u16, 1..=2_u16, 1..=16_u16, 1..=60_u32).prop_map(
        |(layers, kv_heads, group, head_dim, vocab)| ModelShape {
            layers,
            q_heads: kv_heads * group,
            kv_heads,
            head_dim,
            hidden: 8,
            vocab,
        },
    );
    let length = (1..=80_u32)
        .prop_flat_map(|len| (1..=len).prop_map(move |prompt_len| SynthLength { prompt_len, len }));
    (shape, prop::collection::vec(length, 1..4), any::<u64>()).prop_map(|(shape, lengths, seed)| SynthSpec {
        shape,
        lengths,
        seed,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_written_trace_is_the_trace(
        spec in spec(),
        workload in 0..WORKLOADS.len(),
        shard_tokens in 1..90_u32,
        lens_top in 0..4_u16,
        half in any::<bool>(),
    ) {
        let folder = Folder::empty();
        let lens_top = lens_top.min(u16::try_from(spec.shape.vocab).unwrap());
        let dtype = if half { Dtype::F16 } else { Dtype::F32 };
        let source = Synthetic::build(WORKLOADS[workload].id, spec.clone()).unwrap();
        let finished = source.write(&folder.trace(), dtype, lens_top, shard_tokens, Leftover::Refuse).unwrap();
        let report = verify(&folder.trace()).unwrap();
        prop_assert_eq!(report.tokens, spec.lengths.iter().map(|l| u64::from(l.len)).sum::<u64>());
        prop_assert!(report.synthetic && report.unlisted.is_empty());

        let trace = Trace::open(&folder.trace()).unwrap();
        prop_assert_eq!(trace.digest(), finished.digest);
        prop_assert_eq!(trace.sequences(), source.sequences());
        let stored = |tensor: Array3<f32>| {
            if half { tensor.mapv(|value| half::f16::from_f32(value).to_f32()) } else { tensor }
        };
        for meta in source.sequences() {
            prop_assert_eq!(trace.lens(meta.seq).unwrap(), source.lens(meta.seq).unwrap());
            prop_assert_eq!(trace.tokens(meta.seq).unwrap().len(), meta.len as usize);
            for layer in spec.shape.layer_ids() {
                let (found, made) = (trace.layer(meta.seq, layer).unwrap(), source.layer(meta.seq, layer).unwrap());
                prop_assert_eq!(found.q, stored(made.q));
                prop_assert_eq!(found.k, stored(made.k));
                prop_assert_eq!(found.v, stored(made.v));
            }
        }
    }

    #[test]
    fn chunk_sizes_leave_no_mark(sizes in prop::collection::vec(1..12_usize, 1..6), len in 1..20_u32) {
        let write = |sizes: &[usize]| {
            let folder = Folder::empty();
            let mut writer =
                TraceWriter::create(&folder.trace(), recorded_header(Dtype::F16), Leftover::Refuse).unwrap();
            Recorded::new(len, 1).record(&mut writer, sizes).unwrap();
            writer.finish().unwrap();
            files(&folder.trace())
        };
        prop_assert_eq!(write(&sizes), write(&[100]));
    }
}

#[test]
fn a_recorded_trace_gives_back_every_field() {
    let folder = Folder::empty();
    let mut writer =
        TraceWriter::create(&folder.trace(), recorded_header(Dtype::F16), Leftover::Refuse).unwrap();
    let recorded = [Recorded::new(11, 1), Recorded::new(3, 2)];
    for sequence in &recorded {
        sequence.record(&mut writer, &[5, 2]).unwrap();
    }
    writer.finish().unwrap();
    let report = verify(&folder.trace()).unwrap();
    assert_eq!((report.sequences, report.tokens, report.shards), (2, 14, 4));
    // Lens facts at positions 5..11 and 1..3, two layers each.
    assert_eq!(report.lens_facts, 16);
    let trace = Trace::open(&folder.trace()).unwrap();
    for (seq, sequence) in (0..).map(SeqIdx::new).zip(&recorded) {
        assert_eq!(trace.tokens(seq).unwrap(), sequence.tokens);
        for layer in SHAPE.layer_ids() {
            assert_eq!(trace.hidden(seq, layer).unwrap(), sequence.hidden[layer.idx()]);
            let tensors = trace.layer(seq, layer).unwrap();
            assert_eq!((&tensors.q, &tensors.k), (&sequence.q[layer.idx()], &sequence.kv[layer.idx()]));
        }
        let top = trace.lens_top(seq).unwrap();
        let recorded_top: Vec<_> =
            sequence.lens.iter().flat_map(|at| at.layers.iter().map(|fact| fact.top.clone())).collect();
        assert_eq!(top, recorded_top);
    }
    assert_eq!(trace.sequence(SeqIdx::new(0)).unwrap().generated_text.as_deref(), Some("2"));
    assert!(!trace.is_synthetic());
}

#[test]
fn two_writes_give_identical_bytes() {
    let folders = [Folder::empty(), Folder::empty()];
    for folder in &folders {
        generated().write(&folder.trace(), Dtype::F32, 2, 4, Leftover::Refuse).unwrap();
    }
    assert_eq!(files(&folders[0].trace()), files(&folders[1].trace()));
}

#[test]
fn the_manifest_covers_every_file_and_its_digest_is_that_of_the_source() {
    let folder = Folder::with_trace();
    let manifest = folder.manifest();
    let listed: Vec<_> =
        ["tables", "shards"].iter().flat_map(|list| manifest[list].as_array().unwrap().clone()).collect();
    for (inside, content) in files(&folder.trace()) {
        match inside.as_str() {
            "manifest.json" => assert_eq!(Trace::open(&folder.trace()).unwrap().digest(), sha256(&content)),
            "manifest.sha256" => {}
            _ => {
                let entry = listed.iter().find(|entry| entry["path"] == inside.as_str()).unwrap();
                assert_eq!(entry["sha256"], sha256(&content).as_str());
            }
        }
    }
}

#[test]
fn shards_are_plain_safetensors_files() {
    let folder = Folder::with_trace();
    let bytes = fs::read(folder.path("tensors/00000-00000004.safetensors")).unwrap();
    let shard = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let q = shard.tensor("layer001.q").unwrap();
    assert_eq!((q.dtype(), q.shape()), (safetensors::Dtype::F32, [2, 4, 4].as_slice()));
    let first = f32::from_le_bytes(q.data()[..4].try_into().unwrap());
    let expected = generated().layer(SeqIdx::new(0), LayerIdx::new(1)).unwrap().q[[0, 4, 0]];
    assert_eq!(first.to_bits(), expected.to_bits());
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let folder = Folder::with_trace();
    let trace = Trace::open(&folder.trace()).unwrap();
    let error = trace.hidden(SeqIdx::new(0), LayerIdx::new(0)).unwrap_err();
    assert!(matches!(error, TraceError::MissingField { field: "hidden", .. }), "{error}");
    for (seq, layer, what) in [(2, 0, "sequence"), (0, 2, "layer")] {
        let error = trace.layer(SeqIdx::new(seq), LayerIdx::new(layer)).unwrap_err();
        assert!(
            matches!(&error, TraceError::OutOfRange { what: found, given: 2, count: 2 } if *found == what),
            "{error}"
        );
    }
}
