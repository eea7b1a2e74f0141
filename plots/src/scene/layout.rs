//! Where everything stands on paper: grid of panels, ticks, legend, title and caption.
//!
//! Labels never overlap by construction: each has room of its own, and the legend stands beside or below the data.

use super::text::{clean, fitted, width, wrapped};
use super::{Dress, Frame, Key, Panel, Sample, Scene};
use crate::scene::axis::Tick;
use crate::theme::{Ink, LABEL_SIZE, MUTED, TEXT, TICK_SIZE, TITLE_SIZE, WARNING};

const LINE: f64 = 16.0;
const SAMPLE: f64 = 44.0;
const MOST_KEYS: usize = 26;
/// Of a panel whose y axis has names.
const MOST_HEIGHT: f64 = 900.0;

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Which end of a label stands at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Left,
    Middle,
    Right,
}

/// A line of text, vertically centred on `y`.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) text: String,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) size: f64,
    pub(super) ink: Ink,
    pub(super) anchor: Anchor,
    pub(super) bold: bool,
}

/// A panel's plot area with the ticks that fit.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) plot: Rect,
    pub(super) x_ticks: Vec<Tick>,
    pub(super) y_ticks: Vec<Tick>,
}

/// Everything that has a place.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) height: f64,
    /// Free paper on all sides.
    margin: f64,
    /// In the order of the scene's panels.
    pub(super) places: Vec<Place>,
    pub(super) labels: Vec<Label>,
    /// Legend samples with the middle of their left edge.
    pub(super) samples: Vec<(Sample, f64, f64)>,
}

impl Layout {
    /// Finds a place for everything in `scene` on `frame`.
    pub(super) fn of(scene: &Scene, frame: Frame) -> Self {
        let margin = if frame.dress == Dress::Full { 12.0 } else { 2.0 };
        let mut layout =
            Self { height: margin, margin, places: Vec::new(), labels: Vec::new(), samples: Vec::new() };
        layout.head(scene, frame);
        let keys = shortened(&scene.legend);
        let beside = frame.width >= 600.0 && scene.columns < 3 && !keys.is_empty();
        let legend_width = if beside { legend_width(&keys, 196.0) } else { 0.0 };
        let room = frame.width - 2.0 * margin - if beside { legend_width + 18.0 } else { 0.0 };
        let top = layout.height;
        layout.panels(scene, room, frame.width >= 600.0);
        let foot = layout.height;
        if beside {
            layout.height = top + 8.0;
            let x = frame.width - margin - legend_width;
            layout.column(&keys, x, legend_width);
            layout.height = layout.height.max(foot);
        } else {
            layout.rows(&keys, room);
        }
        layout.caption(scene, frame);
        layout.height = (layout.height + margin).ceil();
        layout
    }

    fn head(&mut self, scene: &Scene, frame: Frame) {
        const MARK: &str = "synthetic trace";
        let right = frame.width - self.margin;
        let mark_room = if scene.synthetic { width(MARK, LABEL_SIZE) + 16.0 } else { 0.0 };
        let first = self.height + LINE / 2.0;
        if scene.synthetic {
            self.label(MARK, (right, first), LABEL_SIZE, WARNING, Anchor::Right);
        }
        if frame.dress == Dress::Full {
            for line in wrapped(&clean(&scene.title), TITLE_SIZE * 1.08, right - self.margin - mark_room) {
                self.height += LINE + 2.0;
                let at = (self.margin, self.height - LINE / 2.0 - 2.0);
                self.label(&line, at, TITLE_SIZE, TEXT, Anchor::Left);
                if let Some(title) = self.labels.last_mut() {
                    title.bold = true;
                }
            }
            self.height += 8.0;
        } else if scene.synthetic {
            self.height += LINE + 2.0;
        }
    }

