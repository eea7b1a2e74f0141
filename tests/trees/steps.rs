//! Step functions say what a replay at each threshold says.

use super::{model, part, rksc, some_trees};
use kvlab_sim::policy::compose::Part;
use kvlab_sim::policy::verify::cgee;
use kvlab_sim::steps::{Axis, Counts, Grid, JointFact, Setting, StepTable};
use kvlab_sim::trace::Prefix;
use kvlab_sim::trees::{TreeFacts, TreeParts, TreeStack, full_pipeline, replay_problem};
use proptest::prelude::*;
use serde_json::json;

/// What replaying every problem at a setting gives.
fn replayed(trees: &[TreeFacts], s: &Setting, rule: &str, patience: u16) -> Counts {
    let stack = stack(s, rule, patience);
    let mut counts = Counts::default();
    for facts in trees {
        let decision = replay_problem(&stack, facts, model(7), 0, &[]).unwrap();
        let full = full_pipeline(stack.winner.as_ref(), facts).unwrap();
        let (here, there) = (decision.choice.correct == Some(true), full.correct == Some(true));
        counts.shared += decision.branches.iter().filter(|b| b.sharing.prefix == Prefix::Root).count() as u64;
        counts.skipped += u64::from(decision.skipped);
        for run in decision.branches.iter().filter_map(|b| b.layers_run) {
            counts.verified += 1;
            counts.exited += u64::from(run < 7);
            counts.layers_run += u64::from(run);
        }
        counts.correct += u64::from(here);
        counts.agreeing += u64::from(decision.choice.answer == full.answer);
        counts.harmed += u64::from(there && !here);
        counts.helped += u64::from(here && !there);
    }
    counts
}

/// What a reader of the exported facts makes of a setting: comparisons and sums, no policy but the skip rule.
fn from_facts(facts: &[JointFact], stack: &TreeStack, s: &Setting) -> Counts {
    let rule = cgee::Params { tau_conf: s.tau_conf, margin: s.margin, ..stack.verify.as_cgee().unwrap() };
    let mut counts = Counts::default();
    let holds = |fact: &&JointFact| {
        fact.above.is_none_or(|above| s.tau > above) && fact.upto.is_none_or(|upto| s.tau <= upto)
    };
    for fact in facts.iter().filter(holds) {
        let mut choice = fact.if_skipped;
        counts.shared += fact.shared;
        if fact.skips.unwrap_or_else(|| rule.skips(fact.lead)) {
            counts.skipped += 1;
        } else {
            let rank = |value: fn(&(u16, f64, f64)) -> f64, limit: f64| {
                let mut below: Vec<u64> = Vec::new();
                let points = fact.stops.iter().flat_map(|stops| &stops.early);
                below.extend(points.map(value).filter(|value| *value < limit).map(f64::to_bits));
                below.sort_unstable();
                below.dedup();
                below.len()
            };
            choice = fact.verified[rank(|point| point.1, s.theta)][rank(|point| point.2, s.epsilon)];
            for stops in &fact.stops {
                let first = stops.early.iter().find(|point| point.1 < s.theta && point.2 < s.epsilon);
                let run = first.map_or(stops.last, |point| point.0);
                counts.verified += 1;
                counts.exited += u64::from(run < 7);
                counts.layers_run += u64::from(run);
            }
        }
        counts.correct += u64::from(choice & 1);
        counts.agreeing += u64::from(choice >> 1 & 1);
        counts.harmed += u64::from(choice >> 2 & 1);
        counts.helped += u64::from(choice >> 3 & 1);
    }
    counts
}

fn stack(s: &Setting, rule: &str, patience: u16) -> TreeStack {
    rksc(
        &json!({ "tau": s.tau }),
        &json!({ "tau_conf": s.tau_conf, "margin": s.margin, "rule": rule }),
        &json!({ "theta": s.theta, "epsilon": s.epsilon, "min_layer": 1, "patience": patience }),
    )
}

