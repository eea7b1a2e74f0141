//! Branch trees: what is recorded is what the model does, behind both prefixes.

use kvlab_executor::{
    LensOptions, Model, Quiet, Taps,
    branches::{TreeItem, TreeSet, record_branches, solve_live},
    workload::chain::LEVELS,
};
use kvlab_sim::policy::{RawParams, compose::Part, share::asks};
use kvlab_sim::trace::{Leftover, Prefix, Trace, TraceSource, verify};

use kvlab_sim::trees::{TreeFacts, TreeModel, TreeParts, TreeStack, replay_problem};
use serde_json::json;

use super::support::{branch_plan, chunk, embedded};

/// Greedy tokens after a prompt, an end token left out, and their text.
fn greedy(model: &mut Model, prompt: &str) -> (Vec<u32>, String) {
    let tokens = model.codec().unwrap().encode(prompt).unwrap();
    let ends: Vec<u32> = (0..200).filter(|token| model.codec().unwrap().is_end(*token)).collect();
    let mut decoder = model.decoder().unwrap();
    let made = decoder.generate(&tokens, chunk(64), 120, &|token| ends.contains(&token)).unwrap();
    let text: Vec<u32> = made.iter().copied().filter(|token| !ends.contains(token)).collect();
    let text = model.codec().unwrap().decode(&text).unwrap();
    (made, text)
}

fn check_problem(model: &mut Model, trace: &Trace, index: u32, item: &TreeItem) {
    let problem = trace.problem(index).unwrap();
    assert_eq!((problem.item.as_str(), problem.branches.len()), (item.item.as_str(), 4));
    for (branch, words) in problem.branches[1..].iter().zip(&item.branches) {
        let own_prompt = format!("{}{}", words.prefix, words.suffix);
        let root_prompt = format!("{}{}", item.root.prefix, words.suffix);
        for (prefix, prompt, wording) in
            [(Prefix::Own, own_prompt, words.wording), (Prefix::Root, root_prompt, item.root.wording)]
        {
            let outcome = branch.outcome(prefix).unwrap();
            let (made, text) = greedy(model, &prompt);
            let tokens: Vec<u32> = outcome.steps.iter().map(|step| step.token.get()).collect();
            assert_eq!(tokens, made, "{prompt}");
            assert_eq!(outcome.generated as usize, made.len());
            assert_eq!(outcome.correct, Some(outcome.answer == problem.expected_answer));
            let marked: Vec<usize> = (0..made.len()).filter(|at| outcome.steps[*at].in_answer).collect();
            if let Some(answer) = &outcome.answer {
                let said: Vec<u32> = marked.iter().map(|at| made[*at]).collect();
                assert_eq!(model.codec().unwrap().decode(&said).unwrap().trim(), answer);
            }

            // The verifier's view of the last layer is the model's own next-token distribution.
            let verifier = model.codec().unwrap().encode(&(item.verify)(wording, &text)).unwrap();
            let verdict = outcome.verdict.as_ref().unwrap();
            assert_eq!((verdict.prompt_tokens as usize, verdict.layers.len()), (verifier.len(), 8));
            let mut decoder = model.decoder().unwrap();
            let pass = decoder.forward(&verifier, Taps::STATES).unwrap();
            let logits = decoder.last_logits(&pass).unwrap();
            let rows = [verifier.len() - 1];
            let lens = decoder.lens(&pass, &rows, LensOptions::default()).unwrap();
            let codec = model.codec().unwrap();
            let token = |word: &str| codec.encode_formatted(word).unwrap()[0] as usize;
            let expected = 1.0 / (1.0 + f64::from(logits[token("no")] - logits[token("yes")]).exp());
            let last = verdict.layers.last().unwrap();
            assert!((f64::from(last.p_yes) - expected).abs() < 1e-4, "{} {expected}", last.p_yes);
            for (facts, seen) in verdict.layers.iter().zip(&lens) {
                let (normed, raw) = (&seen[0].normed, seen[0].raw.as_ref().unwrap());
                assert!((f64::from(facts.entropy_nats) - normed.entropy_nats).abs() < 1e-3);
                assert!((f64::from(facts.raw_entropy_nats) - raw.entropy_nats).abs() < 1e-3);
            }
        }
        assert_eq!(branch.similarity.len(), 9);
        let is_same = words.prefix == item.root.prefix && words.suffix == item.root.suffix;
        let least = branch.similarity.iter().map(|s| s.cos_last).fold(1.0_f32, f32::min);
        assert_eq!(is_same, least > 0.999_99, "the root's own words have its states: {least}");
    }
    // Behind the root's prefix, branches with the same suffix have the same outcome, and so has the one with its words.
    assert_eq!(problem.branches[1].own, problem.branches[1].root);
}

#[test]
fn every_branch_is_recorded_behind_both_prefixes_with_a_verifier() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 2, 7, 3, false);
    record_branches(&mut model, &set.items, &branch_plan(&set), &target, Leftover::Refuse, &Quiet).unwrap();
    verify(&target).unwrap();
    let trace = Trace::open(&target).unwrap();
    assert_eq!(trace.problems(), 2);
    for (index, item) in (0..).zip(&set.items) {
        check_problem(&mut model, &trace, index, item);
    }
}

