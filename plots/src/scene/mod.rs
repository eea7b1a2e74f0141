//! A figure as a description: panels, marks, legend. What it looks like on paper is decided by `layout` and `paint`.
//!
//! A scene is drawn at more than one width (page, report, phone), so nothing here knows pixels.

mod axis;
mod compact;
mod glyph;
mod layout;
mod mesh;
mod paint;
mod polyline;
mod text;

pub(crate) use axis::{Axis, Extent, TickRule};
pub(crate) use paint::render;
pub(crate) use text::{clean, clipped};

use crate::theme::{Ink, Marker, Stroke};

/// What a figure shows.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    /// Heading of the whole figure.
    pub(crate) title: String,
    /// Panels in reading order.
    pub(crate) panels: Vec<Panel>,
    /// How many panels stand side by side on a wide page.
    pub(crate) columns: usize,
    /// Whether panels of a column share the x axis, so that only the lowest shows its labels.
    pub(crate) share_x: bool,
    /// What the marks mean.
    pub(crate) legend: Vec<Key>,
    /// Lines below the figure: evidence, number of sequences, bands, watermark.
    pub(crate) caption: Vec<String>,
    /// Whether the data were generated and not recorded.
    pub(crate) synthetic: bool,
}

/// One coordinate system with its marks.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// Heading; empty for none.
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Drawn in this order, later ones on top.
    pub(crate) marks: Vec<Mark>,
}

/// Something drawn in data coordinates.
#[derive(Clone, Debug)]
pub(crate) enum Mark {
    /// A line through the points, in order of x.
    Line { points: Vec<(f64, f64)>, stroke: Stroke },
    /// A surface between lo and hi: `(x, lo, hi)` in order of x.
    Band { points: Vec<(f64, f64, f64)>, ink: Ink },
    /// A symbol at each point.
    Symbols { points: Vec<(f64, f64)>, marker: Marker, ink: Ink },
    /// A thin vertical bar from lo to hi at each x.
    Whiskers { points: Vec<(f64, f64, f64)>, ink: Ink },
    /// Filled bars from the foot of the panel: `(left, right, height)`.
    Bars { bars: Vec<(f64, f64, f64)>, ink: Ink },
    /// A line over the whole width.
    Across { y: f64, stroke: Stroke },
    /// A line over the whole height.
    Upright { x: f64, stroke: Stroke },
    /// A hatched strip over the whole height.
    Hatched { from: f64, to: f64 },
    /// Filled rectangles.
    Boxes { boxes: Vec<Span>, ink: Ink },
    /// Hatched rectangles over what lies below them.
    HatchedBoxes(Vec<Span>),
    /// A thin level bar from lo to hi at each y: `(y, lo, hi)`.
    Spans { points: Vec<(f64, f64, f64)>, ink: Ink },
    /// Words at points.
    Words { words: Vec<(f64, f64, String)>, ink: Ink, side: Side },
}

/// A rectangle in data coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) x: (f64, f64),
    pub(crate) y: (f64, f64),
}

/// Where words stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Centred on the point.
    Middle,
    /// To the right of it.
    Right,
}

/// One entry of the legend.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) label: String,
    pub(crate) sample: Sample,
}

/// What stands before a legend label.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sample {
    /// A line, with a symbol when the series has one.
    Line { stroke: Stroke, marker: Option<Marker> },
    /// A symbol.
    Symbol { marker: Marker, ink: Ink },
    /// A filled bar.
    Bar { ink: Ink },
    /// A surface of a map.
    Tile { ink: Ink },
    /// A hatched surface.
    Hatched,
    /// Nothing: a remark.
    Blank,
}

/// The paper that a scene is drawn on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Frame {
    /// Pixels; the height follows from the content.
    pub(crate) width: f64,
    pub(crate) dress: Dress,
}

/// Whether title and caption are part of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dress {
    /// With title, caption and white paper: a file of its own.
    Full,
    /// Without: the page around it says them.
    Bare,
}

impl Frame {
    /// A file of its own.
    pub(crate) const PAGE: Self = Self { width: 760.0, dress: Dress::Full };
    /// Inside the report on a wide screen.
    pub(crate) const WIDE: Self = Self { width: 760.0, dress: Dress::Bare };
    /// Inside the report on a phone.
    pub(crate) const NARROW: Self = Self { width: 350.0, dress: Dress::Bare };
}
