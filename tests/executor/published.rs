//! The reference notebook's protocol: each of its defects is done, told, and never the default.

use super::support::{branch_plan, chunk, embedded};
use kvlab_executor::branches::{BranchPlan, Protocol, TreeSet, record_branches};
use kvlab_executor::workload::chain::LEVELS;
use kvlab_executor::{Decoder, Distribution, KvCache, Model, Quiet, Taps};
use kvlab_sim::trace::{Leftover, Outcome, Prefix, Problem, Trace, TraceSource, verify};
use std::path::Path;

const NEW: u32 = 90;

fn set() -> TreeSet {
    TreeSet::chain(LEVELS[0], 1, 7, 4, false)
}

fn recorded(model: &mut Model, target: &Path, protocol: Protocol) -> (Trace, Problem) {
    let set = set();
    let plan = BranchPlan { protocol, max_new_tokens: NEW, ..branch_plan(&set) };
    record_branches(model, &set.items, &plan, target, Leftover::Refuse, &Quiet).unwrap();
    verify(target).unwrap();
    let trace = Trace::open(target).unwrap();
    let problem = trace.problem(0).unwrap();
    (trace, problem)
}

fn prefilled(model: &mut Model, text: &str) -> KvCache {
    let tokens = model.codec().unwrap().encode(text).unwrap();
    let mut decoder = model.decoder().unwrap();
    decoder.forward(&tokens, Taps::NONE).unwrap();
    decoder.cache().clone()
}

/// The entropy of the next token behind `token`, fed where the decoder stands.
fn entropy_behind(decoder: &mut Decoder<'_>, tokens: &[u32]) -> f64 {
    let pass = decoder.forward(tokens, Taps::NONE).unwrap();
    Distribution::of_logits(&decoder.last_logits(&pass).unwrap(), 1).unwrap().entropy_nats
}

fn first_entropy(outcome: &Outcome) -> f64 {
    f64::from(outcome.steps[0].entropy_nats)
}