#[test]
fn an_interrupted_recording_of_trees_ends_as_an_undisturbed_one() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 3, 7, 2, true);
    let undisturbed =
        record_branches(&mut model, &set.items, &branch_plan(&set), &whole, Leftover::Refuse, &Quiet)
            .unwrap();
    // A prompt that cannot be run stops the recording behind the first problem.
    let mut broken = TreeSet::chain(LEVELS[0], 3, 7, 2, true);
    broken.items[1].branches[1].prefix = "let ".repeat(3000);
    record_branches(&mut model, &broken.items, &branch_plan(&set), &parts, Leftover::Refuse, &Quiet)
        .unwrap_err();
    assert!(!parts.exists());
    let resumed =
        record_branches(&mut model, &set.items, &branch_plan(&set), &parts, Leftover::Resume, &Quiet)
            .unwrap();
    assert_eq!(resumed.digest, undisturbed.digest);
}

/// What the model does live at given thresholds, with skips, shared prefixes and layers that do not run, is what a replay of the recorded
/// trees decides at the same thresholds: for every problem, branch by branch, and the same answer.
#[test]
fn a_replay_decides_what_the_live_pipeline_does() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("trace");
    let mut model = embedded(folder.path());
    let set = TreeSet::chain(LEVELS[0], 4, 11, 5, false);
    let plan = branch_plan(&set);
    record_branches(&mut model, &set.items, &plan, &target, Leftover::Refuse, &Quiet).unwrap();
    let trace = Trace::open(&target).unwrap();
    let facts: Vec<TreeFacts> =
        (0..trace.problems()).map(|at| TreeFacts::new(at, trace.problem(at).unwrap())).collect();
    let shape = trace.shape();
    let of_trace = TreeModel { layers: shape.layers, vocab: shape.vocab };
    let part = |kind: &str, params: serde_json::Value| Part {
        kind: kind.to_owned(),
        params: RawParams::from_params(&params).unwrap(),
    };
    // τ in the middle of the widest gap among the middle similarities: some share, none is near the border.
    let mut sigmas: Vec<f64> = (facts.iter())
        .flat_map(|facts| facts.leaves.iter().map(|&at| &facts.problem.branches[at].similarity))
        .map(|similarity| asks::Params::default().sigma(similarity).unwrap())
        .collect();
    sigmas.sort_by(f64::total_cmp);
    let middle = &sigmas[sigmas.len() / 4..sigmas.len() * 3 / 4];
    let widest = middle.windows(2).max_by(|a, b| (a[1] - a[0]).total_cmp(&(b[1] - b[0]))).unwrap();
    assert!(widest[1] - widest[0] > 1e-5, "{sigmas:?}");
    let tau = f64::midpoint(widest[0], widest[1]);
    let (mut shared, mut skipped, mut early, mut winners) = (0, 0, 0, std::collections::BTreeSet::new());
    for (tau, verify, exit) in [
        (
            tau,
            part("cgee", json!({ "tau_conf": 0.9, "margin": 0.02, "rule": "a" })),
            part("entropy", json!({ "theta": 1.0, "epsilon": 1.0, "min_layer": 1 })),
        ),
        (
            tau,
            part("always", json!({})),
            part("entropy", json!({ "theta": 2.0, "epsilon": 4.0, "min_layer": 0, "lens": "raw" })),
        ),
        (0.0, part("majority", json!({ "share": 0.7 })), part("fixed", json!({ "share": 0.5 }))),
        (1.1, part("never", json!({})), part("never", json!({}))),
        (tau, part("always", json!({})), part("two-way-margin", json!({ "margin": 0.5, "stable": 2 }))),
    ] {
        let stack = TreeStack::build(&TreeParts {
            share: part("asks", json!({ "tau": tau })),
            verify,
            exit,
            ..TreeParts::default()
        })
        .unwrap();
        for (item, facts) in set.items.iter().zip(&facts) {
            let live = solve_live(&mut model, item, &plan, &stack, (facts.index, 0), &[]).unwrap();
            let decided = replay_problem(&stack, facts, of_trace, 0, &[]).unwrap();
            let (run, ran) = (&live.decision, &live.lived.branches);
            assert_eq!(run.skipped, decided.skipped, "{}", item.item);
            assert_eq!(run.choice, decided.choice, "{}", item.item);
            assert_eq!(run.work, decided.work, "{}", item.item);
            assert_eq!(run.branches.len(), decided.branches.len());
            for ((live, ran), decided) in run.branches.iter().zip(ran).zip(&decided.branches) {
                assert_eq!(live.sharing.prefix, decided.sharing.prefix);
                assert_eq!(live.sharing.reused_tokens, decided.sharing.reused_tokens);
                assert_eq!(live.layers_run, decided.layers_run);
                let recorded = facts.outcome(decided.branch, decided.sharing.prefix).unwrap();
                assert_eq!((&ran.outcome.answer, &ran.outcome.steps), (&recorded.answer, &recorded.steps));
                // The recording looks at all layers in one product, the live run at one row: rounding differs.
                let score = live.score.zip(decided.score).map_or(0.0, |(a, b)| (a - b).abs());
                assert!(score < 1e-4, "{score}");
                shared += usize::from(live.sharing.prefix == Prefix::Root);
                early += usize::from(live.layers_run.is_some_and(|run| run < shape.layers));
            }
            skipped += usize::from(run.skipped);
            winners.insert(run.choice.winner);
        }
    }
    // All kinds of decisions occurred.
    assert!(
        shared > 20 && shared < 80 && skipped > 4 && skipped < 16 && early > 10,
        "{shared} {skipped} {early}"
    );
    assert!(winners.len() > 1, "{winners:?}");
}
