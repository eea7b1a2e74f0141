//! Where a serving study has measured times from: the scenario itself, a file beside it, or the trace that it is run over.

use super::checked::value;
use super::{Scenario, ScenarioErrorKind, ServeStudy};
use crate::cost::{self, CostError, Measurement, TimesFrom};
use std::borrow::Cow;
use std::path::Path;

/// The cost model that is fitted to times.
const MEASURED: &str = "measured";

impl ServeStudy {
    fn times_from(&self) -> Result<TimesFrom, CostError> {
        if self.cost_id == MEASURED { cost::times_from(&self.cost_params) } else { Ok(TimesFrom::Scenario) }
    }

    /// Whether its cost model is fitted to times that the trace holds.
    #[must_use]
    pub fn takes_times_of_trace(&self) -> bool {
        self.times_from() == Ok(TimesFrom::Trace)
    }

    /// The study with the times that `read` gives, if it takes those of the trace. `layers` are the model's: a fit over recorded problems that
    /// was told none is made for them, wherever the times are from.
    pub(crate) fn timed<E: From<CostError>>(
        &self,
        layers: u16,
        read: impl FnOnce() -> Result<Vec<Measurement>, E>,
    ) -> Result<Cow<'_, Self>, E> {
        if self.cost_id != MEASURED || !(self.takes_times_of_trace() || self.is_recorded()) {
            return Ok(Cow::Borrowed(self));
        }
        let times = if self.takes_times_of_trace() { Some(read()?) } else { None };
        let mut study = self.clone();
        study.cost_params = cost::with_times(&study.cost_params, times.as_deref(), layers)?;
        Ok(Cow::Owned(study))
    }

    /// Checks the cost model as far as it can be without the file or the trace that has its times.
    pub(super) fn check_cost(&self) -> Result<(), ScenarioErrorKind> {
        let found = match self.times_from() {
            Ok(TimesFrom::Scenario) => self.cost().map(drop),
            Ok(TimesFrom::File(_) | TimesFrom::Trace) => Ok(()),
            Err(error) => Err(error),
        };
        found.map_err(|error| value("serve.cost", &error.to_string(), "a cost model and its parameters"))
    }
}

impl Scenario {
    /// Reads the file of times that the scenario names, relative to `folder`, its own.
    pub(super) fn read_times(&mut self, folder: &Path) -> Result<(), ScenarioErrorKind> {
        let Some(study) = &mut self.serve else { return Ok(()) };
        let Ok(TimesFrom::File(name)) = study.times_from() else { return Ok(()) };
        let path = folder.join(&name);
        let refuse = |found: &str| {
            value(
                "serve.cost.params.file",
                found,
                "a file with a measured time a line, as docs/trace-format.md has it",
            )
        };
        let text = std::fs::read_to_string(&path)
            .map_err(|error| refuse(&format!("`{}`: {error}", path.display())))?;
        let filled = cost::parse_times(&text, &path.display().to_string())
            .and_then(|times| cost::with_times(&study.cost_params, Some(&times), 0))
            .map_err(|error| refuse(&error.to_string()))?;
        study.cost_params = filled;
        study.check_cost()
    }
}
