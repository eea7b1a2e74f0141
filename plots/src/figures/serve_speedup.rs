//! `serve-speedup`: simulated speed-up over the baseline.

use super::arm_bars::ArmBars;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const SERVE_SPEEDUP: ArmBars = ArmBars {
    id: "serve-speedup",
    title: "Simulated speed-up over the baseline",
    question: "How much faster is an arm, and is that more than chance?",
    place: Place { section: Section::Serving, rank: 3 },
    metric: "serve_speedup",
    needs: &[Need::CellColumn("serve_speedup")],
    even: Some(1.0),
};
