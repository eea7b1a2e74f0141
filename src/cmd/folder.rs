//! Folders that verbs write results into: no verb replaces what another one made.

use super::study;
use crate::exit::CliError;
use kvlab_executor::{ExecutorError, Journal};
use kvlab_sim::results;
use std::path::Path;

/// The verb in a command line.
fn verb(command: &str) -> &str {
    command.split(' ').nth(1).unwrap_or_default()
}

/// Whether results of the verb `old` may be replaced by those of `new`: `merge` makes the tables of a sweep.
fn may_replace(old: &str, new: &str) -> bool {
    let of_sweep = |verb| matches!(verb, "sweep" | "merge");
    old == new || (of_sweep(old) && of_sweep(new))
}

/// As [`check`], for executed results, which take hours: those of another scenario are not replaced either. `is_fresh` throws an unfinished
/// execution away.
pub(crate) fn check_scenario(folder: &Path, scenario: &str, is_fresh: bool) -> Result<(), CliError> {
    check(folder)?;
    let refused = |of: &str, remedy: &str| {
        let reason = format!(
            "this folder holds {of}, which those of `{scenario}` do not replace: choose another folder, or {remedy}"
        );
        Err(CliError::Invalid { path: folder.to_owned(), reason })
    };
    // What is not to be read was refused.
    if let Ok(Some(there)) = results::scenario_in(folder)
        && there != scenario
    {
        return refused(&format!("results of the scenario `{there}`"), "remove this one first");
    }
    match Journal::standing(folder).map_err(ExecutorError::from) {
        Ok(Some(begun)) if begun.scenario != scenario && !is_fresh => refused(
            &format!(
                "finished runs of an interrupted `kvlab {}` of the scenario `{}`",
                begun.verb, begun.scenario
            ),
            "give --fresh to throw them away",
        ),
        // Whoever opens the journal says what is wrong with it.
        _ => Ok(()),
    }
}

/// Refuses a place for results of the verb that runs, before anything is run: a file, a trace, or what another verb made.
pub(crate) fn check(folder: &Path) -> Result<(), CliError> {
    let refused = |reason: String| Err(CliError::Invalid { path: folder.to_owned(), reason });
    if folder.exists() && !folder.is_dir() {
        return refused("results need a folder, and this is a file".to_owned());
    }
    // The nearest that is there decides whether the folder can be made.
    let above = folder.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    if let Some(file) = above.into_iter().find(|above| above.exists()).filter(|above| !above.is_dir()) {
        return refused(format!("results need a folder, and {} is a file", file.display()));
    }
    if folder.join("manifest.json").exists() {
        return refused("this folder holds a trace; results need one of their own".to_owned());
    }
    let command = study::command_line();
    let new = verb(&command);
    let Ok(there) = results::command_in(folder) else {
        return refused("its results.json is none of kvlab's: choose another folder".to_owned());
    };
    // What cannot be read is told by whoever goes on from it.
    let begun = Journal::standing(folder).ok().flatten().map(|begun| begun.verb);
    let old = match &there {
        Some(command) => verb(command),
        None if begun.is_some() => begun.as_deref().unwrap_or_default(),
        // A sweep goes on from its parts, whether or not there are tables yet.
        None if folder.join("plan.json").exists() => "sweep",
        None if folder.join("tune.json").exists() => "tune",
        None => {
            let tables = results::tables_in(folder);
            if tables.is_empty() {
                return Ok(());
            }
            return refused(format!(
                "this folder holds {}, and no results.json that says whose they are: choose another folder, or remove them first",
                tables.join(", ")
            ));
        }
    };
    if may_replace(old, new) {
        return Ok(());
    }
    refused(format!(
        "this folder holds results of `kvlab {old}`, which `kvlab {new}` does not replace: choose another folder, or remove this one first"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_replaces_its_own_results_and_a_merge_those_of_its_sweep() {
        assert_eq!((verb("kvlab exec study.yaml --model chain"), verb("kvlab")), ("exec", ""));
        for (old, new, expected) in [
            ("exec", "exec", true),
            ("sweep", "merge", true),
            ("merge", "sweep", true),
            ("exec", "sweep", false),
            ("sweep", "exec", false),
            ("replay", "sweep", false),
            ("fidelity", "exec", false),
            ("", "replay", false),
        ] {
            assert_eq!(may_replace(old, new), expected, "{old}, then {new}");
        }
    }
}
