//! How far an estimate carries: proxies of a replay against what running the model gave, on the same problems.
//!
//! Input are [`Observations`]: for every cell (a policy under a budget and a seed) and every problem, what a proxy said and what was
//! executed. From them come a rank correlation with intervals ([`rank_agreement`]), a monotone curve from proxy to outcome
//! ([`Isotonic`]), its error on policies and on problems that it has not seen ([`cross_validated`]), and a [`Predictor`] that can
//! be kept and refuses to answer outside of what it was fitted on. Where numbers come from is nobody's business here; nothing
//! here knows a model or a clock.

mod apply;
mod calibration;
mod contenders;
mod crossval;
mod isotonic;
mod observed;
mod predictor;
mod rank;

pub use apply::predict_cells;
pub use calibration::calibration_rows;
pub use contenders::waves;
pub use crossval::{CrossValidation, cross_validated};
pub use isotonic::Isotonic;
pub use observed::{CellKey, Observations};
pub use predictor::{FitRow, PredictError, Prediction, Predictor};
pub use rank::{RankAgreement, kendall_tau_b, rank_agreement};
