//! Golden vectors of the specification, computed outside of this project: small enough to check by hand.

use kvlab_executor::Distribution;
use kvlab_sim::policy::confidence::{Confidence, Over};
use kvlab_sim::policy::exit::{entropy_adaptive, margin};
use kvlab_sim::policy::share::asks::{self, Weights};
use kvlab_sim::policy::share::{ShareView, exact_prefix};
use kvlab_sim::policy::verify::VerifyView;
use kvlab_sim::policy::verify::cgee::{self, Lead};
use kvlab_sim::policy::{RawParams, registry};
use kvlab_sim::trace::{Branch, BranchStep, Confidences, Outcome, Problem, Similarity};
use kvlab_sim::types::TokenId;
use serde_json::json;

fn close(found: &[f64], expected: &[f64], within: f64) {
    assert_eq!(found.len(), expected.len());
    let is_close = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < within);
    assert!(is_close, "{found:?} {expected:?}");
}

#[test]
fn g1_weights_of_layers() {
    close(&asks::Params::default().weights(4), &[0.101_536, 0.167_405, 0.276_004, 0.455_054], 1e-6);
    let five = [0.082_414, 0.119_911, 0.174_470, 0.253_852, 0.369_353];
    close(&asks::Params::default().weights(5), &five, 1e-6);
}

/// At τ = 0.80 W and S refuse what U accepts.
#[test]
fn g2_three_forms_of_sigma() {
    let states = [0.3_f32, 0.99, 0.95, 0.80, 0.60];
    let cosines: Vec<Similarity> =
        states.iter().map(|&cos_last| Similarity { cos_last, cos_mean: 0.0 }).collect();
    let forms = [(Weights::Exponential, 0.753_392), (Weights::Uniform, 0.835), (Weights::Seed, 0.772_845)];
    for (weights, expected) in forms {
        let sigma = asks::Params { weights, ..asks::Params::default() }.sigma(&cosines).unwrap();
        close(&[sigma], &[expected], 1e-6);
        assert_eq!(sigma >= 0.80, weights == Weights::Uniform);
    }
}

/// Nats; the specification adds 1e-10 inside of the logarithm, which is below the tolerance.
#[test]
fn g3_entropies_of_logits() {
    for (logits, expected) in
        [([0.0_f32; 4], 1.386_294), ([2.0, 1.0, 0.0, -1.0], 0.947_537), ([10.0, 0.0, 0.0, 0.0], 0.001_498)]
    {
        close(&[Distribution::of_logits(&logits, 1).unwrap().entropy_nats], &[expected], 1e-6);
    }
}

/// (rule A, rule B) at 0.70, 0.06 and 0.08; 0.70 − 0.64 is below 0.06 in binary64.
#[test]
fn g4_rules_of_the_verify_skip() {
    for (confidences, rules) in [
        (&[0.80, 0.70, 0.60][..], (true, true)),
        (&[0.80, 0.76], (false, false)),
        (&[0.65, 0.59], (false, true)),
        (&[0.62, 0.40], (false, false)),
        (&[0.70, 0.64], (false, true)),
        (&[0.70, 0.6399], (true, true)),
    ] {
        for (rule, expected) in [("a", rules.0), ("b", rules.1)] {
            let given = RawParams::from_params(&json!({ "rule": rule })).unwrap();
            let params: cgee::Params = given.parse("cgee").unwrap();
            assert_eq!(params.skips(Lead::of(confidences)), expected, "{rule} {confidences:?}");
        }
    }
}

#[test]
fn g5_scale_of_an_adaptive_theta() {
    for (mean, expected) in [(0, 1.05), (1, 1.04), (5, 1.0), (9, 0.96), (10, 0.95)] {
        close(&[entropy_adaptive::scale(&[mean; 20], 10)], &[expected], 1e-12);
    }
}

#[test]
fn g13_threshold_of_calm_over_a_generation() {
    for (step, expected) in [(0, 0.82), (10, 0.787_032), (50, 0.733_534), (100, 0.721_832)] {
        close(&[margin::decayed(0.8, 4.0, Some((step, 100)))], &[expected], 1e-6);
    }
}

fn outcome(probs: &[f32]) -> Outcome {
    let step = |&prob: &f32| BranchStep {
        token: TokenId::new(0),
        prob,
        top1_prob: prob,
        entropy_nats: 0.0,
        top20_surprise_nats: 0.0,
        uniform_kl_nats: 0.0,
        in_answer: false,
    };
    let steps: Vec<BranchStep> = probs.iter().map(step).collect();
    Outcome {
        answer: None,
        correct: None,
        finish_reason: "stop".to_owned(),
        generated: 3,
        confidences: Confidences::over(&steps),
        steps,
        verdict: None,
    }
}

