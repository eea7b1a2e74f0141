//! What recording costs beside the same loop without taps, what an early exit saves, what decoding branches together saves, and what crosses between host
//! and sessions at a decode step, in one interleaved run.
//!
//! `cargo bench -p kvlab-executor` on the embedded model, or `cargo bench -p kvlab-executor -- MODEL [TOKENS]` with a GGUF file
//! or a folder. Prints the least time of interleaved rounds and ratios of them; asserts nothing about time.

use kvlab_executor::branches::{BranchPlan, Protocol, TreeSet, record_branches};
use kvlab_executor::setup::{SetupOptions, ensure_library};
use kvlab_executor::workload::chain::LEVELS;
use kvlab_executor::{
    CacheMemory, Flow, LoadOptions, Model, OpenLoop, PlannedWeights, PromptForm, PromptLens, ProviderChoice,
    Quiet, RecordItem, RecordPlan, Taps, embedded_model, record,
};
use kvlab_sim::trace::{Dtype, Leftover, LensForms, StoredFields, ToolInfo, WorkloadInfo};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

const ROUNDS: usize = 7;
const PROMPT: u32 = 96;

/// What is kept of a run.
struct Kept {
    name: &'static str,
    fields: Option<StoredFields>,
}

const NOTHING: StoredFields = StoredFields { hidden: false, attention: None, lens: None, lens_top: 0 };
const KINDS: [Kept; 5] = [
    Kept { name: "decoding alone, nothing written", fields: None },
    Kept {
        name: "facts: lens at every generated position",
        fields: Some(StoredFields { lens: Some(LensForms::Both), lens_top: 8, ..NOTHING }),
    },
    Kept {
        name: "the same, with the final norm only",
        fields: Some(StoredFields { lens: Some(LensForms::Normed), lens_top: 8, ..NOTHING }),
    },
    Kept {
        name: "queries, keys and values in f32",
        fields: Some(StoredFields { attention: Some(Dtype::F32), ..NOTHING }),
    },
    Kept {
        name: "both",
        fields: Some(StoredFields {
            lens: Some(LensForms::Both),
            lens_top: 8,
            attention: Some(Dtype::F32),
            ..NOTHING
        }),
    },
];

fn plan(fields: StoredFields, new: u32) -> RecordPlan {
    RecordPlan {
        open_loop: OpenLoop {
            chunk: NonZeroUsize::new(256).expect("256 is not 0"),
            max_new_tokens: new,
            fields,
            prompt_lens: PromptLens::Last,
        },
        tool: ToolInfo { name: "bench".to_owned(), version: "0".to_owned(), revision: None },
        workload: WorkloadInfo { name: "bench".to_owned(), seed: 0, file_sha256: None },
        seed: 0,
        grader: None,
        weights: PlannedWeights::default(),
        max_bytes: None,
        times: false,
    }
}

fn prompt(model: &Model) -> Vec<u32> {
    let vocab = u32::try_from(model.config().vocab).unwrap_or(u32::MAX);
    // No end token among the first ids of the models at hand: ids from a third of the vocabulary on.
    (0..PROMPT).map(|i| vocab / 3 + (i * 7919) % (vocab / 2)).collect()
}

/// Seconds of one run.
fn run(model: &mut Model, kept: &Kept, new: u32, folder: &Path) -> f64 {
    let tokens = prompt(model);
    let Some(fields) = kept.fields else {
        let begin = Instant::now();
        let mut decoder = model.decoder().expect("a decoder");
        let mut pass = decoder.forward(&tokens, Taps::NONE).expect("a pass");
        for step in 0..new {
            decoder.last_logits(&pass).expect("logits");
            // The token does not matter for the time; ends of texts would.
            pass = decoder.forward(&[tokens[(step % PROMPT) as usize]], Taps::NONE).expect("a pass");
        }
        return begin.elapsed().as_secs_f64();
    };
    let item = RecordItem {
        item: "bench".to_owned(),
        prompt: PromptForm::Tokens(tokens),
        stops: Vec::new(),
        expected_answer: None,
    };
    let begin = Instant::now();
    record(model, &[item], &plan(fields, new), &folder.join("trace"), Leftover::Discard, &Quiet)
        .expect("a trace");
    let seconds = begin.elapsed().as_secs_f64();
    std::fs::remove_dir_all(folder.join("trace")).expect("the trace is there");
    seconds
}

