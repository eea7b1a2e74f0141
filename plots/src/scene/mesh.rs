//! Fewer rectangles: neighbours that make up one rectangle are drawn as one.

use super::Span;

/// The same surface in fewer rectangles: first those beside each other are joined, then those on top of each other.
pub(super) fn merged(boxes: &[Span]) -> Vec<Span> {
    let rows = joined(boxes.to_vec(), |span| (span.y, span.x), |fixed, run| Span { x: run, y: fixed });
    joined(rows, |span| (span.x, span.y), |fixed, run| Span { x: fixed, y: run })
}

type Ends = (f64, f64);

/// Joins boxes with the same `fixed` ends whose running ends touch; `parts` gives the two, `whole` puts them together.
fn joined(
    mut boxes: Vec<Span>,
    parts: fn(&Span) -> (Ends, Ends),
    whole: fn(Ends, Ends) -> Span,
) -> Vec<Span> {
    let order = |span: &Span| {
        let (fixed, run) = parts(span);
        [fixed.0, fixed.1, run.0, run.1]
    };
    boxes.sort_by(|a, b| {
        let (a, b) = (order(a), order(b));
        a.iter()
            .zip(&b)
            .map(|(a, b)| a.total_cmp(b))
            .find(|found| found.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let same = |a: f64, b: f64| a.total_cmp(&b).is_eq();
    let mut found: Vec<(Ends, Ends)> = Vec::new();
    for span in &boxes {
        let (fixed, run) = parts(span);
        match found.last_mut() {
            Some((of, last)) if same(of.0, fixed.0) && same(of.1, fixed.1) && same(last.1, run.0) => {
                last.1 = run.1
            }
            _ => found.push((fixed, run)),
        }
    }
    found.into_iter().map(|(fixed, run)| whole(fixed, run)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(x: (i32, i32), y: (i32, i32)) -> Span {
        let real = |(from, to): (i32, i32)| (f64::from(from), f64::from(to));
        Span { x: real(x), y: real(y) }
    }

    #[test]
    fn a_full_grid_is_one_rectangle_and_a_hole_stays_a_hole() {
        let all: Vec<Span> = (0..12).map(|at| span((at % 4, at % 4 + 1), (at / 4, at / 4 + 1))).collect();
        assert_eq!(merged(&all), [span((0, 4), (0, 3))]);
        let without_middle: Vec<Span> = all.iter().copied().filter(|s| *s != span((1, 2), (1, 2))).collect();
        let area: f64 = merged(&without_middle).iter().map(|s| (s.x.1 - s.x.0) * (s.y.1 - s.y.0)).sum();
        assert!((area - 11.0).abs() < 1e-12);
        assert!(merged(&without_middle).len() <= 4);
    }

    #[test]
    fn boxes_that_do_not_touch_stay_apart() {
        let bars = [span((0, 3), (0, 1)), span((0, 5), (2, 3))];
        assert_eq!(merged(&bars).len(), 2);
        assert!(merged(&[]).is_empty());
    }
}
