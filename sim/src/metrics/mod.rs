//! Every number that a result table may hold: its name, unit, direction and meaning, declared once.
//!
//! Columns, `kvlab list metrics` and axis labels come from here. The code that fills a metric is elsewhere;
//! a metric that nobody fills is caught by a test.

mod registry;

pub use registry::METRICS;

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Higher is better.
    Higher,
    /// Lower is better.
    Lower,
    /// Neither: it describes.
    Neither,
}

/// How a number came about. The three are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Exact in replay: it follows from recorded values and the policy alone.
    Decision,
    /// An estimate of quality, computed in replay from recorded tensors.
    Proxy,
    /// Measured by running the model with the policy in the loop.
    Executed,
    /// A property of the recording itself, before any policy.
    Recorded,
}

impl Evidence {
    /// The word used in tables and plots.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Decision => "decision",
            Self::Proxy => "proxy",
            Self::Executed => "executed",
            Self::Recorded => "recorded",
        }
    }
}

/// Where a metric is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One value a cell: the column `id` of `cells`. A rate adds `id_num` and `id_den`.
    Cell,
    /// A cell value that is a mean over recorded sequences, with a bootstrap interval and its standard error: columns `id`, `id_lo`,
    /// `id_hi`, `id_se`, `id_n`.
    CellMean,
    /// A rate: columns `id`, `id_num`, `id_den`, and the bootstrap interval by sequence with its standard error `id_lo`, `id_hi`,
    /// `id_se`.
    CellRate,
    /// A mean of paired differences to a baseline on the same items: the columns of a mean over `id_n` items, and the two-sided p-value
    /// `id_p` of no difference.
    CellPaired,
    /// Rows of `series`, with `x` on the axis named here.
    Series {
        /// What `x` is, with its unit.
        x: &'static str,
    },
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in tables: `snake_case`, the unit at the end where there is one.
    pub id: &'static str,
    /// Its axis label.
    pub label: &'static str,
    /// Its unit; empty for pure numbers.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
    /// How it came about.
    pub evidence: Evidence,
    /// Where it is stored.
    pub scope: Scope,
    /// What it says; for a rate, numerator and denominator.
    pub doc: &'static str,
}

/// The metric called `id`.
#[must_use]
pub fn metric(id: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.id == id)
}