/// Seconds of a pass over the prompt that stops after `layers` layers.
fn pass(model: &mut Model, layers: usize) -> f64 {
    let tokens = prompt(model);
    let mut decoder = model.decoder().expect("a decoder");
    let begin = Instant::now();
    decoder
        .forward_gated(&tokens, Taps::NONE, &mut |done| {
            Ok(if done.layer + 1 == layers { Flow::Stop } else { Flow::Continue })
        })
        .expect("a pass");
    begin.elapsed().as_secs_f64()
}

/// Where keys and values lie, under the CPU provider.
const MEMORIES: [(&str, CacheMemory); 2] =
    [("keys and values on the host", CacheMemory::Host), ("as on a device", CacheMemory::Device)];

/// What it costs to decode with keys and values elsewhere, and what crosses at the first and last step.
#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn memories(path: &Path, options: &LoadOptions, new: u32) {
    println!(
        "decoding {new} tokens behind {PROMPT}, sum of {ROUNDS} rounds, and what crosses between host and sessions at a step"
    );
    let mut models: Vec<Model> = MEMORIES
        .iter()
        .map(|(_, cache)| LoadOptions { cache: *cache, ..options.clone() })
        .map(|options| Model::load(path, &options, &Quiet).expect("the model loads"))
        .collect();
    let mut found = vec![(0.0, Vec::new()); MEMORIES.len()];
    for _ in 0..ROUNDS {
        for (model, (processor, crossed)) in models.iter_mut().zip(&mut found) {
            let tokens = prompt(model);
            let mut decoder = model.decoder().expect("a decoder");
            decoder.forward(&tokens, Taps::NONE).expect("a pass");
            let begin = processor_seconds();
            *crossed = (0..new)
                .map(|step| {
                    let before = decoder.crossed();
                    decoder.forward(&[tokens[(step % PROMPT) as usize]], Taps::NONE).expect("a pass");
                    decoder.crossed().since(before).bytes()
                })
                .collect();
            *processor += processor_seconds() - begin;
        }
    }
    for ((name, _), (processor, crossed)) in MEMORIES.iter().zip(&found) {
        let (first, last) = (crossed.first().unwrap_or(&0), crossed.last().unwrap_or(&0));
        println!(
            "{name:42} {processor:9.2} s processor, {first} bytes at the first step, {last} at the last"
        );
    }
}

/// Branches of a problem that are decoded in one pass.
const BATCHES: [usize; 4] = [1, 2, 4, 8];

/// Processor and wall seconds of recording the trees of `set`, so many branches a pass.
fn trees(model: &mut Model, set: &TreeSet, batch: usize, new: u32, folder: &Path) -> (f64, f64) {
    let plan = BranchPlan {
        chunk: NonZeroUsize::new(256).expect("256 is not 0"),
        max_new_tokens: new,
        batch: NonZeroUsize::new(batch).expect("batches are not 0"),
        steps: true,
        times: false,
        protocol: Protocol::Corrected,
        tool: ToolInfo { name: "bench".to_owned(), version: "0".to_owned(), revision: None },
        workload: WorkloadInfo { name: "bench".to_owned(), seed: 0, file_sha256: None },
        seed: 0,
        grader: set.grader,
        verdict_words: set.verdict_words,
    };
    let target = folder.join("trees");
    let (begin, processor) = (Instant::now(), processor_seconds());
    record_branches(model, &set.items, &plan, &target, Leftover::Discard, &Quiet).expect("a trace");
    let found = (processor_seconds() - processor, begin.elapsed().as_secs_f64());
    std::fs::remove_dir_all(&target).expect("the trace is there");
    found
}

