//! Every stack that the registry can make: what is registered is checked, nothing is listed by hand.

use super::Subject;
use crate::policy::compose::{Granularity, Part, Stack, StackSpec};
use crate::policy::{RawParams, registry};

/// All compositions, every score × reserve × select, every budget and schedule under some scorers, and every attend × store
/// over one that evicts.
#[must_use]
pub fn subjects() -> Vec<Subject<'static>> {
    let mut subjects = Vec::new();
    for entry in registry::COMPOSITIONS {
        subjects.push(Subject::new(entry.spec.id, |knobs| entry.stack(knobs, &RawParams::default())));
    }
    for score in registry::SCORES {
        for reserve in registry::RESERVES {
            for select in registry::SELECTS {
                let name = format!("{} + {} + {}", score.spec.id, reserve.spec.id, select.spec.id);
                let label = name.clone();
                subjects.push(Subject::new(name, move |knobs| {
                    let spec = StackSpec::periodic(&label, *knobs, Part::plain(score.spec.id))?;
                    let (reserve, select) = (Part::plain(reserve.spec.id), Part::plain(select.spec.id));
                    Stack::checked(StackSpec { reserve, select, ..spec })
                }));
            }
        }
    }
    for score in ["window-mass", "random", "accumulated-attention", "last-attention"] {
        for budget in registry::BUDGETS {
            for schedule in registry::SCHEDULES {
                let name = format!("{score} + {} + {}", budget.spec.id, schedule.spec.id);
                let label = name.clone();
                subjects.push(Subject::new(name, move |knobs| {
                    let spec = StackSpec::periodic(&label, *knobs, Part::plain(score))?;
                    let params = match schedule.spec.id {
                        "every-n" => spec.schedule.params.clone(),
                        "decode-interval" => {
                            RawParams::from_params(&serde_json::json!({ "interval": knobs.period }))?
                        }
                        _ => RawParams::default(),
                    };
                    let schedule = Part { kind: schedule.spec.id.to_owned(), params };
                    Stack::checked(StackSpec { budget: Part::plain(budget.spec.id), schedule, ..spec })
                }));
            }
        }
    }
    for score in ["window-mass", "random", "last-attention", "accumulated-attention"] {
        for (word, granularity) in [
            ("token-layer", Granularity::TokenLayer),
            ("block:2", Granularity::Block(2)),
            ("block:3", Granularity::Block(3)),
        ] {
            for select in registry::SELECTS {
                let name = format!("{score} + {word} + {} together", select.spec.id);
                let label = name.clone();
                subjects.push(Subject::new(name, move |knobs| {
                    let spec = StackSpec::periodic(&label, *knobs, Part::plain(score))?;
                    let select = Part::plain(select.spec.id);
                    Stack::checked(StackSpec { granularity, select, ..spec })
                }));
            }
        }
    }
    for attend in registry::ATTENDS {
        for store in registry::STORES {
            let name = format!("window-mass + {} + {}", attend.spec.id, store.spec.id);
            let label = name.clone();
            subjects.push(Subject::new(name, move |knobs| {
                let spec = StackSpec::periodic(&label, *knobs, Part::plain("window-mass"))?;
                let (attend, store) = (Part::plain(attend.spec.id), Part::plain(store.spec.id));
                Stack::checked(StackSpec { attend, store, ..spec })
            }));
        }
    }
    subjects
}
