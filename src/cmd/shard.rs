//! Which shard of a study this process is: from the flag, or from what batch engines put into the environment.

use crate::exit::CliError;
use crate::output::news;
use kvlab_sim::run::Shard;

/// `i/n`, the first shard being 1.
pub(crate) fn given(text: &str) -> Result<Shard, String> {
    let numbers = text
        .split_once('/')
        .and_then(|(index, count)| Some((index.parse::<u32>().ok()?, count.parse::<u32>().ok()?)));
    match numbers {
        Some((index, count)) if (1..=count).contains(&index) => Ok(Shard { index: index - 1, count }),
        _ => Err("expected i/n with i from 1 to n, e.g. 3/7".to_owned()),
    }
}

/// The shard that the flag or the environment says, and says on standard error which one was taken.
pub(crate) fn chosen(flag: Option<Shard>) -> Result<Shard, CliError> {
    if let Some(shard) = flag {
        return Ok(shard);
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match of_environment(&variable).map_err(|reason| CliError::Invalid { path: "--shard".into(), reason })? {
        Found::Shard(shard, because) => {
            news(&format!("shard {shard}, from {because} (--shard 1/1 runs all of it)"));
            Ok(shard)
        }
        Found::Whole(note) => {
            note.iter().for_each(|note| news(&format!("note: {note}")));
            Ok(Shard::WHOLE)
        }
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    Shard(Shard, String),
    /// Nothing says that there are shards; with what looks like it.
    Whole(Option<String>),
}

/// A Slurm array first, then a Kubernetes Indexed Job, then plain variables.
fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Found, String> {
    let number = |name: &str| -> Result<Option<u32>, String> {
        let Some(text) = variable(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{name} is `{text}`, no whole number"))
    };
    let shard = |index: u32, count: u32, because: String| {
        if index < count {
            return Ok(Found::Shard(Shard { index, count }, because));
        }
        Err(format!("{because} says shard {} of {count}: say --shard i/n", u64::from(index) + 1))
    };
    if let Some(task) = number("SLURM_ARRAY_TASK_ID")? {
        let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
        let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
        let Some(count) = number("SLURM_ARRAY_TASK_COUNT")? else {
            return Err(
                "SLURM_ARRAY_TASK_ID is set and SLURM_ARRAY_TASK_COUNT is not: say --shard i/n".to_owned()
            );
        };
        let because = format!("SLURM_ARRAY_TASK_ID {task} of {count}");
        let offset = task.checked_sub(first).filter(|offset| offset.is_multiple_of(step));
        let Some(offset) = offset else {
            return Err(format!("{because} is no step of {step} from {first}: say --shard i/n"));
        };
        return shard(offset / step, count, because);
    }
    let count = number("KVLAB_SHARDS")?;
    if let Some(index) = number("JOB_COMPLETION_INDEX")? {
        return match count {
            Some(count) => {
                shard(index, count, format!("JOB_COMPLETION_INDEX {index} and KVLAB_SHARDS {count}"))
            }
            None => Ok(Found::Whole(Some(
                "JOB_COMPLETION_INDEX is set and KVLAB_SHARDS is not: all cells run here".to_owned(),
            ))),
        };
    }
    match (number("KVLAB_SHARD")?, count) {
        (Some(index), Some(count)) if index > 0 => {
            shard(index - 1, count, format!("KVLAB_SHARD {index} and KVLAB_SHARDS {count}"))
        }
        (Some(index), Some(count)) => Err(format!("KVLAB_SHARD is {index}; accepted: 1 to {count}")),
        (Some(_), None) => Err("KVLAB_SHARD is set and KVLAB_SHARDS is not".to_owned()),
        (None, Some(_)) => Err("KVLAB_SHARDS is set, and nothing says which shard this is".to_owned()),
        (None, None) => Ok(Found::Whole(None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Found, String> {
        of_environment(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn shard(variables: &[(&str, &str)]) -> Option<(u32, u32)> {
        match found(variables) {
            Ok(Found::Shard(shard, _)) => Some((shard.index, shard.count)),
            _ => None,
        }
    }

    #[test]
    fn batch_engines_are_asked_in_their_order() {
        let slurm = |task, min, count| {
            [("SLURM_ARRAY_TASK_ID", task), ("SLURM_ARRAY_TASK_MIN", min), ("SLURM_ARRAY_TASK_COUNT", count)]
        };
        assert_eq!(shard(&slurm("0", "0", "7")), Some((0, 7)));
        assert_eq!(shard(&slurm("7", "1", "7")), Some((6, 7)));
        let stepped = [&slurm("6", "2", "3")[..], &[("SLURM_ARRAY_TASK_STEP", "2")]].concat();
        assert_eq!(shard(&stepped), Some((2, 3)));
        // A list of task numbers is no range.
        assert!(found(&slurm("5", "3", "2")).unwrap_err().contains("say --shard i/n"));
        assert!(found(&slurm("x", "0", "2")).unwrap_err().contains("SLURM_ARRAY_TASK_ID is `x`"));
        let kubernetes = [("JOB_COMPLETION_INDEX", "2"), ("KVLAB_SHARDS", "4")];
        assert_eq!(shard(&kubernetes), Some((2, 4)));
        assert_eq!(shard(&[&kubernetes[..], &slurm("1", "1", "9")].concat()), Some((0, 9)));
        assert_eq!(shard(&[("KVLAB_SHARD", "4"), ("KVLAB_SHARDS", "4")]), Some((3, 4)));
        assert!(found(&[("KVLAB_SHARD", "5"), ("KVLAB_SHARDS", "4")]).is_err());
        assert!(found(&[("KVLAB_SHARD", "0"), ("KVLAB_SHARDS", "4")]).is_err());
        assert!(found(&[("KVLAB_SHARD", "1")]).is_err() && found(&[("KVLAB_SHARDS", "1")]).is_err());
        assert!(matches!(found(&[("JOB_COMPLETION_INDEX", "1")]), Ok(Found::Whole(Some(_)))));
        assert_eq!(found(&[]), Ok(Found::Whole(None)));
    }

    #[test]
    fn shards_are_numbered_from_one_and_checked() {
        assert_eq!(given("3/7"), Ok(Shard { index: 2, count: 7 }));
        for wrong in ["0/7", "8/7", "1", "a/b", "1/0", "-1/2"] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }
}
