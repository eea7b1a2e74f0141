//! Content that somebody made wrong on purpose: every digest is right, something else is not.

use super::support::{Folder, SHAPE, files};
use kvlab_sim::trace::{PathFault, Trace, TraceError, TraceSource, verify};
use kvlab_sim::types::{LayerIdx, ModelShape, SeqIdx};
use serde_json::{Value, json};
use std::fs;

const SHARD: &str = "tensors/00000-00000004.safetensors";

/// Edits the manifest of a good trace and expects that it is refused with these words.
fn refused(words: &str, edit: impl FnOnce(&mut Value)) {
    let folder = Folder::with_trace();
    folder.edit(edit);
    let error = verify(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
}

/// Edits the header of a shard, seals the trace, and expects that it is refused with these words.
fn refused_header(words: &str, edit: impl FnOnce(&mut String)) {
    let folder = Folder::with_trace();
    let content = fs::read(folder.path(SHARD)).unwrap();
    let length = usize::try_from(u64::from_le_bytes(content[..8].try_into().unwrap())).unwrap();
    let mut header = String::from_utf8(content[8..8 + length].to_vec()).unwrap();
    edit(&mut header);
    let length = (header.len() as u64).to_le_bytes();
    let content = [length.as_slice(), header.as_bytes(), &content[8 + content_header(&content)..]].concat();
    folder.replace(SHARD, &content);
    let error = verify(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
    assert!(Trace::open(&folder.trace()).unwrap().layer(SeqIdx::new(0), LayerIdx::new(0)).is_err());
}

fn content_header(content: &[u8]) -> usize {
    usize::try_from(u64::from_le_bytes(content[..8].try_into().unwrap())).unwrap()
}

/// Words of closed lists, and a number that a hostile file repeats until nobody can read the message.
#[test]
fn words_that_the_format_does_not_have_are_refused() {
    refused("sequences[0].finish_reason: found x, accepted: eos, length, stop, given", |manifest| {
        manifest["sequences"][0]["finish_reason"] = "x".into();
    });
    refused("decoding.mode: found magic, accepted: greedy, sampled, given, synthetic", |manifest| {
        manifest["decoding"]["mode"] = "magic".into();
    });
    let folder = Folder::with_trace();
    folder.edit(|manifest| manifest["decoding"]["mode"] = "m".repeat(100_000).into());
    let error = verify(&folder.trace()).unwrap_err().to_string();
    assert!(error.contains("(100000 bytes)") && error.len() < 1000, "{} bytes", error.len());
}

/// H03: what a file says about paths is not followed out of its folder.
#[test]
fn h03_no_path_leaves_the_folder() {
    for (path, fault) in [
        ("../secret.safetensors", PathFault::NotPlain),
        ("tensors/../../secret.safetensors", PathFault::NotPlain),
        ("/etc/hostname", PathFault::NotPlain),
        ("tensors//a.safetensors", PathFault::NotPlain),
        ("tensors/./a.safetensors", PathFault::NotPlain),
        ("tensors\\a.safetensors", PathFault::NotPlain),
        ("C:tensors/a.safetensors", PathFault::NotPlain),
        ("tensors/a\0.safetensors", PathFault::NotPlain),
        ("", PathFault::NotPlain),
        ("a.safetensors", PathFault::Misplaced),
        ("facts/a.safetensors", PathFault::Misplaced),
        ("tensors/deeper/a.safetensors", PathFault::Misplaced),
        ("tensors/a.json", PathFault::Misplaced),
    ] {
        let folder = Folder::with_trace();
        fs::copy(folder.path(SHARD), folder.trace().parent().unwrap().join("secret.safetensors")).unwrap();
        folder.edit(|manifest| manifest["shards"][1]["path"] = path.into());
        match verify(&folder.trace()).unwrap_err() {
            TraceError::Path { place, found, fault: why, .. } => {
                assert_eq!((place.as_str(), found.as_str(), why), ("shards[1].path", path, fault));
            }
            other => panic!("{path}: {other}"),
        }
    }
}

#[cfg(unix)]
#[test]
fn no_link_is_followed() {
    use std::os::unix::fs::symlink;
    // A link to a file, even one with the right content.
    let folder = Folder::with_trace();
    let outside = folder.trace().parent().unwrap().join("outside");
    fs::rename(folder.path(SHARD), &outside).unwrap();
    symlink(&outside, folder.path(SHARD)).unwrap();
    assert!(matches!(verify(&folder.trace()), Err(TraceError::Path { fault: PathFault::Link, .. })));
    // A link to a folder.
    let folder = Folder::with_trace();
    let outside = folder.trace().parent().unwrap().join("outside");
    fs::rename(folder.path("tensors"), &outside).unwrap();
    symlink(&outside, folder.path("tensors")).unwrap();
    assert!(matches!(verify(&folder.trace()), Err(TraceError::Path { fault: PathFault::Link, .. })));
    // The manifest itself.
    let folder = Folder::with_trace();
    let outside = folder.trace().parent().unwrap().join("outside");
    fs::rename(folder.path("manifest.json"), &outside).unwrap();
    symlink(&outside, folder.path("manifest.json")).unwrap();
    assert!(matches!(verify(&folder.trace()), Err(TraceError::Path { fault: PathFault::Link, .. })));
    // A folder where a file should be.
    let folder = Folder::with_trace();
    fs::remove_file(folder.path(SHARD)).unwrap();
    fs::create_dir(folder.path(SHARD)).unwrap();
    assert!(matches!(verify(&folder.trace()), Err(TraceError::Path { fault: PathFault::NotAFile, .. })));
}

#[test]
fn shards_tile_every_sequence() {
    refused("positions 8..9 of sequence 0 missing", |m| {
        let shards = m["shards"].as_array_mut().unwrap();
        shards.truncate(2);
    });
    refused("shards[1]: found sequence 0 from 8, accepted: sequence 0 from 4", |m| {
        m["shards"].as_array_mut().unwrap().remove(1);
    });
    refused("shards[1]: found sequence 0 from 3, accepted: sequence 0 from 4", |m| {
        m["shards"][1]["start"] = 3.into()
    });
    refused("shards[1]: found end 9, accepted: 8", |m| m["shards"][1]["end"] = 9.into());
    refused("accepted: each path once", |m| m["shards"][1]["path"] = m["shards"][0]["path"].clone());
    refused("accepted: no further shard", |m| {
        let shards = m["shards"].as_array_mut().unwrap();
        let mut again = shards[0].clone();
        again["path"] = "tensors/again.safetensors".into();
        shards.push(again);
    });
    refused("shards[0]: found sequence 0 from 4", |m| m["shards"].as_array_mut().unwrap().swap(0, 1));
}

#[test]
fn numbers_that_overflow_are_refused() {
    refused("sequences[0].prompt_len", |m| m["sequences"][0]["prompt_len"] = 10.into());
    refused("sequences[0].prompt_len", |m| m["sequences"][0]["prompt_len"] = 0.into());
    refused("sequences[1].seq", |m| m["sequences"][1]["seq"] = 0.into());
    refused("sequences[0].lens_positions", |m| m["sequences"][0]["lens_positions"] = 10.into());
    refused("sequences[0].padding_len", |m| m["sequences"][0]["padding_len"] = 1.into());
    refused("sequences[0].bos_len", |m| m["sequences"][0]["bos_len"] = 4.into());
    refused("at `sequences[0].len`", |m| m["sequences"][0]["len"] = 4_294_967_296_u64.into());
    refused("at `shards[0].bytes`", |m| m["shards"][0]["bytes"] = (-1).into());
    refused("bytes where the manifest says", |m| m["shards"][0]["bytes"] = u64::MAX.into());
    refused("shard_tokens", |m| m["shard_tokens"] = 0.into());
    refused("2 query heads cannot be grouped over 3 KV heads", |m| m["shape"]["kv_heads"] = 3.into());
    refused("`layers` is 0", |m| m["shape"]["layers"] = 0.into());
    // The largest sequence there can be, in one shard: nothing is allocated for it.
    refused("accepted: the bytes of 4294967295 positions", |m| {
        m["shard_tokens"] = u32::MAX.into();
        m["sequences"].as_array_mut().unwrap().truncate(1);
        m["sequences"][0]["len"] = u32::MAX.into();
        m["shards"].as_array_mut().unwrap().truncate(1);
        m["shards"][0]["end"] = u32::MAX.into();
        let rows =
            [("facts/lens.parquet", 14), ("facts/lens_top.parquet", 28), ("facts/tokens.parquet", u32::MAX)];
        for (table, (path, rows)) in m["tables"].as_array_mut().unwrap().iter_mut().zip(rows) {
            assert_eq!(table["path"], path);
            table["rows"] = rows.into();
        }
    });
    refused("accepted: the bytes of 4 positions", |m| m["shape"]["head_dim"] = u16::MAX.into());
    refused("tables: facts/tokens.parquet: rows", |m| m["tables"][2]["rows"] = 11.into());
}

#[test]
fn manifests_say_what_the_format_says() {
    refused("at `shape.layers`", |m| m["shape"]["layers"] = "two".into());
    refused("surprise: found an unknown key", |m| m["surprise"] = 1.into());
    refused("sequences[1].surprise: found an unknown key", |m| m["sequences"][1]["surprise"] = Value::Null);
    refused("missing field `seed`", |m| drop(m.as_object_mut().unwrap().remove("seed")));
    refused("accepted: 64 lower-case hex digits", |m| m["shards"][0]["sha256"] = "AB".into());
    refused("accepted: 64 lower-case hex digits", |m| m["model"]["weights_sha256"] = "".into());
    refused("found dtype `F64`, accepted: F32 or F16", |m| field(m, "q")["dtype"] = "F64".into());
    refused("axes", |m| field(m, "q")["axes"] = json!(["q_pos", "q_head", "head_dim"]));
    refused("unit `bits`", |m| field(m, "lens.entropy_nats")["unit"] = "bits".into());
    refused("accepted: all of k, q, v", |m| {
        m["fields"].as_array_mut().unwrap().retain(|field| field["name"] != "v");
    });
    refused("accepted: all of tokens.", |m| {
        m["fields"].as_array_mut().unwrap().retain(|field| field["name"] != "tokens.token");
    });
    refused("accepted: names in order, each once", |m| {
        let twice = m["fields"][0].clone();
        m["fields"].as_array_mut().unwrap().insert(0, twice);
    });
    refused("what ran the model, unless `synthetic` is given", |m| m["synthetic"] = Value::Null);
    refused("an unfinished recording", |m| m["complete"] = false.into());
    refused("sequences: found 0 sequences", |m| m["sequences"] = json!([]));
    refused("tables: found no facts/lens.parquet", |m| drop(m["tables"].as_array_mut().unwrap().remove(0)));
}

fn field<'a>(manifest: &'a mut Value, name: &str) -> &'a mut Value {
    manifest["fields"].as_array_mut().unwrap().iter_mut().find(|field| field["name"] == name).unwrap()
}

