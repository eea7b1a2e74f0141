//! Traces of each released version of the format still open, and read the same numbers.
//!
//! Fixtures are never changed. A new version gets a folder of its own under `tests/golden/traces/`:
//! add its number below, then run `cargo test --test suite -- --ignored trace::fixture::make_the_current_fixture`.

use super::branches::{problems, with_branches};
use super::support::{Recorded, SHAPE, recorded_header};
use super::weights::{values, with_weights};
use kvlab_sim::trace::{
    Dtype, Leftover, TRACE_VERSION, Trace, TraceSource, TraceVersion, TraceWriter, Weight, verify,
};
use kvlab_sim::types::SeqIdx;
use std::path::PathBuf;

/// Released versions, with the digest of the manifest of their fixture.
const RELEASED: &[(TraceVersion, &str)] = &[
    (TraceVersion { major: 1, minor: 0 }, "4591616af3dfa5456ae819b3c33371bfad8d7b02c2b827310c3bb738ba7e7987"),
    (TraceVersion { major: 1, minor: 1 }, "89468b2b3c24bfa1b5d5bf45f8f876de587857c5b3a2740565ddc77403151d25"),
];

fn fixture(version: TraceVersion) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/traces/v{version}"))
}

fn sequences() -> [Recorded; 2] {
    [Recorded::new(11, 1), Recorded::new(1, 2)]
}

#[test]
fn the_current_version_has_a_fixture() {
    assert!(RELEASED.iter().any(|(version, _)| *version == TRACE_VERSION));
}

#[test]
fn every_released_version_still_opens() {
    for (version, digest) in RELEASED.iter().filter(|(version, _)| version.major == TRACE_VERSION.major) {
        let root = fixture(*version);
        let report = verify(&root).unwrap();
        assert_eq!((report.format, report.digest.as_str()), (*version, *digest));
        assert_eq!((report.sequences, report.tokens, report.lens_facts), (2, 12, 14));
        let trace = Trace::open(&root).unwrap();
        for (seq, sequence) in (0..).map(SeqIdx::new).zip(sequences()) {
            assert_eq!(trace.tokens(seq).unwrap(), sequence.tokens);
            for layer in SHAPE.layer_ids() {
                assert_eq!(trace.hidden(seq, layer).unwrap(), sequence.hidden[layer.idx()]);
                assert_eq!(trace.layer(seq, layer).unwrap().q, sequence.q[layer.idx()]);
                assert_eq!(trace.layer(seq, layer).unwrap().v, sequence.kv[layer.idx()]);
            }
            let rows: Vec<_> =
                sequence.lens.iter().flat_map(|position| position.rows().collect::<Vec<_>>()).collect();
            assert_eq!(trace.lens(seq).unwrap(), rows);
        }
        let is_old = *version == TraceVersion { major: 1, minor: 0 };
        assert_eq!(trace.unembedding().is_err(), is_old);
        assert_eq!(trace.rope().unwrap().inv_freq.is_none(), is_old);
        let found: Vec<_> = (0..trace.problems()).map(|index| trace.problem(index).unwrap()).collect();
        assert_eq!(found, if is_old { Vec::new() } else { problems() });
        for layer in SHAPE.layer_ids().filter(|_| !is_old) {
            let w_o = trace.w_o(layer).unwrap();
            assert_eq!(w_o.as_slice().unwrap(), values(Weight::WO(layer)));
        }
    }
}

#[test]
#[ignore = "writes into the source tree; only for a new version of the format"]
fn make_the_current_fixture() {
    let header = with_branches(with_weights(recorded_header(Dtype::F16)));
    let mut writer = TraceWriter::create(&fixture(TRACE_VERSION), header, Leftover::Discard).unwrap();
    for weight in writer.missing_weights() {
        writer.put_weight(weight, &values(weight)).unwrap();
    }
    for sequence in sequences() {
        sequence.record(&mut writer, &[4]).unwrap();
    }
    for problem in problems() {
        writer.push_problem(&problem).unwrap();
    }
    // The digest to enter above is the first word of `manifest.sha256`.
    writer.finish().unwrap();
}