fn setting() -> impl Strategy<Value = Setting> {
    (0.4f64..1.1, 0.3f64..0.95, 0.0f64..0.2, 0.0f64..4.5, 0.0f64..2.0)
        .prop_map(|(tau, tau_conf, margin, theta, epsilon)| Setting { tau, tau_conf, margin, theta, epsilon })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// At random settings, and at settings made of observed values, where ≥ and < differ.
    #[test]
    fn a_table_gives_what_a_replay_gives(seed in 0u64..20, s in setting(), picks in prop::array::uniform5(0usize..1000), rule in prop::sample::select(vec!["a", "b", "either"]), patience in 1u16..3) {
        let trees = some_trees(seed);
        let built = stack(&s, rule, patience);
        let table = StepTable::build(&trees, &built, model(7)).unwrap();
        let mut at_edges = s;
        for (axis, pick) in Axis::ALL.into_iter().zip(picks) {
            let observed = table.observed(axis);
            if !observed.is_empty() {
                at_edges = at_edges.with(axis, observed[pick % observed.len()]);
            }
        }
        let settings = [s, at_edges];
        let joint = table.joint(&settings);
        for (s, joint) in settings.iter().zip(joint) {
            let expected = replayed(&trees, s, rule, patience);
            prop_assert_eq!(table.at(s), expected);
            prop_assert_eq!(from_facts(&table.export(), &built, s), expected);
            prop_assert_eq!(joint, expected);
        }
        let both = |value: fn(&Setting) -> f64| vec![value(&s), value(&at_edges)];
        let grid = Grid {
            tau: both(|s| s.tau),
            tau_conf: both(|s| s.tau_conf),
            margin: both(|s| s.margin),
            theta: both(|s| s.theta),
            epsilon: both(|s| s.epsilon),
        };
        let all: Vec<Setting> = grid.settings().collect();
        prop_assert_eq!((all.len(), all[0], all[31]), (32, s, at_edges));
        let one_by_one = table.joint(&all);
        for threads in [1, 3] {
            prop_assert_eq!(&rayon_pool(threads).install(|| table.grid(&grid)), &one_by_one);
        }
        let without_margins = Grid { margin: Vec::new(), ..grid };
        prop_assert!(table.grid(&without_margins).is_empty());
    }

    /// Along an axis: the steps cover every value once, hold what a replay gives inside and at their upper ends, and neighbours differ.
    #[test]
    fn steps_along_an_axis_are_exact_and_not_split(seed in 0u64..20, s in setting(), axis in prop::sample::select(Axis::ALL.to_vec()), rule in prop::sample::select(vec!["a", "b", "either"])) {
        let trees = some_trees(seed);
        let built = stack(&s, rule, 1);
        let table = StepTable::build(&trees, &built, model(7)).unwrap();
        let steps = table.along(axis, &s);
        prop_assert!(steps[0].above.is_none() && steps.last().unwrap().upto.is_none());
        for pair in steps.windows(2) {
            prop_assert_eq!(pair[0].upto, pair[1].above);
            let (left, right) = (pair[0].upto.unwrap(), pair[0].upto.unwrap().next_up());
            prop_assert!(!table.is_same(&s.with(axis, left), &s.with(axis, right)));
        }
        for step in steps.iter().step_by(1 + steps.len() / 12) {
            let inside = match (step.above, step.upto) {
                (Some(low), Some(high)) => low + (high - low) / 2.0,
                (None, Some(high)) => high - 1.0,
                (Some(low), None) => low + 1.0,
                (None, None) => 0.5,
            };
            let edges = [step.upto, step.above.map(f64::next_up)];
            for value in edges.into_iter().flatten().chain([inside]).filter(|v| step.above.is_none_or(|low| *v > low)) {
                // Negative thresholds are refused by exit policies, which changes nothing: both never exit.
                let value = if matches!(axis, Axis::Theta | Axis::Epsilon) { value.max(0.0) } else { value };
                prop_assert_eq!(step.counts, replayed(&trees, &s.with(axis, value), rule, 1), "{:?} {}", axis, value);
            }
        }
    }
}

/// Blocks, threads and order change nothing.
#[test]
fn many_settings_at_once_give_the_same_for_any_number_of_threads() {
    let trees = some_trees(4);
    let base = Setting { tau: 0.8, tau_conf: 0.7, margin: 0.06, theta: 2.0, epsilon: 1.0 };
    let built = stack(&base, "either", 1);
    let table = StepTable::build(&trees, &built, model(7)).unwrap();
    let settings: Vec<Setting> = (0..20_000u32)
        .map(|i| {
            let at = |bit: u32| {
                f64::from(i.wrapping_mul(2_654_435_761_u32.wrapping_add(bit << 9)) >> 8) / f64::from(1 << 24)
            };
            Setting {
                tau: 0.4 + 0.6 * at(1),
                tau_conf: at(3),
                margin: 0.2 * at(5),
                theta: 4.0 * at(7),
                epsilon: at(9),
            }
        })
        .collect();
    let joint = |threads: usize| {
        let pool = rayon_pool(threads);
        pool.install(|| table.joint(&settings))
    };
    let one = joint(1);
    assert_eq!(one, joint(3));
    for (s, counts) in settings.iter().zip(&one).step_by(997) {
        assert_eq!(*counts, table.at(s));
    }
}

fn rayon_pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// Policies without thresholds act as they are.
#[test]
fn rivals_have_tables_too() {
    let trees = some_trees(5);
    for (share, verify, exit, winner) in [
        ("always", "top", "fixed", "majority"),
        ("exact-prefix", "z-score", "two-way-margin", "weighted-majority"),
        ("off", "majority", "patience", "highest-score"),
        ("radix", "never", "soft-patience", "highest-confidence"),
    ] {
        let built = TreeStack::build(&TreeParts {
            share: Part::plain(share),
            verify: Part::plain(verify),
            exit: Part::plain(exit),
            winner: Part::plain(winner),
            decode_exit: None,
        })
        .unwrap();
        let table = StepTable::build(&trees, &built, model(7)).unwrap();
        let s = Setting::of(&built, super::VOCAB);
        let (mut correct, mut skipped, mut run) = (0, 0, 0);
        for facts in &trees {
            let decision = replay_problem(&built, facts, model(7), 0, &[]).unwrap();
            correct += u64::from(decision.choice.correct == Some(true));
            skipped += u64::from(decision.skipped);
            run += decision.branches.iter().filter_map(|b| b.layers_run).map(u64::from).sum::<u64>();
        }
        for counts in [table.at(&s), table.joint(&[s])[0]] {
            assert_eq!(
                (counts.correct, counts.skipped, counts.layers_run),
                (correct, skipped, run),
                "{share} {exit}"
            );
        }
        assert!(Axis::ALL.iter().all(|&axis| table.along(axis, &s).len() == 1));
    }
    let random =
        TreeStack::build(&TreeParts { verify: Part::plain("random"), ..TreeParts::default() }).unwrap();
    assert!(StepTable::build(&trees, &random, model(7)).is_err());
    let adaptive = part("entropy-adaptive", &json!({}));
    let adaptive = TreeStack::build(&TreeParts { exit: adaptive, ..TreeParts::default() }).unwrap();
    assert!(StepTable::build(&trees, &adaptive, model(7)).is_err());
}
