//! Random damage under right digests: whatever a file says, the answer is a value or an error, never a panic.

use super::support::{Folder, files};
use kvlab_sim::trace::{Trace, TraceSource, verify};
use proptest::prelude::*;
use proptest::sample::Index;

/// Reads everything there is to read, as far as it goes.
fn read_all(folder: &Folder) {
    drop(verify(&folder.trace()));
    let Ok(trace) = Trace::open(&folder.trace()) else { return };
    for meta in trace.sequences() {
        drop(trace.tokens(meta.seq));
        drop(trace.lens(meta.seq));
        drop(trace.lens_top(meta.seq));
        for layer in trace.shape().layer_ids().take(3) {
            drop(trace.layer(meta.seq, layer));
            drop(trace.hidden(meta.seq, layer));
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(Index, u8)>> {
    // Digits and JSON punctuation reach further into the checks than bytes that no parser accepts.
    let byte =
        prop_oneof![Just(b'0'), Just(b'9'), Just(b'-'), Just(b','), Just(b'"'), Just(b' '), any::<u8>()];
    prop::collection::vec((any::<Index>(), byte), 1..4)
}

fn changed(content: &[u8], changes: &[(Index, u8)]) -> Vec<u8> {
    let mut content = content.to_vec();
    for (at, byte) in changes {
        let at = at.index(content.len());
        content[at] = *byte;
    }
    content
}

proptest! {
    #[test]
    fn a_changed_manifest_is_read_or_refused(changes in changes()) {
        let folder = Folder::with_trace();
        let text = serde_json::to_string(&folder.manifest()).unwrap();
        folder.seal_bytes(&changed(text.as_bytes(), &changes));
        read_all(&folder);
    }

    #[test]
    fn a_changed_file_is_read_or_refused(file in any::<Index>(), changes in changes()) {
        let folder = Folder::with_trace();
        let files: Vec<_> =
            files(&folder.trace()).into_iter().filter(|(inside, _)| inside.contains('/')).collect();
        let (inside, content) = &files[file.index(files.len())];
        folder.replace(inside, &changed(content, &changes));
        read_all(&folder);
    }

    #[test]
    fn a_changed_tensor_header_is_read_or_refused(changes in prop::collection::vec((0..700_usize, any::<u8>()), 1..4)) {
        let folder = Folder::with_trace();
        let inside = "tensors/00000-00000000.safetensors";
        let mut content = std::fs::read(folder.path(inside)).unwrap();
        for (at, byte) in changes {
            content[at] = byte;
        }
        folder.replace(inside, &content);
        read_all(&folder);
    }
}
