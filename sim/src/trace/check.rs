//! Which manifests are accepted. A manifest that passed can be used without further questions about its numbers.

use super::facts_schema::{
    BRANCH_OUTCOMES, BRANCH_SIMILARITY, BRANCH_STEPS, BRANCH_TOKENS, BRANCH_VERDICTS, BRANCHES, LENS,
    LENS_TOP, RAW_LENS, REQUEST_BLOCKS, REQUESTS, TABLES, TOKENS,
};
use super::manifest::{DECODING_MODES, FINISH_REASONS, Manifest, NO_RAW_LENS, NO_SEQUENCES, ProblemInfo};
use super::times::TIMES;
use super::{FIELDS, PathFault, TRACE_VERSION, TraceError, TraceVersion, Weight};
use std::collections::BTreeSet;
use std::path::Path;

/// Checks everything that a manifest can be asked without opening another file. `path` is for messages.
///
/// # Errors
/// At the first thing that the format does not allow.
pub(crate) fn check(manifest: &Manifest, path: &Path) -> Result<(), TraceError> {
    manifest.format.check_readable_by(TRACE_VERSION)?;
    if !manifest.complete {
        return Err(TraceError::Incomplete { path: path.parent().unwrap_or(path).to_owned() });
    }
    let is_old = manifest.format < TraceVersion { major: 1, minor: 1 };
    let is_known = |word: &String| [NO_SEQUENCES, NO_RAW_LENS].contains(&word.as_str());
    if let Some(feature) = manifest.requires.iter().find(|word| is_old || !is_known(word)) {
        return Err(TraceError::UnknownRequirement { feature: feature.clone() });
    }
    manifest.shape.check()?;
    let checker = Checker { manifest, path };
    checker.header()?;
    checker.fields()?;
    checker.sequences()?;
    checker.branches()?;
    checker.shards()?;
    checker.tables()?;
    checker.times()?;
    checker.weights()
}

struct Checker<'a> {
    manifest: &'a Manifest,
    path: &'a Path,
}

