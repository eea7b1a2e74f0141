//! The list of figures, sorted by id.

use crate::error::PlotsError;
use crate::figure::Figure;
use crate::figures::{
    ACCURACY_VS_BUDGET, EXIT_MAP, EntropyByLayer, EntropyMap, ExitLayerHistogram, ExitThreshold,
    FidelityCalibration, HeadCoverage, OUTPUT_ERROR_VS_BUDGET, Occupancy, PARETO_BYTES, PARETO_RECALL,
    PARETO_WORK, POOL_HIT_RATE, ProxyVsExecuted, PublishedClaims, RANGE_ERROR, RECALL_BY_STEP,
    RECALL_VS_BUDGET, RetainedMap, SERVE_LATENCY, SERVE_SPEEDUP, STEPS_EPSILON, STEPS_MARGIN, STEPS_TAU,
    STEPS_TAU_CONF, STEPS_THETA, SURVIVAL, SavedWork, SeedSpread, ServePhases, TAU_THETA_MAP,
    THETA_EPSILON_MAP, ValueRange, WordingSimilarity,
};

/// All figures, sorted by id.
pub const FIGURES: &[&dyn Figure] = &[
    &ACCURACY_VS_BUDGET,
    &EntropyByLayer,
    &EntropyMap,
    &ExitLayerHistogram,
    &EXIT_MAP,
    &ExitThreshold,
    &FidelityCalibration,
    &HeadCoverage,
    &Occupancy,
    &OUTPUT_ERROR_VS_BUDGET,
    &PARETO_BYTES,
    &PARETO_RECALL,
    &PARETO_WORK,
    &POOL_HIT_RATE,
    &ProxyVsExecuted,
    &PublishedClaims,
    &RANGE_ERROR,
    &RECALL_BY_STEP,
    &RECALL_VS_BUDGET,
    &RetainedMap,
    &SavedWork,
    &SeedSpread,
    &SERVE_LATENCY,
    &ServePhases,
    &SERVE_SPEEDUP,
    &STEPS_EPSILON,
    &STEPS_MARGIN,
    &STEPS_TAU,
    &STEPS_TAU_CONF,
    &STEPS_THETA,
    &SURVIVAL,
    &TAU_THETA_MAP,
    &THETA_EPSILON_MAP,
    &ValueRange,
    &WordingSimilarity,
];

/// The figure called `id`.
///
/// # Errors
/// When there is none; the error names those there are.
pub fn figure(id: &str) -> Result<&'static dyn Figure, PlotsError> {
    FIGURES.iter().find(|figure| figure.id() == id).copied().ok_or_else(|| PlotsError::UnknownFigure {
        given: id.to_owned(),
        known: FIGURES.iter().map(|figure| figure.id()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Need;
    use kvlab_sim::metrics::metric;

    #[test]
    fn ids_are_sorted_unique_and_kebab_case() {
        for pair in FIGURES.windows(2) {
            assert!(pair[0].id() < pair[1].id(), "{} before {}", pair[0].id(), pair[1].id());
        }
        assert!(FIGURES.iter().all(|f| f.id().chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }

    #[test]
    fn every_needed_series_is_a_registered_metric() {
        for figure in FIGURES {
            for need in figure.needs() {
                if let Need::Series(id) = need {
                    assert!(metric(id).is_some(), "{}: {need}", figure.id());
                }
            }
        }
    }

    #[test]
    fn an_unknown_figure_names_the_known_ones() {
        let error = figure("nope").err().unwrap().to_string();
        assert!(error.contains("nope") && error.contains("occupancy"), "{error}");
    }
}
