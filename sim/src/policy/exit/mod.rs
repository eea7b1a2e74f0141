//! Exit policies: after which layer a pass may stop.

pub mod classifier;
pub mod entropy;
pub mod entropy_adaptive;
pub mod entropy_below;
mod facts;
pub mod fixed;
mod holes;
pub mod margin;
pub mod max_prob;
pub mod never;
pub mod patience;
pub mod saturation;
pub mod soft_patience;
pub mod two_way_margin;

pub use facts::{ExitView, LayerFacts, Lens, Unit};
pub use holes::HolePolicy;

use super::{PolicyError, PolicySpec};

/// Decides where a pass over the layers stops.
pub trait Exit: std::fmt::Debug + Send + Sync {
    /// Identity and capabilities.
    fn spec(&self) -> &'static PolicySpec;

    /// Layers run for one position: from 1 to `view.layers.len()`.
    fn layers_run(&self, view: &ExitView<'_>) -> u16;

    /// How often the unembedding is applied in a pass that ends after `layers_run` layers: once to read the verdict, and more often where the
    /// distribution is looked at on the way.
    fn heads(&self, _layers_run: u16) -> u16 {
        1
    }

    /// Which states the verdict is read from at the exit.
    fn lens(&self) -> Lens {
        Lens::FinalNorm
    }

    /// The effective parameters.
    fn params(&self) -> serde_json::Value;

    /// The entropy rule behind it, whose thresholds have exact step functions; nothing for every other rule.
    fn as_entropy(&self) -> Option<entropy::Params> {
        None
    }
}

/// Layers run when `qualifies` holds for the first time at a zero-based layer from `min_layer` on; all of them otherwise.
pub(crate) fn first_layer(layers: usize, min_layer: u16, qualifies: impl FnMut(usize) -> bool) -> u16 {
    let at = (usize::from(min_layer)..layers).find({
        let mut qualifies = qualifies;
        move |layer| qualifies(*layer)
    });
    u16::try_from(at.map_or(layers, |layer| layer + 1)).unwrap_or(u16::MAX)
}

/// Unembeddings of a pass that looks at the distribution after every layer from the zero-based `first` on.
pub(crate) fn probes(first: u16, layers_run: u16) -> u16 {
    layers_run.saturating_sub(first).max(1)
}

/// Refuses a parameter that is no number or outside `low..=high`.
pub(crate) fn check_range(
    kind: &'static str,
    param: &'static str,
    found: f64,
    (low, high): (f64, f64),
    accepted: &'static str,
) -> Result<(), PolicyError> {
    if found >= low && found <= high {
        return Ok(());
    }
    Err(PolicyError::OutOfRange { kind, param, found: found.to_string(), accepted })
}
