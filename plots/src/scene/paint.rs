//! Puts a scene on paper: plotters draws into an SVG text, in tenths of a pixel.
//!
//! The backend of plotters rounds to whole units, so the paper is ten times larger than what is shown.

use super::glyph::{self, Spot};
use super::layout::{Anchor, Label, Layout, Place, Rect};
use super::polyline::{self, Point};
use super::{Axis, Dress, Frame, Mark, Panel, Sample, Scene, Side, Span, compact, mesh, text};
use crate::theme::{AXIS, CONTEXT, GRID, Ink, Marker, PAPER, Stroke, TICK_SIZE};
use plotters::backend::SVGBackend;
use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, Circle, DrawingArea, DrawingAreaErrorKind, FontStyle, IntoDrawingArea,
    IntoFont, PathElement, Polygon, Rectangle, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, RGBColor, ShapeStyle};
use std::fmt::Write as _;

/// Units of the backend in a pixel.
const UNITS: f64 = 10.0;
const BAND_OPACITY: f64 = 0.16;
/// A line keeps at most a few points in each of so many columns.
const MOST_COLUMNS: usize = 700;
/// A longer line runs to and fro so much that dashes cannot be seen: it is drawn unbroken. In backend units.
const LONGEST_DASHED: f64 = 40_000.0;

type Backend<'a> = SVGBackend<'a>;
type Paper<'a> = DrawingArea<Backend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, Backend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The scene as SVG text, with `alt` as its text alternative. Equal scenes give equal bytes.
pub(crate) fn render(
    scene: &Scene,
    frame: Frame,
    alt: &str,
) -> Result<String, DrawingAreaErrorKind<std::io::Error>> {
    let layout = Layout::of(scene, frame);
    let mut svg = String::new();
    {
        let size = (whole(frame.width).unsigned_abs(), whole(layout.height).unsigned_abs());
        let paper = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        if frame.dress == Dress::Full {
            paper.fill(&rgb(PAPER))?;
        }
        for (panel, place) in scene.panels.iter().zip(&layout.places) {
            paint_panel(&paper, panel, place)?;
        }
        for (sample, x, y) in &layout.samples {
            paint_sample(&paper, *sample, *x, *y)?;
        }
        for label in &layout.labels {
            paint_label(&paper, label)?;
        }
        paper.present()?;
    }
    Ok(with_header(&svg, frame.width, layout.height, alt))
}

/// Replaces the backend's root element by one that shows the picture at its right size and can be read aloud.
fn with_header(svg: &str, width: f64, height: f64, alt: &str) -> String {
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let alt = escaped(&text::clean(alt));
    let mut out = String::with_capacity(svg.len() + 2 * alt.len() + 200);
    write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {} {}\" \
         role=\"img\" aria-label=\"{alt}\" stroke-linejoin=\"round\">\n<title>{alt}</title>",
        whole(width),
        whole(height),
    )
    .expect("writing to a String cannot fail");
    out.push_str(&compact::compact(body));
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn paint_panel(paper: &Paper<'_>, panel: &Panel, place: &Place) -> Drawn {
    let Rect { x, y, width, height } = place.plot;
    let area = paper.clone().shrink((whole(x), whole(y)), (whole(width), whole(height)));
    let mut chart = ChartBuilder::on(&area).build_cartesian_2d(0.0..1.0, 0.0..1.0)?;
    for mark in panel.marks.iter().filter(|mark| matches!(mark, Mark::Hatched { .. })) {
        paint_mark(paper, &mut chart, panel, mark)?;
    }
    let grid = line_style(GRID, 0.8);
    chart.draw_series(
        place.y_ticks.iter().map(|tick| PathElement::new(vec![(0.0, tick.unit), (1.0, tick.unit)], grid)),
    )?;
    chart.draw_series(
        place.x_ticks.iter().map(|tick| PathElement::new(vec![(tick.unit, 0.0), (tick.unit, 1.0)], grid)),
    )?;
    for mark in panel.marks.iter().filter(|mark| !matches!(mark, Mark::Hatched { .. })) {
        paint_mark(paper, &mut chart, panel, mark)?;
    }
    let axis = line_style(AXIS, 1.0);
    chart.draw_series(
        [vec![(0.0, 0.0), (1.0, 0.0)], vec![(0.0, 0.0), (0.0, 1.0)]].map(|ends| PathElement::new(ends, axis)),
    )?;
    Ok(())
}

