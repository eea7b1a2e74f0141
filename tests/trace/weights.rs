//! Weights beside the tensors, and rotation undone.

use super::support::{Folder, SHAPE, end, files, recorded_header, start};
use kvlab_sim::rope::{Rope, RopeError};
use kvlab_sim::trace::{
    Chunk, Dtype, KeyState, Leftover, NormInfo, RopeInfo, StoredFields, StoredWeights, Trace, TraceError,
    TraceHeader, TraceSource, TraceWriter, Weight, verify,
};
use kvlab_sim::types::{LayerIdx, Pos, TokenId};
use std::fs;
use std::path::Path;

/// The weights beside recorded tensors: not the unembedding, with which the made-up lens facts would have to agree.
pub(crate) fn with_weights(header: TraceHeader) -> TraceHeader {
    let final_norm = Some(NormInfo { kind: "rms".to_owned(), eps: 1e-5 });
    let weights = StoredWeights { w_o: Some(Dtype::F16), final_norm, unembedding: None };
    TraceHeader { weights, ..header }
}

/// All weights, exact in half precision.
pub(crate) fn with_all_weights(header: TraceHeader) -> TraceHeader {
    let mut header = with_weights(header);
    header.weights.unembedding = Some(Dtype::F32);
    header
}

/// Element `i` of a weight.
pub(crate) fn value(weight: Weight, i: usize) -> f32 {
    let salt = match weight {
        Weight::WO(layer) => layer.idx(),
        Weight::FinalNorm => 5,
        Weight::Unembedding => 9,
    };
    f32::from(u8::try_from((i * 7 + salt) % 64).unwrap()) / 8.0 - 3.0
}

pub(crate) fn values(weight: Weight) -> Vec<f32> {
    let count = weight.dims(&SHAPE).iter().product::<u64>();
    (0..usize::try_from(count).unwrap()).map(|i| value(weight, i)).collect()
}

fn written(folder: &Folder, stop_after: usize) -> Option<TraceWriter> {
    let mut writer = TraceWriter::create(&folder.trace(), bare_header(), Leftover::Resume).unwrap();
    for (done, weight) in writer.missing_weights().into_iter().enumerate() {
        if done == stop_after {
            return None;
        }
        writer.put_weight(weight, &values(weight)).unwrap();
    }
    Some(writer)
}

fn complete(folder: &Folder) {
    let mut writer = written(folder, usize::MAX).unwrap();
    record_tokens(&mut writer);
    writer.finish().unwrap();
}

/// All weights, and sequences of tokens alone.
fn bare_header() -> TraceHeader {
    let fields = StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 };
    TraceHeader { fields, ..with_all_weights(recorded_header(Dtype::F16)) }
}

fn record_tokens(writer: &mut TraceWriter) {
    writer.begin_sequence(start(9)).unwrap();
    let tokens: Vec<TokenId> = (0..9).map(TokenId::new).collect();
    writer.push(&Chunk { tokens: &tokens, ..Chunk::default() }).unwrap();
    writer.end_sequence(end()).unwrap();
}

#[test]
fn weights_come_back_in_their_shapes() {
    let folder = Folder::empty();
    complete(&folder);
    let report = verify(&folder.trace()).unwrap();
    assert!(report.unlisted.is_empty(), "{:?}", report.unlisted);
    let trace = Trace::open(&folder.trace()).unwrap();
    let w_o = trace.w_o(LayerIdx::new(1)).unwrap();
    assert_eq!(w_o.dim(), (3, 2, 4));
    // Row-major: hidden 2, head 1, channel 3 is the last element.
    assert_eq!(w_o[[2, 1, 3]].to_bits(), value(Weight::WO(LayerIdx::new(1)), 23).to_bits());
    assert_eq!(trace.final_norm().unwrap(), values(Weight::FinalNorm));
    let unembedding = trace.unembedding().unwrap();
    assert_eq!((unembedding.dim(), unembedding[[39, 1]]), ((40, 3), value(Weight::Unembedding, 118)));
    assert!(matches!(trace.w_o(LayerIdx::new(2)), Err(TraceError::OutOfRange { what: "layer", .. })));
    let bare = Folder::with_trace();
    let error = Trace::open(&bare.trace()).unwrap().w_o(LayerIdx::new(0)).unwrap_err();
    assert!(matches!(error, TraceError::MissingField { field: "weights.w_o", .. }), "{error}");
}

