//! Which cells to run first when there is no time for all of them.

use super::Prediction;

/// Orders cells by how much running them can tell about the best one, and cuts the order into waves of at most `wave` cells: first the
/// contenders, whose interval reaches the lower end of the best one's, most promising first; then cells without a prediction, of which
/// nothing is known; then the rest. Ties go to the earlier cell.
///
/// `predicted` is `[cell]`; higher is better.
#[must_use]
pub fn waves(predicted: &[Option<Prediction>], wave: usize) -> Vec<Vec<usize>> {
    let surest = predicted.iter().flatten().map(|p| p.low).fold(f64::NEG_INFINITY, f64::max);
    let class = |cell: usize| match predicted[cell] {
        Some(prediction) if prediction.high >= surest => 0,
        None => 1,
        Some(_) => 2,
    };
    let promise = |cell: usize| predicted[cell].map_or((0.0, 0.0), |p| (p.value, p.high));
    let mut order: Vec<usize> = (0..predicted.len()).collect();
    order.sort_by(|&a, &b| {
        let ((value_a, high_a), (value_b, high_b)) = (promise(a), promise(b));
        class(a)
            .cmp(&class(b))
            .then(value_b.total_cmp(&value_a))
            .then(high_b.total_cmp(&high_a))
            .then(a.cmp(&b))
    });
    order.chunks(wave.max(1)).map(<[usize]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(value: f64, half: f64) -> Option<Prediction> {
        Some(Prediction { value, low: value - half, high: value + half })
    }

    #[test]
    fn contenders_come_first_and_the_hopeless_last() {
        let predicted = [at(0.2, 0.05), at(0.9, 0.05), None, at(0.84, 0.05), at(0.5, 0.4), at(0.1, 0.05)];
        assert_eq!(waves(&predicted, 2), [vec![1, 3], vec![4, 2], vec![0, 5]]);
        assert_eq!(waves(&[None, None, None], 2), [vec![0, 1], vec![2]], "nothing known: plan order");
        assert!(waves(&[], 3).is_empty());
    }
}