fn paint_mark(paper: &Paper<'_>, chart: &mut Chart<'_, '_>, panel: &Panel, mark: &Mark) -> Drawn {
    let (x, y) = (&panel.x, &panel.y);
    match mark {
        Mark::Line { points, stroke } => paint_line(paper, chart, &units(x, y, points), *stroke),
        Mark::Across { y: at, stroke } => {
            let unit = y.unit(*at).unwrap_or(-1.0);
            paint_line(paper, chart, &[(0.0, unit), (1.0, unit)], *stroke)
        }
        Mark::Upright { x: at, stroke } => match x.unit(*at).filter(|unit| (0.0..=1.0).contains(unit)) {
            Some(unit) => paint_line(paper, chart, &[(unit, 0.0), (unit, 1.0)], *stroke),
            None => Ok(()),
        },
        Mark::Band { points, ink } => {
            let edge = |pick: fn(&(f64, f64, f64)) -> f64| -> Vec<Point> {
                let raw: Vec<Point> = points.iter().map(|point| (point.0, pick(point))).collect();
                polyline::thinned(&polyline::pressed_inside(&units(x, y, &raw)), MOST_COLUMNS)
            };
            let mut outline = edge(|point| point.1);
            outline.extend(edge(|point| point.2).into_iter().rev());
            chart.draw_series([Polygon::new(outline, rgb(*ink).mix(BAND_OPACITY).filled())]).map(|_| ())
        }
        Mark::Symbols { points, marker, ink } => {
            let shown = sparse(points);
            for unit in units(x, y, &shown).into_iter().filter(|(x, y)| in_panel(*x) && in_panel(*y)) {
                paint_marker(paper, chart.backend_coord(&unit), *marker, *ink)?;
            }
            Ok(())
        }
        Mark::Whiskers { points, ink } => {
            for (at, lo, hi) in &sparse(points) {
                if let (Some(at), Some(lo), Some(hi)) = (x.unit(*at), y.unit(*lo), y.unit(*hi)) {
                    let ends = vec![(at, lo.clamp(0.0, 1.0)), (at, hi.clamp(0.0, 1.0))];
                    chart.draw_series([PathElement::new(ends, line_style(*ink, 1.0))])?;
                }
            }
            Ok(())
        }
        Mark::Bars { bars, ink } => {
            let style = rgb(*ink).mix(0.85).filled();
            let rectangles = bars.iter().filter_map(|(left, right, height)| {
                let (left, right, height) = (x.unit(*left)?, x.unit(*right)?, y.unit(*height)?);
                let (left, right) = (left.clamp(0.0, 1.0), right.clamp(0.0, 1.0));
                (height > 0.0 && right > left)
                    .then(|| Rectangle::new([(left, height.min(1.0)), (right, 0.0)], style))
            });
            chart.draw_series(rectangles).map(|_| ())
        }
        Mark::Boxes { boxes, ink } => {
            let merged = mesh::merged(boxes);
            let rectangles = merged.iter().filter_map(|span| {
                let (low, high) = corners(x, y, span)?;
                Some(Rectangle::new([low, high], rgb(*ink).filled()))
            });
            chart.draw_series(rectangles).map(|_| ())
        }
        Mark::HatchedBoxes(boxes) => {
            for (low, high) in mesh::merged(boxes).iter().filter_map(|span| corners(x, y, span)) {
                let low_left = chart.backend_coord(&(low.0, high.1));
                paint_hatching(paper, low_left, chart.backend_coord(&(high.0, low.1)))?;
            }
            Ok(())
        }
        Mark::Spans { points, ink } => {
            for (at, lo, hi) in points {
                if let (Some(at), Some(lo), Some(hi)) = (y.unit(*at), x.unit(*lo), x.unit(*hi)) {
                    let ends = vec![(lo.clamp(0.0, 1.0), at), (hi.clamp(0.0, 1.0), at)];
                    chart.draw_series([PathElement::new(ends, line_style(*ink, 1.4))])?;
                }
            }
            Ok(())
        }
        Mark::Words { words, ink, side } => {
            for (wx, wy, words) in words {
                let unit = x.unit(*wx).zip(y.unit(*wy)).filter(|(x, y)| in_panel(*x) && in_panel(*y));
                let Some(unit) = unit else { continue };
                paint_words(paper, chart.backend_coord(&unit), words, *ink, *side)?;
            }
            Ok(())
        }
        Mark::Hatched { from, to } => {
            let (Some(from), Some(to)) = (x.unit(*from), x.unit(*to)) else { return Ok(()) };
            let low = chart.backend_coord(&(from.clamp(0.0, 1.0), 1.0));
            let high = chart.backend_coord(&(to.clamp(0.0, 1.0), 0.0));
            paint_hatching(paper, low, high)
        }
    }
}