/// Geometric mean, arithmetic mean and minimum of 0.9, 0.8, 0.99; none reaches 0.95, so nothing is skipped at that threshold.
#[test]
fn g14_confidences_of_deer() {
    let found = outcome(&[0.9, 0.8, 0.99]);
    for (id, which, expected) in [
        ("geometric-mean-prob", Confidence::GeometricMeanProb, 0.893_283),
        ("mean-top1-prob", Confidence::MeanTop1Prob, 0.896_667),
        ("min-prob", Confidence::MinProb, 0.8),
    ] {
        close(&which.of("top", Over::Steps, &[&found]).unwrap(), &[expected], 1e-6);
        let given = RawParams::from_params(&json!({ "confidence": id, "threshold": 0.95 })).unwrap();
        let top = (registry::find(registry::VERIFIES, "verify", "top").unwrap().build)(&given).unwrap();
        let view = VerifyView { outcomes: &[&found], problem: 0, seed: 0 };
        assert!(!top.skips(&view).unwrap(), "{id}");
    }
}

/// Score and depth (0.9, 3), (0.5, 0), (0.8, 1), (0.3, 1): ω = 0.225, 0.5, 0.4, 0.15.
#[test]
fn g15_order_of_the_branch_aware_block_manager() {
    use kvlab_sim::policy::pool::BlockFacts;
    let given = RawParams::from_params(&json!({ "kappa": 0.0 })).unwrap();
    let rsbcm = (registry::find(registry::POOLS, "pool", "rsbcm").unwrap().build)(&given).unwrap();
    let worth = |(score, depth): (f32, u32)| {
        let facts = BlockFacts {
            score_max: score,
            score_mean: score,
            depth,
            attention: 1.0,
            ..BlockFacts::default()
        };
        rsbcm.rank(&facts).worth
    };
    let omega: Vec<f64> = [(0.9, 3), (0.5, 0), (0.8, 1), (0.3, 1)].into_iter().map(worth).collect();
    close(&omega, &[0.225, 0.5, 0.4, 0.15], 1e-7);
    let mut order: Vec<usize> = (1..=4).collect();
    order.sort_by(|&a, &b| omega[a - 1].total_cmp(&omega[b - 1]));
    assert_eq!(order, [4, 1, 3, 2]);
}

/// Equal in tokens 0 to 31 and different at 35: two blocks. A prompt of exactly 32 tokens that is cached whole has one usable block.
#[test]
fn g17_blocks_of_a_chained_hash() {
    let first: Vec<u32> = (0..48).collect();
    let mut second = first.clone();
    second[35] = 99;
    let branch = |(at, prompt): (usize, &[u32])| Branch {
        parent: (at > 0).then_some(0),
        seq: None,
        wording: 0,
        wording_level: 0,
        hint: None,
        prefix_len: u32::try_from(prompt.len()).unwrap(),
        tokens: prompt.iter().copied().map(TokenId::new).collect(),
        similarity: Vec::new(),
        own: None,
        root: None,
    };
    let prompts = [&[7][..], &first, &second, &first[..32]];
    let branches = prompts.into_iter().enumerate().map(branch).collect();
    let problem = Problem { item: "g17".to_owned(), expected_answer: None, branches };
    let exact = (exact_prefix::ENTRY.build)(&RawParams::default()).unwrap();
    let reused =
        |branch| exact.decide(&ShareView { problem: &problem, branch, layers: 1 }).unwrap().reused_tokens;
    assert_eq!([1, 2, 3].map(reused), [0, 32, 16]);
}

/// DeepConf's windows, by hand: surprises 1, 2, …, 21 in windows of two have means 1.5, 2.5, …, 20.5, twenty in all; the lowest tenth are 1.5 and 2.5. The last
/// three steps have a mean of 20. A window longer than the branch is the branch: 11.
#[test]
fn windows_of_deepconf() {
    let mut found = outcome(&[0.5; 21]);
    for (at, step) in (1_u8..).zip(&mut found.steps) {
        step.top20_surprise_nats = f32::from(at);
    }
    for (over, expected) in [
        ("tail:3", 20.0),
        ("lowest-window:2", 1.5),
        ("bottom-windows:2", 2.0),
        ("lowest-window:2048", 11.0),
        ("bottom-windows:2048", 11.0),
        ("tail:2048", 11.0),
    ] {
        let over = Over::try_from(over.to_owned()).unwrap();
        close(&Confidence::MeanTop20Surprise.of("top", over, &[&found]).unwrap(), &[expected], 1e-6);
        assert_eq!(Over::try_from(String::from(over)), Ok(over));
    }
    let refused = Over::try_from("tail".to_owned()).unwrap_err();
    assert!(refused.contains("`tail`") && refused.contains("`tail:N`"), "{refused}");
    found.steps.clear();
    assert!(Confidence::MeanTop20Surprise.of("top", Over::Tail(4), &[&found]).is_err());
}
