//! Branch facts that cannot be true together.

use super::{BranchStep, Confidences, Outcome, Prefix, Problem, VerdictLayer};
use crate::num;
use crate::trace::facts_schema::{BRANCH_OUTCOMES, BRANCH_STEPS, BRANCH_TOKENS, BRANCH_VERDICTS};
use crate::trace::reader::Trace;
use crate::trace::{TraceError, TraceSource};

/// Entropies in binary32 over a vocabulary.
const SLACK_NATS: f32 = 2e-3;

/// Checks all problems of a trace; gives the number of outcomes. The reader checks rows, keys, ranges and digests.
///
/// # Errors
/// At the first fact that another one rules out.
pub(crate) fn check(trace: &Trace) -> Result<u64, TraceError> {
    let mut outcomes = 0;
    for index in 0..trace.problems() {
        let problem = trace.problem(index)?;
        check_prompts(trace, index, &problem)?;
        for (at, branch) in problem.branches.iter().enumerate() {
            for prefix in Prefix::ALL {
                let Some(outcome) = branch.outcome(prefix) else { continue };
                outcomes += 1;
                let place = format!("problem {index}, branch {at}, {}", prefix.word());
                check_outcome(trace, &place, outcome, problem.expected_answer.is_some())?;
            }
        }
    }
    Ok(outcomes)
}

/// A branch that names a recorded sequence has that sequence's prompt.
fn check_prompts(trace: &Trace, index: u32, problem: &Problem) -> Result<(), TraceError> {
    for (at, branch) in problem.branches.iter().enumerate() {
        let Some(seq) = branch.seq else { continue };
        let prompt = trace.sequence(seq)?.prompt_len as usize;
        let tokens = trace.tokens(seq)?;
        if tokens.get(..prompt) != Some(&branch.tokens) {
            let path = trace.path().join(BRANCH_TOKENS);
            let found =
                format!("{} tokens that are not those of the prompt of sequence {seq}", branch.tokens.len());
            return Err(TraceError::malformed(
                &path,
                format!("problem {index}, branch {at}"),
                found,
                format!("its {prompt} tokens"),
            ));
        }
    }
    Ok(())
}

fn check_outcome(trace: &Trace, place: &str, outcome: &Outcome, is_gradable: bool) -> Result<(), TraceError> {
    let bad = |table: &str, what: String, found: String, accepted: &str| {
        Err(TraceError::malformed(&trace.path().join(table), format!("{place}: {what}"), found, accepted))
    };
    if outcome.correct.is_some() && !is_gradable {
        let found = format!("{:?}", outcome.correct);
        return bad(
            BRANCH_OUTCOMES,
            "correct".to_owned(),
            found,
            "nothing: the problem has no expected answer",
        );
    }
    if outcome.correct == Some(true) && outcome.answer.is_none() {
        return bad(
            BRANCH_OUTCOMES,
            "answer".to_owned(),
            "nothing".to_owned(),
            "an answer, since it is correct",
        );
    }
    let most = num::ln(f64::from(trace.shape().vocab));
    #[expect(clippy::cast_possible_truncation, reason = "compared with a slack")]
    let most = most as f32 + SLACK_NATS;
    for (at, step) in outcome.steps.iter().enumerate() {
        if let Some((what, found, accepted)) = step_fault(step, most) {
            return bad(BRANCH_STEPS, format!("step {at}: {what}"), found.to_string(), accepted);
        }
    }
    if !outcome.steps.is_empty() && Confidences::over(&outcome.steps) != outcome.confidences {
        let (found, expected) = (outcome.confidences, Confidences::over(&outcome.steps));
        return bad(
            BRANCH_OUTCOMES,
            "confidences".to_owned(),
            format!("{found:?}"),
            &format!("{expected:?}"),
        );
    }
    for (layer, facts) in outcome.verdict.iter().flat_map(|verdict| &verdict.layers).enumerate() {
        if let Some((what, found, accepted)) = layer_fault(facts, most) {
            return bad(BRANCH_VERDICTS, format!("layer {layer}: {what}"), found.to_string(), accepted);
        }
    }
    Ok(())
}

type Fault = (&'static str, f32, &'static str);

fn step_fault(step: &BranchStep, most: f32) -> Option<Fault> {
    if step.prob > step.top1_prob {
        return Some(("prob", step.prob, "at most top1_prob"));
    }
    if step.entropy_nats > most {
        return Some(("entropy_nats", step.entropy_nats, "at most ln vocab"));
    }
    entropy_fault(step.entropy_nats, step.top1_prob)
}

fn layer_fault(layer: &VerdictLayer, most: f32) -> Option<Fault> {
    if layer.entropy_nats > most {
        return Some(("entropy_nats", layer.entropy_nats, "at most ln vocab"));
    }
    if layer.raw_entropy_nats > most {
        return Some(("raw_entropy_nats", layer.raw_entropy_nats, "at most ln vocab"));
    }
    if layer.top2_prob > layer.top1_prob {
        return Some(("top2_prob", layer.top2_prob, "at most top1_prob"));
    }
    if layer.top1_prob + layer.top2_prob > 1.0 + 1e-3 {
        return Some(("top2_prob", layer.top2_prob, "at most 1 - top1_prob"));
    }
    if layer.js_previous_nats > std::f32::consts::LN_2 + SLACK_NATS {
        return Some(("js_previous_nats", layer.js_previous_nats, "at most ln 2"));
    }
    entropy_fault(layer.entropy_nats, layer.top1_prob)
}

/// No token has more than the largest probability, so the entropy is at least that surprise; the slack grows with it.
fn entropy_fault(entropy: f32, top1: f32) -> Option<Fault> {
    #[expect(clippy::cast_possible_truncation, reason = "compared with a slack")]
    let surprise = -num::ln(f64::from(top1.clamp(f32::MIN_POSITIVE, 1.0))) as f32;
    let slack = SLACK_NATS + 1e-3 * surprise + 1e-3;
    (entropy + slack < surprise).then_some(("entropy_nats", entropy, "at least -ln top1_prob"))
}