/// The lower left and the upper right corner as far as they are in the panel; nothing for what lies outside.
fn corners(x: &Axis, y: &Axis, span: &Span) -> Option<(Point, Point)> {
    let side = |axis: &Axis, (from, to): (f64, f64)| -> Option<(f64, f64)> {
        let (from, to) = (axis.unit(from)?.clamp(0.0, 1.0), axis.unit(to)?.clamp(0.0, 1.0));
        (to > from).then_some((from, to))
    };
    let ((left, right), (foot, top)) = (side(x, span.x)?, side(y, span.y)?);
    Some(((left, foot), (right, top)))
}

fn paint_words(paper: &Paper<'_>, at: Spot, words: &str, ink: Ink, side: Side) -> Drawn {
    let (x, y) = (f64::from(at.0) / UNITS, f64::from(at.1) / UNITS);
    let (x, anchor) = match side {
        Side::Middle => (x, Anchor::Middle),
        Side::Right => (x + 5.0, Anchor::Left),
    };
    paint_label(paper, &Label { text: text::clean(words), x, y, size: TICK_SIZE, ink, anchor, bold: false })
}

fn units(x: &Axis, y: &Axis, points: &[Point]) -> Vec<Point> {
    // Far outside is as good as just outside, and keeps backend units within their type.
    points
        .iter()
        .filter_map(|(px, py)| Some((x.unit(*px)?.clamp(-9.0, 9.0), y.unit(*py)?.clamp(-99.0, 99.0))))
        .collect()
}

/// Of a crowd of points about as many as can be told apart, evenly taken; the line through them keeps all.
fn sparse<T: Copy>(points: &[T]) -> Vec<T> {
    const CROWD: usize = 60;
    points.iter().step_by(points.len() / CROWD + 1).copied().collect()
}

fn in_panel(unit: f64) -> bool {
    (-1e-9..=1.0 + 1e-9).contains(&unit)
}

fn paint_line(paper: &Paper<'_>, chart: &mut Chart<'_, '_>, line: &[Point], stroke: Stroke) -> Drawn {
    let style = line_style(stroke.ink, stroke.width);
    for part in polyline::inside(line) {
        let part = polyline::thinned(&part, MOST_COLUMNS);
        let spots: Vec<Spot> = part.iter().map(|point| chart.backend_coord(point)).collect();
        if stroke.dash.pattern().is_empty() || glyph::length(&spots) > LONGEST_DASHED {
            chart.draw_series([PathElement::new(part, style)])?;
            continue;
        }
        paint_dashes(paper, &spots, stroke)?;
    }
    Ok(())
}

