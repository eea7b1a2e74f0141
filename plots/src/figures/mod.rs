//! The figures, one a file. What several of them share is a noun of its own beside them.

mod accuracy_vs_budget;
mod behind;
mod budget_curve;
mod entropy_by_layer;
mod exit_cells;
mod exit_layer_histogram;
mod exit_threshold;
mod length_curve;
mod occupancy;
mod output_error_vs_budget;
mod recall_by_step;
mod recall_vs_budget;
mod value_range;

pub(crate) use accuracy_vs_budget::ACCURACY_VS_BUDGET;
pub(crate) use entropy_by_layer::EntropyByLayer;
pub(crate) use exit_cells::{ExitCell, exit_cells};
pub(crate) use exit_layer_histogram::ExitLayerHistogram;
pub(crate) use exit_threshold::ExitThreshold;
pub(crate) use occupancy::Occupancy;
pub(crate) use output_error_vs_budget::OUTPUT_ERROR_VS_BUDGET;
pub(crate) use recall_by_step::RecallByStep;
pub(crate) use recall_vs_budget::RECALL_VS_BUDGET;
pub(crate) use value_range::ValueRange;