#[test]
fn a_recording_cut_among_its_weights_goes_on_behind_the_last_whole_one() {
    let undisturbed = Folder::empty();
    complete(&undisturbed);
    for cut in 0..4 {
        let folder = Folder::empty();
        assert!(written(&folder, cut).is_none());
        if cut == 3 {
            // A damaged one is written again, and those behind it.
            fs::write(folder.partial().join("weights/layer001.w_o.safetensors"), b"cut").unwrap();
        }
        complete(&folder);
        assert_eq!(files(&folder.trace()), files(&undisturbed.trace()), "{cut}");
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let folder = Folder::empty();
    let mut writer = TraceWriter::create(&folder.trace(), bare_header(), Leftover::Refuse).unwrap();
    let first = Weight::WO(LayerIdx::new(0));
    let error = writer.put_weight(Weight::FinalNorm, &values(Weight::FinalNorm)).unwrap_err();
    assert!(error.to_string().contains("layer000.w_o"), "{error}");
    let error = writer.put_weight(first, &[0.0; 5]).unwrap_err();
    assert!(error.to_string().contains("5 values"), "{error}");
    let mut bad = values(first);
    bad[7] = f32::NAN;
    let error = writer.put_weight(first, &bad).unwrap_err();
    assert!(matches!(error, TraceError::NonFiniteWeight { element: 7, .. }), "{error}");
    bad[7] = 65_505.0;
    assert!(matches!(writer.put_weight(first, &bad), Err(TraceError::Chunk { .. })));
    record_tokens(&mut writer);
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("no weights/layer000.w_o.safetensors"), "{error}");
}

fn golden(name: &str, tensor: &str) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/forward").join(name);
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let data = file.tensor(tensor).unwrap();
    data.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn rotation_is_undone_as_an_independent_implementation_had_it() {
    // SmolLM2: theta 1e5, 64 channels, no scaling, pairs half a head apart.
    let inv_freq = (0..32).map(|i| f64::from(1.0 / 1e5_f64.powf(f64::from(i) / 32.0) as f32)).collect();
    let info = RopeInfo {
        style: "rotate-half".to_owned(),
        theta: 1e5,
        scaling: None,
        keys: KeyState::PostRope,
        inv_freq: Some(inv_freq),
        attention_scaling: Some(1.0),
    };
    let rope = Rope::new(&info).unwrap();
    for layer in [0, 29] {
        for which in ["q", "k"] {
            let before = golden("pre_rope.safetensors", &format!("layer{layer}.{which}_pre_rope"));
            let after = golden("short.safetensors", &format!("layer{layer}.{which}_post_rope"));
            let largest = after.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
            for (row, (before, after)) in before.chunks_exact(64).zip(after.chunks_exact(64)).enumerate() {
                let turn = rope.at(Pos::new(14 + (row % 6) as u32));
                let mut found = after.to_vec();
                turn.unrotate(&mut found);
                let close =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-6 * largest);
                assert!(close(&found, before), "layer {layer} {which} row {row}");
                let mut forth = before.to_vec();
                turn.rotate(&mut forth);
                assert!(close(&forth, after), "layer {layer} {which} row {row}, forth");
            }
        }
    }
    let old = RopeInfo { inv_freq: None, attention_scaling: None, ..info };
    assert_eq!(Rope::new(&old), Err(RopeError::NoFrequencies));
}