    fn panels(&mut self, scene: &Scene, room: f64, wide: bool) {
        let Some(first) = scene.panels.first() else { return };
        let one_y_label =
            scene.panels.len() > 1 && all_equal(scene.panels.iter().map(|panel| panel.y.label.as_str()));
        let one_x_label = all_equal(scene.panels.iter().map(|panel| panel.x.label.as_str()));
        if one_y_label {
            self.words(&first.y.label, self.margin, room, MUTED);
            self.height += 4.0;
        }
        let grid = Grid::of(scene, room, wide);
        for row in 0..grid.rows {
            let of_row = row * grid.columns..((row + 1) * grid.columns).min(scene.panels.len());
            let top = self.height;
            let headers = of_row.clone().map(|at| {
                let place = (self.margin + grid.left(at), top);
                self.header(&scene.panels[at], place, grid.cell_width, one_y_label)
            });
            let header = headers.fold(0.0, f64::max);
            let mut foot = 0.0_f64;
            for at in of_row {
                let panel = &scene.panels[at];
                let plot = grid.plot(at, self.margin, top + header);
                let x_ticks = panel.x.ticks(plot.width, |text| width(text, TICK_SIZE));
                let labelled = !scene.share_x || at + grid.columns >= scene.panels.len();
                self.tick_labels(plot, &x_ticks, &grid.y_ticks[at], labelled);
                foot = foot.max(if labelled { LINE + 6.0 } else { 8.0 });
                if !one_x_label {
                    let text = fitted(&panel.x.label, TICK_SIZE, grid.cell_width);
                    let place = (plot.x + plot.width, plot.y + plot.height + LINE * 1.5 + 5.0);
                    self.label(&text, place, TICK_SIZE, MUTED, Anchor::Right);
                    foot = foot.max(LINE * 2.0 + 6.0);
                }
                self.places.push(Place { plot, x_ticks, y_ticks: grid.y_ticks[at].clone() });
            }
            let gap = if row + 1 < grid.rows { 6.0 } else { 0.0 };
            self.height = top + header + grid.heights[row] + foot + gap;
        }
        if one_x_label {
            let left = self.places.first().map_or(self.margin, |place| place.plot.x);
            self.words(&first.x.label, left, room - (left - self.margin), MUTED);
        }
    }

    /// Title and y label of one panel; the height they take.
    fn header(&mut self, panel: &Panel, (left, top): (f64, f64), room: f64, one_y_label: bool) -> f64 {
        let mut used = 0.0;
        if !panel.title.is_empty() {
            let text = fitted(&clean(&panel.title), LABEL_SIZE, room);
            self.label(&text, (left, top + LINE / 2.0), LABEL_SIZE, TEXT, Anchor::Left);
            used += LINE;
        }
        if !one_y_label && !panel.y.label.is_empty() {
            for line in wrapped(&clean(&panel.y.label), LABEL_SIZE, room) {
                self.label(&line, (left, top + used + LINE / 2.0), LABEL_SIZE, MUTED, Anchor::Left);
                used += LINE;
            }
        }
        used + 6.0
    }

    fn tick_labels(&mut self, plot: Rect, x_ticks: &[Tick], y_ticks: &[Tick], with_x: bool) {
        for tick in y_ticks {
            let y = plot.y + plot.height * (1.0 - tick.unit);
            self.label(&tick.label, (plot.x - 6.0, y), TICK_SIZE, MUTED, Anchor::Right);
        }
        for tick in x_ticks.iter().filter(|_| with_x) {
            let x = plot.x + plot.width * tick.unit;
            self.label(
                &tick.label,
                (x, plot.y + plot.height + LINE / 2.0 + 5.0),
                TICK_SIZE,
                MUTED,
                Anchor::Middle,
            );
        }
    }

    /// The legend as a column of its own.
    fn column(&mut self, keys: &[Key], x: f64, room: f64) {
        for key in keys {
            self.key(key, x, room);
            self.height += 3.0;
        }
    }

    /// The legend below the panels, in as many columns as fit.
    fn rows(&mut self, keys: &[Key], room: f64) {
        if keys.is_empty() {
            return;
        }
        self.height += 10.0;
        let each = legend_width(keys, 330.0).min(room);
        let columns = (1..=4).rev().find(|columns| real(*columns) * each <= room).unwrap_or(1);
        for row in keys.chunks(columns) {
            let top = self.height;
            let mut foot = top;
            for (column, key) in row.iter().enumerate() {
                self.height = top;
                self.key(key, self.margin + real(column) * each, each);
                foot = foot.max(self.height);
            }
            self.height = foot + 3.0;
        }
    }

    fn key(&mut self, key: &Key, x: f64, room: f64) {
        let label = clean(&key.label);
        let indent = if matches!(key.sample, Sample::Blank) { 0.0 } else { SAMPLE };
        self.samples.push((key.sample, x, self.height + LINE / 2.0));
        for line in wrapped(&label, LABEL_SIZE, room - indent) {
            self.label(&line, (x + indent, self.height + LINE / 2.0), LABEL_SIZE, TEXT, Anchor::Left);
            self.height += LINE;
        }
    }