#[test]
fn a_key_that_occurs_twice_is_refused() {
    let folder = Folder::with_trace();
    let text = fs::read_to_string(folder.path("manifest.json")).unwrap();
    folder.seal_text(&text.replacen("\"complete\": true", "\"complete\": false, \"complete\": true", 1));
    let error = verify(&folder.trace()).unwrap_err();
    assert!(error.to_string().contains("duplicate field `complete`"), "{error}");
}

#[test]
fn other_major_versions_are_refused_before_anything_else_is_judged() {
    for (major, minor) in [(0, 9), (2, 0)] {
        let folder = Folder::with_trace();
        folder.seal_text(&json!({ "format": { "major": major, "minor": minor }, "new": true }).to_string());
        match verify(&folder.trace()).unwrap_err() {
            TraceError::Version { found, .. } => assert_eq!((found.major, found.minor), (major, minor)),
            other => panic!("{other}"),
        }
    }
}

/// Makes the trace look like one of a later minor version with a field we do not know.
fn make_newer(manifest: &mut Value, required: bool) {
    manifest["format"]["minor"] = 7.into();
    manifest["mood"] = "good".into();
    manifest["sequences"][0]["mood"] = "better".into();
    let unknown =
        json!({ "name": "z_new", "axes": ["q_pos"], "dtype": "BF16", "unit": "", "required": required });
    manifest["fields"].as_array_mut().unwrap().push(unknown);
}

