//! `--check`: results against what their scenario expects.

use crate::exit::{CliError, Done};
use crate::output::news;
use kvlab_sim::results::{Results, Verdict, verdicts};
use kvlab_sim::scenario::Scenario;
use std::path::Path;

/// Refuses a check where nothing is expected: that nothing was found wrong would say nothing. `path` is where the scenario stands.
pub(crate) fn refuse_without_claims(scenario: &Scenario, path: &Path) -> Result<(), CliError> {
    if scenario.expect.is_empty() {
        let reason = "--check: the scenario has no `expect`; scenarios/reference.yaml shows how to write it"
            .to_owned();
        return Err(CliError::Invalid { path: path.to_owned(), reason });
    }
    Ok(())
}

/// Tells what became of each expectation; `done` where all are met.
pub(crate) fn against(scenario: &Scenario, results: &Results, done: Done) -> Done {
    let verdicts = verdicts(&scenario.expect, &results.cells);
    for (expectation, verdict) in scenario.expect.iter().zip(&verdicts) {
        news(&format!("expect: {expectation}: {}", verdict.words()));
    }
    let count =
        |is_wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| is_wanted(verdict)).count();
    let (met, missed) =
        (count(|verdict| matches!(verdict, Verdict::Met { .. })), count(|verdict| !verdict.is_fine()));
    news(&format!("{met} of {} expectations are met, {missed} are not", verdicts.len()));
    // A check that asked nothing has found nothing out.
    if missed > 0 || met == 0 { Done::CheckFailed } else { done }
}