impl Checker<'_> {
    fn malformed(
        &self,
        place: impl Into<String>,
        found: impl ToString,
        accepted: impl Into<String>,
    ) -> TraceError {
        TraceError::malformed(self.path, place, found, accepted)
    }

    /// A word of a list. A later minor version may have more.
    fn word(&self, place: &str, found: &str, known: &[&str]) -> Result<(), TraceError> {
        if known.contains(&found) || self.manifest.format > TRACE_VERSION {
            return Ok(());
        }
        Err(self.malformed(place, found, known.join(", ")))
    }

    fn header(&self) -> Result<(), TraceError> {
        let manifest = self.manifest;
        if manifest.shard_tokens == 0 {
            return Err(self.malformed("shard_tokens", 0, "at least 1"));
        }
        if u32::from(manifest.lens_top) > manifest.shape.vocab {
            let accepted = format!("at most the vocabulary size {}", manifest.shape.vocab);
            return Err(self.malformed("lens_top", manifest.lens_top, accepted));
        }
        if manifest.synthetic.is_none() && manifest.requests.is_none() {
            if manifest.runtime.is_none() {
                return Err(self.malformed(
                    "runtime",
                    "null",
                    "what ran the model, unless `synthetic` is given",
                ));
            }
            if manifest.model.weights_sha256.is_none() {
                return Err(self.malformed(
                    "model.weights_sha256",
                    "null",
                    "a digest, unless `synthetic` is given",
                ));
            }
        }
        self.word("decoding.mode", &manifest.decoding.mode, DECODING_MODES)?;
        let digests = [
            ("model.weights_sha256", &manifest.model.weights_sha256),
            ("model.tokenizer_sha256", &manifest.model.tokenizer_sha256),
            ("model.graph_sha256", &manifest.model.graph_sha256),
            ("workload.file_sha256", &manifest.workload.file_sha256),
        ];
        digests.into_iter().try_for_each(|(place, digest)| {
            digest.as_ref().map_or(Ok(()), |digest| self.digest(place, digest))
        })
    }

    /// The file of measured times has one name.
    fn times(&self) -> Result<(), TraceError> {
        let Some(times) = &self.manifest.times else { return Ok(()) };
        if times.path != TIMES {
            return Err(self.malformed("times.path", &times.path, TIMES));
        }
        if times.rows == 0 {
            return Err(self.malformed("times.rows", 0, "at least 1"));
        }
        self.digest("times.sha256", &times.sha256)
    }

    /// Weights and rotation, which format 1.1 brought.
    fn weights(&self) -> Result<(), TraceError> {
        let manifest = self.manifest;
        if manifest.format < (TraceVersion { major: 1, minor: 1 })
            && (manifest.final_norm.is_some()
                || manifest.rope.as_ref().is_some_and(|rope| rope.inv_freq.is_some())
                || manifest.branches.is_some()
                || manifest.requests.is_some()
                || !manifest.derived_from.is_empty()
                || !manifest.weights.is_empty()
                || manifest.times.is_some())
        {
            let found = format!("keys of format 1.1 in a trace of format {}", manifest.format);
            return Err(self.malformed("format", found, "the keys of its own version"));
        }
        if let Some(rope) = &manifest.rope {
            let most = usize::from(manifest.shape.head_dim / 2);
            if rope.inv_freq.is_some() != rope.attention_scaling.is_some() {
                return Err(self.malformed(
                    "rope.attention_scaling",
                    "one of two",
                    "`inv_freq` and `attention_scaling` together",
                ));
            }
            if let Some(frequencies) = &rope.inv_freq {
                let is_good = |f: &f64| f.is_finite() && *f >= 0.0;
                if frequencies.is_empty() || frequencies.len() > most || !frequencies.iter().all(is_good) {
                    let accepted = format!("1 to {most} finite numbers, none below 0");
                    return Err(self.malformed("rope.inv_freq", format!("{frequencies:?}"), accepted));
                }
            }
            if let Some(scaling) = rope.attention_scaling.filter(|s| !(s.is_finite() && *s > 0.0)) {
                return Err(self.malformed("rope.attention_scaling", scaling, "a number above 0"));
            }
        }
        if manifest.final_norm.is_some() != manifest.holds("weights.final_norm") {
            return Err(self.malformed(
                "final_norm",
                "one of two",
                "`final_norm` and the field `weights.final_norm` together",
            ));
        }
        if let Some(norm) =
            manifest.final_norm.as_ref().filter(|n| n.kind != "rms" || !(n.eps.is_finite() && n.eps >= 0.0))
        {
            return Err(self.malformed(
                "final_norm",
                format!("{norm:?}"),
                "kind `rms` and an eps of at least 0",
            ));
        }
        let expected = Weight::of(manifest);
        let mut found = manifest.weights.iter().enumerate();
        for weight in expected {
            let path = weight.path();
            match found.next() {
                Some((at, info)) if info.path == path => {
                    self.digest(format!("weights[{at}].sha256"), &info.sha256)?;
                }
                Some((at, info)) => {
                    return Err(self.malformed(
                        format!("weights[{at}].path"),
                        format!("`{}`", info.path),
                        path,
                    ));
                }
                None => {
                    return Err(self.malformed(
                        "weights",
                        format!("no {path}"),
                        "a file for each weight field and layer",
                    ));
                }
            }
        }
        match found.next() {
            Some((at, info)) if manifest.format.is_newer_than(TRACE_VERSION) => {
                self.path(&format!("weights[{at}].path"), &info.path, "weights/", ".safetensors")
            }
            Some((at, info)) => {
                Err(self.malformed(format!("weights[{at}].path"), &info.path, "no further file"))
            }
            None => Ok(()),
        }
    }

    fn digest(&self, place: impl Into<String>, digest: &str) -> Result<(), TraceError> {
        let is_hex =
            digest.len() == 64 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex {
            Ok(())
        } else {
            Err(self.malformed(place, format!("`{digest}`"), "64 lower-case hex digits"))
        }
    }

    fn fields(&self) -> Result<(), TraceError> {
        let is_newer = self.manifest.format.is_newer_than(TRACE_VERSION);
        let mut previous = "";
        for (at, info) in self.manifest.fields.iter().enumerate() {
            let place = format!("fields[{at}]");
            if at > 0 && info.name.as_str() <= previous {
                return Err(self.malformed(place, format!("`{}`", info.name), "names in order, each once"));
            }
            previous = &info.name;
            match FIELDS.iter().find(|field| field.name == info.name) {
                None if info.required => {
                    return Err(TraceError::UnknownRequirement { feature: info.name.clone() });
                }
                None if is_newer => {}
                None => {
                    return Err(self.malformed(place, format!("`{}`", info.name), "a field of this version"));
                }
                Some(field) if field.since > self.manifest.format => {
                    let accepted = format!("a field of format {}", self.manifest.format);
                    return Err(self.malformed(place, format!("`{}`", info.name), accepted));
                }
                Some(field) => {
                    if !info.axes.iter().map(String::as_str).eq(field.axes.iter().copied()) {
                        return Err(self.malformed(
                            place,
                            format!("axes {:?}", info.axes),
                            format!("{:?}", field.axes),
                        ));
                    }
                    if !field.dtypes.iter().any(|dtype| dtype.word() == info.dtype) {
                        let accepted: Vec<_> = field.dtypes.iter().map(|dtype| dtype.word()).collect();
                        return Err(self.malformed(
                            place,
                            format!("dtype `{}`", info.dtype),
                            accepted.join(" or "),
                        ));
                    }
                    if info.unit != field.unit {
                        return Err(self.malformed(
                            place,
                            format!("unit `{}`", info.unit),
                            format!("`{}`", field.unit),
                        ));
                    }
                }
            }
        }
        self.groups_are_whole()
    }

    /// A reader may count on q, k and v together, and on all columns of a table it finds.
    fn groups_are_whole(&self) -> Result<(), TraceError> {
        let without_raw = self.manifest.requires.iter().any(|word| word == NO_RAW_LENS);
        if without_raw
            && (!self.manifest.holds("lens.top1_token")
                || RAW_LENS.iter().any(|name| self.manifest.holds(name)))
        {
            let found = format!("fields {:?}", self.manifest.field_names());
            let accepted = format!("`lens` fields without {}", RAW_LENS.join(" and "));
            return Err(self.malformed("requires", format!("{NO_RAW_LENS}, {found}"), accepted));
        }
        let wholes = TABLES.iter().map(|table| {
            FIELDS
                .iter()
                .filter(|field| field.name.split_once('.').is_some_and(|(name, _)| name == table.name()))
                .filter(|field| !(without_raw && RAW_LENS.contains(&field.name)))
                .map(|field| field.name)
                .collect::<Vec<_>>()
        });
        for whole in wholes.chain([vec!["k", "q", "v"]]) {
            let missing: Vec<_> = whole.iter().filter(|name| !self.manifest.holds(name)).copied().collect();
            let is_required = whole.contains(&"tokens.token");
            if !missing.is_empty() && (is_required || missing.len() < whole.len()) {
                return Err(self.malformed(
                    "fields",
                    format!("no {}", missing.join(", ")),
                    format!("all of {}", whole.join(", ")),
                ));
            }
        }
        let has_top = self.manifest.holds("lens_top.token");
        if has_top != (self.manifest.lens_top > 0) || (has_top && !self.manifest.holds("lens.top1_token")) {
            return Err(self.malformed(
                "lens_top",
                self.manifest.lens_top,
                "0 without `lens_top` fields; they need `lens` fields",
            ));
        }
        Ok(())
    }

    fn sequences(&self) -> Result<(), TraceError> {
        let may_be_none = self.manifest.requires.iter().any(|word| word == NO_SEQUENCES);
        if self.manifest.sequences.is_empty() != may_be_none {
            let found =
                format!("{} sequences, requires {:?}", self.manifest.sequences.len(), self.manifest.requires);
            let accepted = format!("at least 1 sequence, or none and `{NO_SEQUENCES}` in `requires`");
            return Err(self.malformed("sequences", found, accepted));
        }
        if may_be_none && self.manifest.branches.is_none() && self.manifest.requests.is_none() {
            return Err(self.malformed("sequences", "none", "at least 1, without branches and requests"));
        }
        for (at, sequence) in self.manifest.sequences.iter().enumerate() {
            let place = |key: &str| format!("sequences[{at}].{key}");
            if usize::try_from(sequence.seq) != Ok(at) {
                return Err(self.malformed(place("seq"), sequence.seq, at.to_string()));
            }
            if !(1..=sequence.len).contains(&sequence.prompt_len) {
                return Err(self.malformed(
                    place("prompt_len"),
                    sequence.prompt_len,
                    format!("1 to {}", sequence.len),
                ));
            }
            if sequence.bos_len > sequence.prompt_len {
                return Err(self.malformed(
                    place("bos_len"),
                    sequence.bos_len,
                    format!("at most {}", sequence.prompt_len),
                ));
            }
            self.word(&place("finish_reason"), &sequence.finish_reason, FINISH_REASONS)?;
            if sequence.padding_len != 0 {
                return Err(self.malformed(place("padding_len"), sequence.padding_len, "0"));
            }
            let most = if self.manifest.holds("lens.top1_token") { sequence.len } else { 0 };
            if sequence.lens_positions > most {
                return Err(self.malformed(
                    place("lens_positions"),
                    sequence.lens_positions,
                    format!("at most {most}"),
                ));
            }
        }
        Ok(())
    }

    /// Branch trees, requests and where the trace came from: what the manifest says about them.
    fn branches(&self) -> Result<(), TraceError> {
        let manifest = self.manifest;
        if manifest.branches.is_some() != manifest.holds("branches.depth")
            || manifest.branches.is_some() != manifest.holds("branch_tokens.token")
            || manifest.branches.is_some() != manifest.holds("branch_outcomes.answer")
        {
            let accepted =
                "`branches` with the fields of branches, branch_tokens and branch_outcomes, or none of them";
            return Err(self.malformed("branches", "some of them", accepted));
        }
        for optional in ["branch_similarity.cos_last", "branch_steps.token", "branch_verdicts.p_yes"] {
            if manifest.holds(optional) && manifest.branches.is_none() {
                return Err(self.malformed("fields", optional, "none without `branches`"));
            }
        }
        if let Some(branches) = &manifest.branches {
            for (at, info) in branches.problems.iter().enumerate() {
                let place = |key: &str| format!("branches.problems[{at}].{key}");
                if usize::try_from(info.problem) != Ok(at) {
                    return Err(self.malformed(place("problem"), info.problem, at.to_string()));
                }
                if info.branches == 0 || info.tokens < u64::from(info.branches) {
                    let found = format!("{} branches of {} tokens", info.branches, info.tokens);
                    return Err(self.malformed(place("branches"), found, "at least 1, with a token each"));
                }
                if u64::from(info.outcomes) > 2 * u64::from(info.branches) || info.verdicts > info.outcomes {
                    let found = format!("{} outcomes, {} verdicts", info.outcomes, info.verdicts);
                    return Err(self.malformed(
                        place("outcomes"),
                        found,
                        "at most two a branch, one verdict each",
                    ));
                }
            }
            let tokens = [("yes_token", branches.yes_token), ("no_token", branches.no_token)];
            if let Some((key, id)) = tokens
                .into_iter()
                .find_map(|(key, id)| Some((key, id.filter(|&id| id >= manifest.shape.vocab)?)))
            {
                return Err(self.malformed(
                    format!("branches.{key}"),
                    id,
                    format!("below {}", manifest.shape.vocab),
                ));
            }
        }
        if manifest.requests.is_some() != manifest.holds("requests.timestamp_ms")
            || manifest.requests.is_some() != manifest.holds("request_blocks.hash")
        {
            return Err(self.malformed(
                "requests",
                "some of them",
                "`requests` with all its fields, or none of them",
            ));
        }
        if manifest.requests.as_ref().is_some_and(|requests| requests.block_tokens == 0) {
            return Err(self.malformed("requests.block_tokens", 0, "at least 1"));
        }
        manifest
            .derived_from
            .iter()
            .enumerate()
            .try_for_each(|(at, from)| self.digest(format!("derived_from[{at}].digest"), &from.digest))
    }

    /// The shards of each sequence tile `0..len`, in order, each once.
    fn shards(&self) -> Result<(), TraceError> {
        let mut paths = BTreeSet::new();
        let mut shards = self.manifest.shards.iter().enumerate();
        let has_tensors = self.manifest.tensor_fields().next().is_some();
        for sequence in self.manifest.sequences.iter().filter(|_| has_tensors) {
            let mut covered = 0;
            while covered < sequence.len {
                let Some((at, shard)) = shards.next() else {
                    let found =
                        format!("positions {covered}..{} of sequence {} missing", sequence.len, sequence.seq);
                    return Err(self.malformed("shards", found, "every position of every sequence"));
                };
                let place = format!("shards[{at}]");
                if shard.seq != sequence.seq || shard.start != covered {
                    let found = format!("sequence {} from {}", shard.seq, shard.start);
                    return Err(self.malformed(
                        place,
                        found,
                        format!("sequence {} from {covered}", sequence.seq),
                    ));
                }
                let full = covered.saturating_add(self.manifest.shard_tokens).min(sequence.len);
                if shard.end != full {
                    return Err(self.malformed(place, format!("end {}", shard.end), full.to_string()));
                }
                self.path(&format!("{place}.path"), &shard.path, "tensors/", ".safetensors")?;
                self.digest(format!("{place}.sha256"), &shard.sha256)?;
                if !paths.insert(shard.path.as_str()) {
                    return Err(self.malformed(format!("{place}.path"), &shard.path, "each path once"));
                }
                covered = shard.end;
            }
        }
        match shards.next() {
            Some((at, shard)) => {
                Err(self.malformed(format!("shards[{at}]"), &shard.path, "no further shard"))
            }
            None => Ok(()),
        }
    }

    fn tables(&self) -> Result<(), TraceError> {
        let mut previous = "";
        for (at, table) in self.manifest.tables.iter().enumerate() {
            let place = format!("tables[{at}]");
            if at > 0 && table.path.as_str() <= previous {
                return Err(self.malformed(place, &table.path, "paths in order, each once"));
            }
            previous = &table.path;
            self.path(&format!("{place}.path"), &table.path, "facts/", ".parquet")?;
            self.digest(format!("{place}.sha256"), &table.sha256)?;
            let is_known =
                TABLES.iter().any(|known| known.path == table.path && known.since <= self.manifest.format);
            if !is_known && !self.manifest.format.is_newer_than(TRACE_VERSION) {
                let accepted = format!("a table of format {}", self.manifest.format);
                return Err(self.malformed(place, &table.path, accepted));
            }
        }
        let layers = u64::from(self.manifest.shape.layers);
        let tokens = self.manifest.sequences.iter().map(|sequence| u64::from(sequence.len)).sum::<u64>();
        let facts = self.manifest.sequences.iter().map(|s| u64::from(s.lens_positions)).sum::<u64>();
        let lens = facts.saturating_mul(layers);
        let top = lens.saturating_mul(u64::from(self.manifest.lens_top));
        let problems = self.manifest.branches.iter().flat_map(|branches| &branches.problems);
        let total = |count: &dyn Fn(&ProblemInfo) -> u64| {
            problems.clone().fold(0_u64, |total, info| total.saturating_add(count(info)))
        };
        let requests =
            self.manifest.requests.as_ref().map_or((0, 0), |requests| (requests.count, requests.blocks));
        for (path, field, rows) in [
            (BRANCHES, "branches.depth", total(&|info| info.branches.into())),
            (BRANCH_TOKENS, "branch_tokens.token", total(&|info| info.tokens)),
            (
                BRANCH_SIMILARITY,
                "branch_similarity.cos_last",
                total(&|info| u64::from(info.branches.saturating_sub(1)) * (layers + 1)),
            ),
            (BRANCH_OUTCOMES, "branch_outcomes.answer", total(&|info| info.outcomes.into())),
            (BRANCH_STEPS, "branch_steps.token", total(&|info| info.steps)),
            (BRANCH_VERDICTS, "branch_verdicts.p_yes", total(&|info| u64::from(info.verdicts) * layers)),
            (REQUESTS, "requests.timestamp_ms", requests.0),
            (REQUEST_BLOCKS, "request_blocks.hash", requests.1),
            (TOKENS, "tokens.token", tokens),
            (LENS, "lens.top1_token", lens),
            (LENS_TOP, "lens_top.token", top),
        ] {
            match (self.manifest.table(path), self.manifest.holds(field)) {
                (None, true) => {
                    return Err(self.malformed(
                        "tables",
                        format!("no {path}"),
                        "a table for each fact field",
                    ));
                }
                (Some(_), false) => {
                    return Err(self.malformed("tables", path, "no table without its fields"));
                }
                (Some(table), true) if table.rows != rows => {
                    return Err(self.malformed(
                        format!("tables: {path}: rows"),
                        table.rows,
                        rows.to_string(),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Paths are plain: one folder that the format names, one file name of harmless characters.
    fn path(&self, place: &str, path: &str, folder: &str, suffix: &str) -> Result<(), TraceError> {
        let refuse = |fault| {
            Err(TraceError::Path {
                manifest: self.path.to_owned(),
                place: place.to_owned(),
                found: path.to_owned(),
                fault,
            })
        };
        let is_plain = |name: &str| {
            !name.is_empty()
                && !name.starts_with('.')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        if !path.split('/').all(is_plain) {
            return refuse(PathFault::NotPlain);
        }
        match path.strip_prefix(folder) {
            Some(name) if !name.contains('/') && name.ends_with(suffix) => Ok(()),
            _ => refuse(PathFault::Misplaced),
        }
    }
}