#[test]
fn a_later_minor_version_is_read_and_what_is_unknown_and_optional_is_ignored() {
    let folder = Folder::with_trace();
    folder.edit(|manifest| make_newer(manifest, false));
    verify(&folder.trace()).unwrap();
    // Also when the tensors of the unknown field are there.
    let content = fs::read(folder.path(SHARD)).unwrap();
    let start = 8 + content_header(&content);
    let mut header: Value = serde_json::from_slice(&content[8..start]).unwrap();
    let data = content.len() - start;
    header["layer000.z_new"] = json!({ "dtype": "BF16", "shape": [1], "data_offsets": [data, data + 2] });
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    folder.replace(SHARD, &[length.as_slice(), header.as_bytes(), &content[start..], &[0, 0]].concat());
    verify(&folder.trace()).unwrap();
    Trace::open(&folder.trace()).unwrap().layer(SeqIdx::new(0), LayerIdx::new(1)).unwrap();
}

#[test]
fn what_is_unknown_and_required_is_refused() {
    refused("requires `z_new`", |manifest| make_newer(manifest, true));
    refused("requires `ragged-shards`", |manifest| {
        make_newer(manifest, false);
        manifest["requires"] = json!(["ragged-shards"]);
    });
    // An unknown field in a version that we know is a mistake.
    refused("accepted: a field of this version", |manifest| {
        manifest["fields"].as_array_mut().unwrap().push(
            json!({ "name": "z_new", "axes": ["q_pos"], "dtype": "F32", "unit": "", "required": false }),
        );
    });
}

