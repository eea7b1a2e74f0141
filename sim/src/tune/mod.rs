//! Which setting to ship: the best objective among settings whose constraints hold on problems to come, with a stated probability of being wrong.
//!
//! Learn-then-test (Angelopoulos et al. 2021, arXiv 2110.01052) with the path of Pareto testing (Laufer-Goldshtein et al. 2023,
//! arXiv 2210.07913): problems are split by a hash of their ids; settings and their order come from the search problems, a valid
//! p-value of "a constraint does not hold" from the calibration problems, and gains from test problems that nothing was chosen on.
//! What the guarantee rests on is said in `docs/methodology.md`.
//!
//! [`tune`] does all of it. [`choose`](choose()) is the procedure alone, over anything that is [`Measured`].

mod choose;
mod error;
mod eviction;
mod family;
mod measured;
mod piece;
mod report;
mod split;
mod study;
pub mod tail;
mod trees;
mod values;
mod whole_loss;
mod yaml;

pub use choose::{Choice, Goal, Tested, choose, sums};
pub use error::TuneError;
pub use family::Method;
pub use measured::{Kind, Loss, Measured, Sums, Term, Test};
pub use report::{
    Chosen, Dropped, Held, Measurement, Neighbour, Parts, PathRow, Searched, SearchedAxis, Setting,
    Shortfall, Transfer, TuneReport, Unguarded, Unrun,
};
pub use split::{Part, Shares, Split};

use crate::run::RunError;
use crate::scenario::{Scenario, TuneSpec, TunedStudy};
use crate::trace::TraceSource;

/// Chooses a setting of `scenario` as `spec` wants it, and measures it on `transfer` too. Nothing depends on the number of threads (0: one a core).
///
/// That no setting can be certified is no error: the report then has none, and says what is missing.
///
/// # Errors
/// When the scenario has no study to choose for, its problems are too few to be split, or the trace lacks what they need.
pub fn tune(
    scenario: &Scenario,
    spec: &TuneSpec,
    source: &dyn TraceSource,
    transfer: Option<&dyn TraceSource>,
    threads: usize,
) -> Result<TuneReport, TuneError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| RunError::Threads { threads, detail: error.to_string() })?;
    pool.install(|| match (spec.study, &scenario.trees, &scenario.eviction) {
        (Some(TunedStudy::Trees) | None, Some(study), None) | (Some(TunedStudy::Trees), Some(study), _) => {
            trees::tune(study, scenario, spec, source, transfer)
        }
        (Some(TunedStudy::Eviction) | None, None, Some(study))
        | (Some(TunedStudy::Eviction), _, Some(study)) => {
            eviction::tune(study, scenario, spec, source, transfer)
        }
        (wanted, trees, eviction) => {
            let has = |name: &str, is_there: bool| is_there.then(|| name.to_owned());
            let there = [has("trees", trees.is_some()), has("eviction", eviction.is_some())];
            let there: Vec<String> = there.into_iter().flatten().collect();
            let found = match wanted {
                Some(study) => format!("{}, which the scenario does not have", study.word()),
                None if there.is_empty() => "no study to choose for".to_owned(),
                None => format!("not given, and the scenario has {}", there.join(" and ")),
            };
            Err(TuneError::Study {
                found,
                accepted: "a `trees` or `eviction` study of the scenario".to_owned(),
            })
        }
    })
}