    fn caption(&mut self, scene: &Scene, frame: Frame) {
        if frame.dress == Dress::Bare {
            return;
        }
        self.height += 10.0;
        for paragraph in &scene.caption {
            for line in wrapped(&clean(paragraph), TICK_SIZE, frame.width - 2.0 * self.margin) {
                self.label(&line, (self.margin, self.height + LINE / 2.0), TICK_SIZE, MUTED, Anchor::Left);
                self.height += LINE - 1.0;
            }
        }
    }

    fn words(&mut self, text: &str, x: f64, room: f64, ink: Ink) {
        for line in wrapped(&clean(text), LABEL_SIZE, room) {
            self.label(&line, (x, self.height + LINE / 2.0), LABEL_SIZE, ink, Anchor::Left);
            self.height += LINE;
        }
    }

    fn label(&mut self, text: &str, (x, y): (f64, f64), size: f64, ink: Ink, anchor: Anchor) {
        self.labels.push(Label { text: text.to_owned(), x, y, size, ink, anchor, bold: false });
    }
}

/// Panels in rows and columns.
struct Grid {
    columns: usize,
    rows: usize,
    /// Of the plot areas, by row.
    heights: Vec<f64>,
    cell_width: f64,
    /// By panel.
    y_ticks: Vec<Vec<Tick>>,
}

impl Grid {
    const GAP: f64 = 18.0;

    fn of(scene: &Scene, room: f64, wide: bool) -> Self {
        let wanted = if wide { scene.columns } else { scene.columns.div_ceil(2) };
        let columns = wanted.clamp(1, scene.panels.len().max(1));
        let rows = scene.panels.len().div_ceil(columns);
        let plot_height = match (wide, rows) {
            (true, 1) if columns == 1 => 300.0,
            (_, 1) => 220.0,
            (true, 2) => 170.0,
            (true, _) => 132.0,
            (false, _) => 128.0,
        };
        // Names need a line each.
        let height = |of_row: &[Panel]| match of_row.iter().map(|panel| panel.y.names()).max().unwrap_or(0) {
            0 => plot_height,
            names => (real(names) * 24.0 + 8.0).clamp(60.0, MOST_HEIGHT),
        };
        let heights: Vec<f64> = scene.panels.chunks(columns).map(height).collect();
        let cell_width = (room - Self::GAP * (real(columns) - 1.0)) / real(columns);
        let ticks = |(at, panel): (usize, &Panel)| -> Vec<Tick> {
            let ticks = panel.y.ticks(heights[at / columns], |_| TICK_SIZE * 1.5);
            // However long names are, most of the width is for what they name.
            let most = cell_width * 0.45;
            ticks
                .into_iter()
                .map(|tick| Tick { label: fitted(&tick.label, TICK_SIZE, most), ..tick })
                .collect()
        };
        let y_ticks = scene.panels.iter().enumerate().map(ticks).collect();
        Self { columns, rows, heights, cell_width, y_ticks }
    }

    /// Where the column of panel `at` begins, from the left margin.
    fn left(&self, at: usize) -> f64 {
        real(at % self.columns) * (self.cell_width + Self::GAP)
    }

    /// The plot area of panel `at`; those of one column stand exactly below each other.
    fn plot(&self, at: usize, margin: f64, y: f64) -> Rect {
        let of_column = self.y_ticks.iter().skip(at % self.columns).step_by(self.columns);
        let gutter = of_column.flatten().map(|tick| width(&tick.label, TICK_SIZE)).fold(0.0, f64::max) + 9.0;
        let plot_width = (self.cell_width - gutter - 8.0).max(20.0);
        Rect {
            x: margin + self.left(at) + gutter,
            y,
            width: plot_width,
            height: self.heights[at / self.columns],
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of panels and legend columns")]
fn real(count: usize) -> f64 {
    count as f64
}

fn all_equal<'a>(mut texts: impl Iterator<Item = &'a str>) -> bool {
    texts.next().is_none_or(|first| texts.all(|text| text == first))
}

fn legend_width(keys: &[Key], most: f64) -> f64 {
    let widest = keys.iter().map(|key| width(&clean(&key.label), LABEL_SIZE)).fold(0.0, f64::max);
    (widest + SAMPLE + 10.0).clamp(110.0, most)
}

/// The legend with its end replaced by a count when it is too long for a page.
fn shortened(keys: &[Key]) -> Vec<Key> {
    if keys.len() <= MOST_KEYS {
        return keys.to_vec();
    }
    let mut kept = keys[..MOST_KEYS - 1].to_vec();
    kept.push(Key { label: format!("and {} more", keys.len() - kept.len()), sample: Sample::Blank });
    kept
}