#[test]
fn tensor_headers_are_taken_at_their_word_in_nothing() {
    refused_header("`layer000.k` occurs twice", |header| {
        *header = header.replacen("layer000.q", "layer000.k", 1);
    });
    refused_header("layer000.q: found no such tensor", |header| {
        *header = header.replacen("layer000.q", "layer009.q", 1)
    });
    // Sorted by offset, the tensors are k, q, v of layer 0: 64, 128 and 64 bytes.
    refused_header("found 60..192, accepted: a range from 64", |header| {
        *header = header.replacen("[64,192]", "[60,192]", 1)
    });
    refused_header("layer000.q", |header| *header = header.replacen("[64,192]", "[192,64]", 1));
    refused_header("within 512 bytes", |header| *header = header.replacen("[448,512]", "[448,516]", 1));
    refused_header("18446744073709551615", |header| {
        *header = header.replacen("[448,512]", "[448,18446744073709551615]", 1);
    });
    refused_header("header", |header| {
        *header = header.replacen("[448,512]", "[448,18446744073709551616]", 1)
    });
    refused_header("layer000.k: found F16 [1, 4, 4], accepted: F32 [1, 4, 4]", |header| {
        *header = header.replacen("F32", "F16", 1);
    });
    refused_header("layer000.k: found F32 [1, 2, 8]", |header| {
        *header = header.replacen("[1,4,4]", "[1,2,8]", 1)
    });
    refused_header("layer000.k", |header| {
        *header = header.replacen("[1,4,4]", "[18446744073709551615,4,4]", 1)
    });
    refused_header("__metadata__.start: found 0, accepted: 4", |header| {
        *header = header.replacen("\"start\":\"4\"", "\"start\":\"0\"", 1);
    });
    refused_header("unknown field `extra`", |header| {
        *header = header.replacen("\"dtype\"", "\"extra\":1,\"dtype\"", 1)
    });
    refused_header("header", |header| header.truncate(header.len() / 2));
    refused_header("header", |header| header.push('x'));
    // Nested deeper than any parser should follow.
    refused_header("header", |header| *header = "[".repeat(100_000));
}