fn paint_dashes(paper: &Paper<'_>, spots: &[Spot], stroke: Stroke) -> Drawn {
    let pattern: Vec<f64> = stroke.dash.pattern().iter().map(|length| length * UNITS).collect();
    for dash in glyph::dashes(spots, &pattern) {
        paper.draw(&PathElement::new(dash, line_style(stroke.ink, stroke.width)))?;
    }
    Ok(())
}

fn paint_marker(paper: &Paper<'_>, at: Spot, marker: Marker, ink: Ink) -> Drawn {
    const RADIUS: i32 = 34;
    match glyph::outline(marker, at, RADIUS) {
        Some(outline) => paper.draw(&Polygon::new(outline, rgb(ink).filled())),
        None if marker == Marker::Cross => {
            for stroke in glyph::cross(at, RADIUS) {
                paper.draw(&PathElement::new(stroke.to_vec(), line_style(ink, 1.6)))?;
            }
            Ok(())
        }
        None => paper.draw(&Circle::new(at, RADIUS, rgb(ink).filled())),
    }
}

fn paint_hatching(paper: &Paper<'_>, low: Spot, high: Spot) -> Drawn {
    if high.0 <= low.0 || high.1 <= low.1 {
        return Ok(());
    }
    paper.draw(&Rectangle::new([low, high], rgb(CONTEXT).mix(0.10).filled()))?;
    for stroke in glyph::hatch(low, high, 80) {
        paper.draw(&PathElement::new(
            stroke.to_vec(),
            ShapeStyle { color: rgb(CONTEXT).mix(0.55), filled: false, stroke_width: 8 },
        ))?;
    }
    Ok(())
}

fn paint_sample(paper: &Paper<'_>, sample: Sample, x: f64, y: f64) -> Drawn {
    const LENGTH: f64 = 36.0;
    let (left, right, middle) = (whole(x), whole(x + LENGTH), whole(y));
    let (low, high) = ((left, whole(y - 5.0)), (right, whole(y + 5.0)));
    match sample {
        Sample::Line { stroke, marker } => {
            paint_dashes(paper, &[(left, middle), (right, middle)], stroke)?;
            match marker {
                Some(marker) => paint_marker(paper, (i32::midpoint(left, right), middle), marker, stroke.ink),
                None => Ok(()),
            }
        }
        Sample::Bar { ink } => paper.draw(&Rectangle::new([low, high], rgb(ink).mix(0.85).filled())),
        Sample::Symbol { marker, ink } => {
            paint_marker(paper, (i32::midpoint(left, right), middle), marker, ink)
        }
        Sample::Tile { ink } => {
            paper.draw(&Rectangle::new([low, high], rgb(ink).filled()))?;
            paper.draw(&Rectangle::new([low, high], line_style(AXIS, 0.6)))
        }
        Sample::Hatched => paint_hatching(paper, low, high),
        Sample::Blank => Ok(()),
    }
}

fn paint_label(paper: &Paper<'_>, label: &Label) -> Drawn {
    let horizontal = match label.anchor {
        Anchor::Left => HPos::Left,
        Anchor::Middle => HPos::Center,
        Anchor::Right => HPos::Right,
    };
    // The backend divides font sizes by 1.24.
    let font = ("sans-serif", label.size * UNITS * 1.24).into_font();
    let font = if label.bold { font.style(FontStyle::Bold) } else { font };
    let style = font.color(&rgb(label.ink)).pos(Pos::new(horizontal, VPos::Center));
    paper.draw(&Text::new(label.text.as_str(), (whole(label.x), whole(label.y)), style))
}

fn line_style(ink: Ink, width: f64) -> ShapeStyle {
    ShapeStyle { color: rgb(ink).to_rgba(), filled: false, stroke_width: whole(width).unsigned_abs() }
}

fn rgb(ink: Ink) -> RGBColor {
    let [red, green, blue] = ink.light;
    RGBColor(red, green, blue)
}

/// Pixels in backend units.
#[expect(clippy::cast_possible_truncation, reason = "page sizes are far below the largest i32")]
fn whole(pixels: f64) -> i32 {
    (pixels * UNITS).round() as i32
}
