//! `serve-latency`: simulated time a problem takes.

use super::arm_bars::ArmBars;
use crate::figure::{Need, Place, Section};

/// The figure.
pub(crate) const SERVE_LATENCY: ArmBars = ArmBars {
    id: "serve-latency",
    title: "Simulated time a problem takes",
    question: "Which arm answers a problem first?",
    place: Place { section: Section::Serving, rank: 2 },
    metric: "serve_latency_ms",
    needs: &[Need::CellColumn("serve_latency_ms")],
    even: None,
};
