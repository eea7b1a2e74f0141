//! What a figure is: a question, the columns it needs, and a drawing made from result tables alone.

use crate::error::PlotsError;
use crate::scene::{self, Frame, Scene};
use crate::select::{Reader, caption};
use kvlab_sim::results::Results;
use kvlab_sim::table::Table;

/// A figure. Each is one file in `figures` and one line in `registry`.
pub trait Figure: Sync {
    /// Its name in files and on the command line, kebab-case.
    fn id(&self) -> &'static str;

    /// Its heading.
    fn title(&self) -> &'static str;

    /// The question that it answers, as a full sentence.
    fn question(&self) -> &'static str;

    /// Where the report shows it.
    fn place(&self) -> Place;

    /// What must be in the tables; all of it.
    fn needs(&self) -> &'static [Need];

    /// The metrics it shows; those it needs, unless it says otherwise.
    fn metrics(&self) -> Vec<&'static str> {
        let named = |need: &Need| match need {
            Need::CellColumn(name) | Need::Series(name) => Some(*name),
            Need::Rows(_) => None,
        };
        self.needs().iter().filter_map(named).collect()
    }

    /// Draws, or says why there is nothing to draw.
    ///
    /// # Errors
    /// When the table behind the figure cannot be built: that is a fault of this crate.
    fn draw(&self, results: &Results) -> Result<Outcome, PlotsError>;
}

/// A part of the report, and the position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The part.
    pub section: Section,
    /// Smaller comes first.
    pub rank: u8,
}

/// The parts of the report that hold figures, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// What eviction policies keep and lose.
    Eviction,
    /// What sharing, skipped verification and early exits do to branch trees.
    Trees,
    /// What early exit skips.
    Exit,
    /// What caches of blocks and schedulers do to a stream of requests.
    Serving,
    /// What was recorded, before any policy.
    Recording,
}

impl Section {
    /// All sections, in order.
    pub const ALL: [Self; 5] = [Self::Eviction, Self::Trees, Self::Exit, Self::Serving, Self::Recording];

    /// Its heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Eviction => "Evicting KV entries",
            Self::Trees => "Sharing and verifying branches",
            Self::Exit => "Leaving layers early",
            Self::Serving => "Serving many requests",
            Self::Recording => "The recording itself",
        }
    }
}

/// Something that must be in the tables before a figure can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A column of `cells` with at least one value.
    CellColumn(&'static str),
    /// A metric with at least one row in `series`.
    Series(&'static str),
    /// A table that only some studies have, with at least one row.
    Rows(&'static str),
}

impl Need {
    /// Whether the tables have it.
    #[must_use]
    pub fn is_met(self, results: &Results) -> bool {
        match self {
            Self::CellColumn(name) => Reader::new(&results.cells, name).has_any(),
            Self::Series(metric) => {
                let column = Reader::new(&results.series, "metric");
                (0..results.series.rows()).any(|row| column.text(row) == Some(metric))
            }
            Self::Rows(table) => results.more(table).is_some_and(|table| table.rows() > 0),
        }
    }
}

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CellColumn(name) => write!(f, "column `{name}` of `cells`"),
            Self::Series(metric) => write!(f, "metric `{metric}` in `series`"),
            Self::Rows(table) => write!(f, "table `{table}`"),
        }
    }
}

/// The needs of `figure` that `results` does not meet.
#[must_use]
pub fn missing(figure: &dyn Figure, results: &Results) -> Vec<Need> {
    figure.needs().iter().copied().filter(|need| !need.is_met(results)).collect()
}

/// The evidence words of what `figure` shows: `decision`, `proxy`, `executed`, `recorded`.
#[must_use]
pub fn evidence(figure: &dyn Figure) -> Vec<&'static str> {
    caption::evidence(&figure.metrics())
}

/// A drawing, or the reason why there is none.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was drawn.
    Drawn(Box<Drawing>),
    /// There was nothing to draw; why, as a sentence.
    Nothing(String),
}

impl Outcome {
    pub(crate) fn nothing(reason: impl Into<String>) -> Self {
        Self::Nothing(reason.into())
    }
}

/// A finished figure: a picture at any width and the table behind it.
#[derive(Clone, Debug)]
pub struct Drawing {
    pub(crate) figure: &'static str,
    pub(crate) scene: Scene,
    /// Every number that the picture shows.
    pub data: Table,
    /// What the picture shows, in words.
    pub alt: String,
}

impl Drawing {
    /// The picture as an SVG file of its own, with title and caption.
    ///
    /// # Errors
    /// When the drawing backend fails.
    pub fn svg(&self) -> Result<String, PlotsError> {
        self.framed(Frame::PAGE)
    }

    /// The lines below the picture: evidence, number of sequences, what bands are.
    #[must_use]
    pub fn caption(&self) -> &[String] {
        &self.scene.caption
    }

    pub(crate) fn framed(&self, frame: Frame) -> Result<String, PlotsError> {
        scene::render(&self.scene, frame, &self.alt)
            .map_err(|error| PlotsError::Backend { figure: self.figure, detail: error.to_string() })
    }
}
