//! What a serving study is refused for.

use super::super::ScenarioErrorKind;
use super::super::checked::value;
use super::super::raw::RawServe;
use super::{Arm, Measure, ProblemSizes, ServeStudy, ServedProblems};
use crate::serve::Arrivals;
use crate::trees::TreeStack;

/// Most tokens of any part of a problem.
const MOST_TOKENS: u32 = 1 << 20;

pub(in crate::scenario) fn checked(raw: RawServe) -> Result<ServeStudy, ScenarioErrorKind> {
    let RawServe { cost, problems, arrivals, baseline, against, arms, claims } = raw;
    let is_recorded = problems == ServedProblems::Recorded;
    if let ServedProblems::Sizes(problems) = &problems {
        check_sizes(problems)?;
    }
    if let Arrivals::Poisson { per_second, .. } = arrivals
        && !(per_second > 0.0 && per_second.is_finite())
    {
        return Err(value("serve.arrivals.poisson.per_second", &per_second.to_string(), "more than 0"));
    }
    if let Arrivals::Recorded { millis } = &arrivals
        && (millis.is_empty() || !millis.is_sorted())
    {
        return Err(value("serve.arrivals.millis", &format!("{millis:?}"), "rising times, at least one"));
    }
    if arms.is_empty() {
        return Err(value("serve.arms", "an empty list", "at least one arm"));
    }
    for (at, arm) in arms.iter().enumerate() {
        let path = format!("serve.arms[{at}]");
        if arms[..at].iter().any(|other| other.label == arm.label) {
            return Err(value(
                &format!("{path}.label"),
                &format!("`{}` twice", arm.label),
                "each label once",
            ));
        }
        if is_recorded {
            check_recorded(arm, &path)?;
        } else if arm.stack.is_some() {
            let accepted = "only with `problems: recorded`: generated problems are decided about by shares (reuse, gate, verify, decode_exit)";
            return Err(value(&format!("{path}.stack"), "given", accepted));
        }
        let shares = [("reuse", arm.reuse), ("verify", arm.verify), ("verify_layers", arm.verify_layers)];
        let gate = arm.gate.map_or(0.0, |gate| gate.layers);
        let exit = arm.decode_exit.map_or(0.0, |exit| exit.rate);
        for (key, share) in shares.into_iter().chain([("gate.layers", gate), ("decode_exit.rate", exit)]) {
            if !(0.0..=1.0).contains(&share) {
                return Err(value(&format!("{path}.{key}"), &share.to_string(), "0 to 1"));
            }
        }
        let scheduler = arm.serve.scheduler;
        for (key, found, low, high) in [
            ("generated_tokens", arm.generated_tokens, 1, MOST_TOKENS),
            ("verify_tokens", arm.verify_tokens, 0, MOST_TOKENS),
            ("serve.scheduler.block_tokens", Some(scheduler.block_tokens), 1, u32::MAX),
            ("serve.scheduler.batch_tokens", scheduler.batch_tokens, 1, u32::MAX),
            ("serve.scheduler.batch_rows", scheduler.batch_rows, 1, u32::MAX),
            ("serve.scheduler.prefill_chunk", scheduler.prefill_chunk, 1, u32::MAX),
        ] {
            if let Some(found) = found.filter(|found| !(low..=high).contains(found)) {
                return Err(value(&format!("{path}.{key}"), &found.to_string(), &format!("{low} to {high}")));
            }
        }
        if let Some(cut) = arm.serve.eviction.filter(|cut| cut.budget == 0 || cut.period == 0) {
            let found = format!("budget {} and period {}", cut.budget, cut.period);
            return Err(value(&format!("{path}.serve.eviction"), &found, "1 or more of both"));
        }
    }
    let labels: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
    let known = |path: &str, label: &str| {
        if labels.contains(&label) {
            return Ok(());
        }
        Err(value(path, &format!("`{label}`"), &labels.join(", ")))
    };
    known("serve.baseline", &baseline)?;
    for (at, label) in against.iter().enumerate() {
        known("serve.against", label)?;
        if *label == baseline || against[..at].contains(label) {
            let accepted = "each arm once, and not the baseline, which speed-ups are over anyway";
            return Err(value("serve.against", &format!("`{label}`"), accepted));
        }
    }
    if is_recorded && !claims.is_empty() {
        let accepted = "none with `problems: recorded`: claims are audited without a trace";
        return Err(value("serve.claims", &format!("{} claims", claims.len()), accepted));
    }
    for (at, claim) in claims.iter().enumerate() {
        let path = format!("serve.claims[{at}]");
        for measure in claim.as_published.iter().chain(&claim.corrected) {
            match measure {
                Measure::Speedup { of, over } => {
                    known(&path, of)?;
                    known(&path, over)?;
                }
                Measure::PeakGib { arm } | Measure::Millis { arm } => known(&path, arm)?,
                Measure::Share { num, den } if num > den || *den == 0 => {
                    return Err(value(&path, &format!("{num} of {den}"), "a part of something"));
                }
                Measure::Share { .. } => {}
            }
        }
    }
    let study = ServeStudy {
        cost_id: cost.kind,
        cost_params: cost.params,
        problems,
        arrivals,
        baseline,
        against,
        arms,
        claims,
    };
    study.check_cost()?;
    Ok(study)
}

fn check_sizes(problems: &ProblemSizes) -> Result<(), ScenarioErrorKind> {
    for (path, found, low, high) in [
        ("serve.problems.count", problems.count, 1, 100_000),
        ("serve.problems.root_tokens", problems.root_tokens[0], 0, problems.root_tokens[1]),
        ("serve.problems.root_tokens", problems.root_tokens[1], 0, MOST_TOKENS),
        ("serve.problems.suffix_tokens", problems.suffix_tokens, 1, MOST_TOKENS),
        ("serve.problems.branches", problems.branches, 1, 4096),
        ("serve.problems.generated_tokens", problems.generated_tokens, 1, MOST_TOKENS),
        ("serve.problems.verify_tokens", problems.verify_tokens, 0, MOST_TOKENS),
    ] {
        if !(low..=high).contains(&found) {
            return Err(value(path, &found.to_string(), &format!("{low} to {high}")));
        }
    }
    Ok(())
}

/// What an arm decides about recorded problems follows from its stack alone, which must be one that can be built.
fn check_recorded(arm: &Arm, path: &str) -> Result<(), ScenarioErrorKind> {
    let share = |key: &'static str, found: f64, default: f64| {
        (found.to_bits() != default.to_bits()).then(|| (key, found.to_string()))
    };
    let tokens = |key: &'static str, found: Option<u32>| found.map(|found| (key, found.to_string()));
    let given = [
        share("reuse", arm.reuse, 0.0),
        arm.gate.map(|gate| ("gate", format!("{} of the layers", gate.layers))),
        share("verify", arm.verify, 1.0),
        tokens("verify_tokens", arm.verify_tokens),
        share("verify_layers", arm.verify_layers, 1.0),
        arm.decode_exit.map(|exit| ("decode_exit", format!("{} of the problems", exit.rate))),
        tokens("generated_tokens", arm.generated_tokens),
    ];
    if let Some((key, found)) = given.into_iter().flatten().next() {
        let accepted =
            "nothing with `problems: recorded`: what is decided about them follows from the arm's `stack`";
        return Err(value(&format!("{path}.{key}"), &found, accepted));
    }
    match TreeStack::build(&arm.parts()) {
        Ok(_) => Ok(()),
        Err(source) => {
            Err(ScenarioErrorKind::Policy { path: format!("{path}.stack (`{}`)", arm.label), source })
        }
    }
}
