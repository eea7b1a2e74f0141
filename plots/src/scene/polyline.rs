//! Lines in unit coordinates: cut to the panel, thinned to what can be seen.

/// A point of the panel: both coordinates run from 0 to 1.
pub(super) type Point = (f64, f64);

/// The parts of the line inside the panel. Points outside are replaced by where the line crosses the border.
pub(super) fn inside(points: &[Point]) -> Vec<Vec<Point>> {
    let swapped = |points: &[Point]| points.iter().map(|(x, y)| (*y, *x)).collect::<Vec<Point>>();
    let between_sides = inside_strip(&swapped(points));
    between_sides.iter().flat_map(|part| inside_strip(&swapped(part))).collect()
}

/// The parts of the line inside `0 ≤ y ≤ 1`.
fn inside_strip(points: &[Point]) -> Vec<Vec<Point>> {
    let mut parts: Vec<Vec<Point>> = Vec::new();
    let mut open: Vec<Point> = Vec::new();
    for (at, &point) in points.iter().enumerate() {
        if at > 0
            && let Some((from, to)) = segment_inside(points[at - 1], point)
        {
            if open.last().is_none_or(|last| !same(*last, from)) {
                flush(&mut open, &mut parts);
                open.push(from);
            }
            open.push(to);
        } else if at == 0 && is_inside(point) {
            open.push(point);
        }
    }
    flush(&mut open, &mut parts);
    parts
}

/// The edge of a band between the sides of the panel; above and below it is pressed flat.
pub(super) fn pressed_inside(points: &[Point]) -> Vec<Point> {
    let swapped: Vec<Point> = points.iter().map(|(x, y)| (*y, *x)).collect();
    // In order of x, a line has one part between the sides.
    let part = inside_strip(&swapped).into_iter().next().unwrap_or_default();
    part.into_iter().map(|(y, x)| (x, y.clamp(0.0, 1.0))).collect()
}

fn flush(open: &mut Vec<Point>, parts: &mut Vec<Vec<Point>>) {
    if open.len() > 1 {
        parts.push(std::mem::take(open));
    } else {
        open.clear();
    }
}

fn is_inside((_, y): Point) -> bool {
    (0.0..=1.0).contains(&y)
}

fn same(a: Point, b: Point) -> bool {
    (a.0 - b.0).abs() < 1e-12 && (a.1 - b.1).abs() < 1e-12
}

fn segment_inside(from: Point, to: Point) -> Option<(Point, Point)> {
    if (from.1 < 0.0 && to.1 < 0.0) || (from.1 > 1.0 && to.1 > 1.0) {
        return None;
    }
    Some((moved_inside(from, to), moved_inside(to, from)))
}

/// `point`, or where the segment towards `other` enters the strip.
fn moved_inside(point: Point, other: Point) -> Point {
    let border = point.1.clamp(0.0, 1.0);
    if is_inside(point) {
        return point;
    }
    let share = (border - point.1) / (other.1 - point.1);
    (point.0 + (other.0 - point.0) * share, border)
}

/// Drops points that cannot be seen at `columns` pixel columns: those in the middle of straight runs, and of
/// many points in one column all but first, lowest, highest and last.
pub(super) fn thinned(points: &[Point], columns: usize) -> Vec<Point> {
    let straight = without_straight_runs(points);
    if straight.len() <= columns * 2 {
        return straight;
    }
    let mut kept = Vec::new();
    let mut start = 0;
    while start < straight.len() {
        let column = column_of(straight[start], columns);
        let end = straight[start..]
            .iter()
            .position(|p| column_of(*p, columns) != column)
            .map_or(straight.len(), |n| start + n);
        let bucket = &straight[start..end];
        let lowest = (0..bucket.len()).min_by(|a, b| bucket[*a].1.total_cmp(&bucket[*b].1)).unwrap_or(0);
        let highest = (0..bucket.len()).max_by(|a, b| bucket[*a].1.total_cmp(&bucket[*b].1)).unwrap_or(0);
        let mut picks = [0, lowest, highest, bucket.len() - 1];
        picks.sort_unstable();
        for (at, pick) in picks.into_iter().enumerate() {
            if at == 0 || picks[at - 1] != pick {
                kept.push(bucket[pick]);
            }
        }
        start = end;
    }
    kept
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the columns")]
fn column_of((x, _): Point, columns: usize) -> usize {
    (x.clamp(0.0, 1.0) * columns as f64) as usize
}

fn without_straight_runs(points: &[Point]) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::with_capacity(points.len().min(4096));
    for &point in points {
        if let [.., a, b] = kept[..]
            && is_straight(a, b, point)
        {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}

/// Whether `b` lies on the way from `a` to `c`, within what no page can show.
fn is_straight(a: Point, b: Point, c: Point) -> bool {
    let along = (c.0 - a.0, c.1 - a.1);
    let off = (b.0 - a.0) * along.1 - (b.1 - a.1) * along.0;
    let length = along.0.hypot(along.1);
    let between = (b.0 - a.0) * along.0 + (b.1 - a.1) * along.1;
    length > 0.0 && (off / length).abs() < 1e-6 && (0.0..=length * length).contains(&between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_leaving_the_panel_ends_at_its_border() {
        let parts = inside(&[(0.0, 0.5), (1.0, 1.5)]);
        assert_eq!(parts, vec![vec![(0.0, 0.5), (0.5, 1.0)]]);
    }

    #[test]
    fn a_line_that_comes_back_has_two_parts() {
        let parts = inside(&[(0.0, 0.5), (0.25, 1.5), (0.75, 1.5), (1.0, 0.5)]);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1].last(), Some(&(1.0, 0.5)));
    }

    #[test]
    fn a_line_that_runs_past_the_side_ends_there() {
        assert_eq!(inside(&[(0.5, 0.5), (1.5, 0.5)]), vec![vec![(0.5, 0.5), (1.0, 0.5)]]);
        assert_eq!(pressed_inside(&[(0.5, 0.5), (1.5, 2.5)]), vec![(0.5, 0.5), (1.0, 1.0)]);
    }

    #[test]
    fn a_line_outside_has_no_part() {
        assert!(inside(&[(0.0, 2.0), (1.0, 3.0)]).is_empty());
        assert!(inside(&[(0.0, 0.5)]).is_empty());
    }

    #[test]
    fn a_saw_tooth_keeps_its_corners_only() {
        let saw: Vec<Point> =
            (0..=100).map(|at| (f64::from(at) / 100.0, f64::from(at % 10) / 10.0)).collect();
        let thin = thinned(&saw, 1000);
        assert_eq!(thin.len(), 21);
        assert_eq!(thin[1], (0.09, 0.9));
    }

    #[test]
    fn many_points_keep_their_extremes() {
        let noisy: Vec<Point> =
            (0..10_000).map(|at| (f64::from(at) / 1e4, f64::from((at * 7919) % 1000) / 1000.0)).collect();
        let thin = thinned(&noisy, 100);
        assert!(thin.len() <= 404);
        assert!(thin.iter().any(|p| p.1 < 0.001) && thin.iter().any(|p| p.1 > 0.998));
    }
}
