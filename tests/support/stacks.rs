//! Every stack that the registry can make: all compositions, and every score × reserve × select.

use kvlab_sim::policy::compose::{Knobs, Part, Stack, StackSpec};
use kvlab_sim::policy::{PolicyError, RawParams, registry};
use proptest::prelude::*;

/// Builds a stack under given amounts.
type Build = Box<dyn Fn(&Knobs) -> Result<Stack, PolicyError>>;

/// All stacks, with a name for messages. What is registered is tested: nothing is listed by hand.
pub(crate) fn all() -> Vec<(String, Build)> {
    let mut stacks: Vec<(String, Build)> = Vec::new();
    for entry in registry::COMPOSITIONS {
        stacks.push((entry.spec.id.to_owned(), Box::new(|knobs| entry.stack(knobs, &RawParams::default()))));
    }
    for score in registry::SCORES {
        for reserve in registry::RESERVES {
            for select in registry::SELECTS {
                let name = format!("{} + {} + {}", score.spec.id, reserve.spec.id, select.spec.id);
                let label = name.clone();
                let build = move |knobs: &Knobs| {
                    let spec = StackSpec::periodic(&label, *knobs, Part::plain(score.spec.id))?;
                    let (reserve, select) = (Part::plain(reserve.spec.id), Part::plain(select.spec.id));
                    Stack::checked(StackSpec { reserve, select, ..spec })
                };
                stacks.push((name, Box::new(build)));
            }
        }
    }
    stacks
}

/// Amounts that fit together for every stack: the budget is a multiple of the period, and a quarter of it holds the sinks.
pub(crate) fn knobs() -> impl Strategy<Value = Knobs> {
    (1u32..7, 1u32..5, 0u32..3, 1u32..9).prop_filter_map(
        "the budget must hold what is kept",
        |(recent, multiple, sinks, window)| {
            let capacity = recent * (multiple + 1);
            let reserved = capacity / 4;
            let chosen = sinks.max(reserved).max(1);
            let fits = recent + chosen <= capacity && (reserved == 0 || reserved >= sinks);
            fits.then_some(Knobs { capacity, recent, sinks, period: recent, window })
        },
    )
}