#[test]
fn the_published_protocol_is_told_and_the_corrected_one_is_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = embedded(folder.path());
    let (published, with_defects) = recorded(&mut model, &folder.path().join("p"), Protocol::AsPublished);
    let (corrected, without) = recorded(&mut model, &folder.path().join("c"), Protocol::default());
    assert_eq!(corrected.manifest().decoding.protocol, None);
    let told = published.manifest().decoding.protocol.clone().unwrap();
    for defect in ["D4", "D5", "D6", "D7", "D13"] {
        assert!(told.contains(defect), "{told}");
    }
    let set = set();
    let item = &set.items[0];
    let encode = |model: &Model, text: &str| model.codec().unwrap().encode_formatted(text).unwrap();
    let suffixes: Vec<Vec<u32>> = item.branches.iter().map(|words| encode(&model, &words.suffix)).collect();
    let longest = suffixes.iter().map(Vec::len).max().unwrap();
    assert!(suffixes.iter().any(|suffix| suffix.len() < longest), "suffixes of one length show nothing");
    let prompts: Vec<usize> = with_defects.branches[1..].iter().map(|branch| branch.tokens.len()).collect();
    let longest_prompt = *prompts.iter().max().unwrap();
    assert!(prompts.iter().any(|length| *length < longest_prompt));
    let pad = (0..500).find(|token| model.codec().unwrap().is_end(*token)).unwrap();

    let shared = prefilled(&mut model, &item.root.prefix);
    for (at, (published, corrected)) in
        with_defects.branches[1..].iter().zip(&without.branches[1..]).enumerate()
    {
        let (own, root) = (published.outcome(Prefix::Own).unwrap(), published.outcome(Prefix::Root).unwrap());
        // D13: every branch has all steps, those behind the end of its text too, and its confidence is that of all of them.
        for (published, prefix) in [(own, Prefix::Own), (root, Prefix::Root)] {
            assert_eq!((published.generated, published.steps.len()), (NEW, NEW as usize));
            let corrected = corrected.outcome(prefix).unwrap();
            assert!(corrected.generated < NEW, "the text has an end");
            let mean =
                published.steps.iter().map(|step| f64::from(step.top1_prob)).sum::<f64>() / f64::from(NEW);
            assert!((f64::from(published.confidences.mean_top1_prob) - mean).abs() < 1e-6);
        }
        // D7: behind the root's prefix a shorter suffix begins as many positions later as it is shorter.
        let mut decoder = model.decoder_with(shared.clone());
        let gap = u32::try_from(longest - suffixes[at].len()).unwrap();
        let begin = decoder.next_position() + gap;
        decoder.set_next_position(begin).unwrap();
        let expected = entropy_behind(&mut decoder, &suffixes[at]);
        assert!((first_entropy(root) - expected).abs() < 1e-4, "{} {expected}", first_entropy(root));
        if gap == 0 {
            assert!(
                (first_entropy(root) - first_entropy(corrected.outcome(Prefix::Root).unwrap())).abs() < 1e-6
            );
        }
        // D6: all but the longest prompt go on from a pad at the last place of the longest.
        let words = &item.branches[at];
        let cache = prefilled(&mut model, &format!("{}{}", words.prefix, words.suffix));
        let own_corrected = first_entropy(corrected.outcome(Prefix::Own).unwrap());
        if prompts[at] == longest_prompt {
            assert!((first_entropy(own) - own_corrected).abs() < 1e-6);
        } else {
            let mut decoder = model.decoder_with(cache);
            decoder.set_next_position(u32::try_from(longest_prompt).unwrap() - 1).unwrap();
            let expected = entropy_behind(&mut decoder, &[pad]);
            assert!((first_entropy(own) - expected).abs() < 1e-4, "{} {expected}", first_entropy(own));
            assert!((first_entropy(own) - own_corrected).abs() > 1e-6, "the pad shows");
        }
    }

    // D4 and D5, for the branches behind the root's prefix, which are one batch.
    let codec_text = |model: &Model, outcome: &Outcome| {
        let codec = model.codec().unwrap();
        let steps = outcome.steps.iter().map(|step| step.token.get());
        codec.decode(&steps.take_while(|token| !codec.is_end(*token)).collect::<Vec<_>>()).unwrap()
    };
    let roots: Vec<&Outcome> =
        with_defects.branches[1..].iter().map(|branch| branch.outcome(Prefix::Root).unwrap()).collect();
    let mut blind = Vec::new();
    for outcome in &roots {
        let text = codec_text(&model, outcome);
        let (shown, seen) = ((item.blind)(item.root.wording, &text), (item.verify)(item.root.wording, &text));
        assert_ne!(shown, seen, "the verifier does not see the problem");
        blind.push(model.codec().unwrap().encode(&shown).unwrap());
    }
    let longest = blind.iter().map(Vec::len).max().unwrap();
    let words = set.verdict_words;
    let [yes, no] = [words.0, words.1].map(|word| encode(&model, word)[0] as usize);
    for (outcome, prompt) in roots.iter().zip(&blind) {
        let verdict = outcome.verdict.as_ref().unwrap();
        assert_eq!(verdict.prompt_tokens as usize, prompt.len());
        let read = (2 * prompt.len()).saturating_sub(longest);
        let fed = if read == 0 { vec![pad] } else { prompt[..read].to_vec() };
        let mut decoder = model.decoder().unwrap();
        let pass = decoder
            .prefill(&fed, chunk(64), Taps::NONE, |_, _| Ok::<_, kvlab_executor::DecodeError>(()))
            .unwrap();
        let logits = decoder.last_logits(&pass).unwrap();
        let expected = 1.0 / (1.0 + f64::from(logits[no] - logits[yes]).exp());
        let found = f64::from(verdict.layers.last().unwrap().p_yes);
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
}