#[test]
fn header_lengths_beyond_the_file_are_refused_unread() {
    for length in [u64::MAX, 1 << 40, 1 << 26, 100_000] {
        let folder = Folder::with_trace();
        let mut content = fs::read(folder.path(SHARD)).unwrap();
        content[..8].copy_from_slice(&length.to_le_bytes());
        folder.replace(SHARD, &content);
        let error = verify(&folder.trace()).unwrap_err();
        assert!(error.to_string().contains("header length"), "{error}");
    }
}

/// H14 (H2O#32): query heads that are no multiple of the KV heads are refused when the trace is opened, and 8 over 2 or over 1 are not.
#[test]
fn h14_heads_that_do_not_divide_are_refused_when_a_trace_is_opened() {
    let folder = Folder::with_trace();
    let manifest = folder.manifest();
    for (q_heads, kv_heads) in [(6, 4), (3, 2), (2, 4)] {
        let mut changed = manifest.clone();
        changed["shape"]["q_heads"] = q_heads.into();
        changed["shape"]["kv_heads"] = kv_heads.into();
        folder.seal_text(&changed.to_string());
        let error = Trace::open(&folder.trace()).unwrap_err().to_string();
        assert!(error.contains("heads") && error.contains(&q_heads.to_string()), "{error}");
    }
    for (q_heads, kv_heads) in [(8, 2), (8, 1), (1, 1)] {
        let shape = ModelShape { q_heads, kv_heads, ..SHAPE };
        shape.check().unwrap();
        assert_eq!(shape.q_heads / shape.kv_heads, q_heads / kv_heads);
    }
}

/// H07: half precision that overflowed is found where it is, and never scored.
#[test]
fn h07_a_tensor_value_that_is_no_number_is_refused_with_its_place() {
    for (value, at) in [(f32::NAN, 0), (f32::INFINITY, 5), (f32::NEG_INFINITY, 31)] {
        let folder = Folder::with_trace();
        let mut content = fs::read(folder.path(SHARD)).unwrap();
        // `q` of layer 0 lies behind the 64 bytes of `k`: [2 heads, 4 positions from 4, 4 channels].
        let from = 8 + content_header(&content) + 64 + 4 * at;
        content[from..from + 4].copy_from_slice(&value.to_le_bytes());
        folder.replace(SHARD, &content);
        let read = Trace::open(&folder.trace()).unwrap().layer(SeqIdx::new(0), LayerIdx::new(0)).map(drop);
        for result in [verify(&folder.trace()).map(drop), read] {
            match result.unwrap_err() {
                TraceError::NonFinite { field: "q", seq: 0, layer: 0, head: Some(head), pos, .. } => {
                    let at = u32::try_from(at).unwrap();
                    assert_eq!((u32::from(head), pos), (at / 16, 4 + at % 16 / 4));
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn files_that_are_not_listed_are_reported_and_not_read() {
    let folder = Folder::with_trace();
    fs::write(folder.path("README"), "hello").unwrap();
    fs::write(folder.path("tensors/old.safetensors"), "x").unwrap();
    let before = files(&folder.trace());
    assert_eq!(verify(&folder.trace()).unwrap().unlisted, ["README", "tensors/old.safetensors"]);
    assert_eq!(files(&folder.trace()), before);
}