/// User and system time of this process; hundredths of a second, where the system tells.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn least(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let setup = SetupOptions::from_env();
    let library = ensure_library(&setup, &Quiet).expect("the runtime");
    let path = words.first().map_or_else(|| embedded_model(&setup).expect("the model"), Into::into);
    let new: u32 = words.get(1).map_or(64, |word| word.parse().expect("a number of tokens"));
    let options = LoadOptions { provider: ProviderChoice::Cpu, ..LoadOptions::new(library) };
    let mut model = Model::load(&path, &options, &Quiet).expect("the model loads");
    let folder = tempfile::tempdir().expect("a folder");
    let (mut times, mut once) = (vec![Vec::new(); KINDS.len()], vec![Vec::new(); KINDS.len()]);
    let mut processor = vec![0.0; KINDS.len()];
    let layers = model.config().layers;
    let depths = [layers, layers / 2];
    let mut passes = vec![Vec::new(); depths.len()];
    for _ in 0..ROUNDS {
        for ((kept, processor), (times, once)) in
            KINDS.iter().zip(&mut processor).zip(times.iter_mut().zip(&mut once))
        {
            let begin = processor_seconds();
            times.push(run(&mut model, kept, new, folder.path()));
            let middle = processor_seconds();
            once.push(run(&mut model, kept, 0, folder.path()));
            *processor += (middle - begin) - (processor_seconds() - middle);
        }
        for (depth, passes) in depths.iter().zip(&mut passes) {
            passes.push(pass(&mut model, *depth));
        }
    }
    println!(
        "{}: {PROMPT} prompt tokens and {new} new ones, least of {ROUNDS} rounds, and processor time of all of them",
        model.name()
    );
    // Header, digests and prompt are paid once a recording, whatever its length.
    let decoding: Vec<f64> = times.iter().zip(&once).map(|(all, once)| least(all) - least(once)).collect();
    let base = decoding[0];
    for (((kept, decoding), once), work) in KINDS.iter().zip(&decoding).zip(&once).zip(&processor) {
        let (ms, once) = (1e3 * decoding, 1e3 * least(once));
        let (by_clock, by_work) = (decoding / base, work / processor[0]);
        println!(
            "{:42} {ms:9.1} ms  {by_clock:.2} x  (and {once:.1} ms once)  {work:7.2} s processor  {by_work:.2} x",
            kept.name
        );
    }
    println!("a pass over {PROMPT} tokens, head not counted");
    let whole = least(&passes[0]);
    for (depth, passes) in depths.iter().zip(&passes) {
        println!(
            "{:42} {:9.1} ms  {:.2} x",
            format!("{depth} of {layers} layers"),
            1e3 * least(passes),
            whole / least(passes)
        );
    }
    memories(&path, &options, new);
    let is_chain = words.is_empty();
    let set = if is_chain {
        TreeSet::chain(LEVELS[0], 6, 7, 8, false)
    } else {
        let mut set = TreeSet::built_in("gsm8k", LEVELS[0], 1, 0, 8, false).expect("the built-in problems");
        set.items.truncate(1);
        set
    };
    let new = if is_chain { 120 } else { new.min(32) };
    let rounds = if is_chain { 3 } else { 1 };
    let mut found = vec![Vec::new(); BATCHES.len()];
    for _ in 0..rounds {
        for (batch, found) in BATCHES.iter().zip(&mut found) {
            found.push(trees(&mut model, &set, *batch, new, folder.path()));
        }
    }
    println!(
        "recording {} problems of 8 branches, up to {new} new tokens, least of {rounds}",
        set.items.len()
    );
    for (batch, found) in BATCHES.iter().zip(&found) {
        let (processor, wall): (Vec<f64>, Vec<f64>) = found.iter().copied().unzip();
        println!(
            "{:42} {:9.2} s processor {:9.2} s wall",
            format!("{batch} a pass"),
            least(&processor),
            least(&wall)
        );
    }
}
