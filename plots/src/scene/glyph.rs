//! Markers, dashes and hatching as plain pixel geometry.

use crate::theme::Marker;

/// A place on paper, in tenths of a pixel.
pub(super) type Spot = (i32, i32);

/// The outline of a marker of radius `r` around `at`; `None` for a circle and a cross, which are no polygons.
pub(super) fn outline(marker: Marker, (x, y): Spot, r: i32) -> Option<Vec<Spot>> {
    let square = r * 9 / 10;
    let wide = r * 12 / 10;
    match marker {
        Marker::Square => Some(vec![
            (x - square, y - square),
            (x + square, y - square),
            (x + square, y + square),
            (x - square, y + square),
        ]),
        Marker::Diamond => Some(vec![(x, y - wide), (x + wide, y), (x, y + wide), (x - wide, y)]),
        Marker::Up => Some(vec![(x, y - wide), (x + wide, y + r), (x - wide, y + r)]),
        Marker::Down => Some(vec![(x, y + wide), (x + wide, y - r), (x - wide, y - r)]),
        Marker::Circle | Marker::Cross => None,
    }
}

/// The strokes of a cross of radius `r` around `at`.
pub(super) fn cross((x, y): Spot, r: i32) -> [[Spot; 2]; 2] {
    [[(x - r, y - r), (x + r, y + r)], [(x - r, y + r), (x + r, y - r)]]
}

/// The length of a line.
pub(super) fn length(points: &[Spot]) -> f64 {
    let of_pair = |pair: &[Spot]| {
        let (from, to) = (real(pair[0]), real(pair[1]));
        (to.0 - from.0).hypot(to.1 - from.1)
    };
    points.windows(2).map(of_pair).sum()
}

/// Cuts a line into dashes. `pattern` has lengths of stroke and gap in turn, in the unit of the points.
pub(super) fn dashes(points: &[Spot], pattern: &[f64]) -> Vec<Vec<Spot>> {
    if pattern.iter().sum::<f64>() <= 0.0 || pattern.iter().any(|length| *length <= 0.0) {
        return vec![points.to_vec()];
    }
    let mut parts: Vec<Vec<Spot>> = Vec::new();
    let mut open: Vec<Spot> = points.first().copied().into_iter().collect();
    let (mut at, mut left) = (0, pattern[0]);
    for pair in points.windows(2) {
        let (from, to) = (real(pair[0]), real(pair[1]));
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let mut walked = 0.0;
        while length - walked > left {
            walked += left;
            let cut = spot((
                from.0 + (to.0 - from.0) * walked / length,
                from.1 + (to.1 - from.1) * walked / length,
            ));
            if at % 2 == 0 {
                open.push(cut);
                parts.push(std::mem::take(&mut open));
            } else {
                open = vec![cut];
            }
            at = (at + 1) % pattern.len();
            left = pattern[at];
        }
        left -= length - walked;
        if at % 2 == 0 {
            open.push(pair[1]);
        }
    }
    if open.len() > 1 {
        parts.push(open);
    }
    parts
}

/// Slanted strokes over the rectangle from `low` (top left) to `high` (bottom right), `gap` apart.
pub(super) fn hatch(low: Spot, high: Spot, gap: i32) -> Vec<[Spot; 2]> {
    let (width, height) = (high.0 - low.0, high.1 - low.1);
    if width <= 0 || height <= 0 || gap <= 0 {
        return Vec::new();
    }
    let first = (low.0 + low.1).div_euclid(gap) + 1;
    let last = (high.0 + high.1).div_euclid(gap);
    (first..=last)
        .map(|index| {
            let sum = index * gap; // the stroke is where x + y = sum, so neighbouring strips line up
            let left = (sum - high.1).max(low.0);
            let right = (sum - low.1).min(high.0);
            [(left, sum - left), (right, sum - right)]
        })
        .filter(|[from, to]| from.0 < to.0)
        .collect()
}

fn real((x, y): Spot) -> (f64, f64) {
    (f64::from(x), f64::from(y))
}

#[expect(clippy::cast_possible_truncation, reason = "between two i32 points")]
fn spot((x, y): (f64, f64)) -> Spot {
    (x.round() as i32, y.round() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_cover_strokes_and_leave_gaps() {
        let parts = dashes(&[(0, 0), (100, 0)], &[30.0, 20.0]);
        assert_eq!(parts, vec![vec![(0, 0), (30, 0)], vec![(50, 0), (80, 0)]]);
    }

    #[test]
    fn a_dash_goes_round_a_corner() {
        let parts = dashes(&[(0, 0), (10, 0), (10, 10)], &[15.0, 100.0]);
        assert_eq!(parts, vec![vec![(0, 0), (10, 0), (10, 5)]]);
    }

    #[test]
    fn a_pattern_of_nothing_is_an_unbroken_line() {
        assert_eq!(dashes(&[(0, 0), (5, 5)], &[0.0, 0.0]).len(), 1);
        assert_eq!(dashes(&[(0, 0), (5, 5)], &[]).len(), 1);
    }

    #[test]
    fn hatching_stays_inside_its_rectangle() {
        for [from, to] in hatch((10, 20), (110, 60), 25) {
            for (x, y) in [from, to] {
                assert!((10..=110).contains(&x) && (20..=60).contains(&y), "({x}, {y})");
            }
        }
        assert!(hatch((0, 0), (0, 50), 10).is_empty());
    }
}
