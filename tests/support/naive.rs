//! Slow twins: our own reading of the papers, in f64 and without shared code.

use super::heads::PlainHead;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| if total > 0.0 { w / total } else { 0.0 }).collect()
}

/// Policy specification §7.2: attention of each window query over the scored tokens, mean over the window, average
/// pooling of five slots with zero padding, mean over the group.
pub(crate) fn window_mass(
    head: &PlainHead,
    scored: &[usize],
    window: std::ops::Range<usize>,
    pool: usize,
) -> Vec<f64> {
    let mut score = vec![0.0; scored.len()];
    for queries in &head.queries {
        let mut mean = vec![0.0; scored.len()];
        for t in window.clone() {
            let root = (queries[t].len() as f64).sqrt();
            let logits: Vec<f64> = scored
                .iter()
                .map(|&i| if i > t { f64::NEG_INFINITY } else { dot(&queries[t], &head.keys[i]) / root })
                .collect();
            if logits.iter().all(|x| *x == f64::NEG_INFINITY) {
                continue;
            }
            for (m, p) in mean.iter_mut().zip(softmax(&logits)) {
                *m += p / window.len() as f64;
            }
        }
        for (at, s) in score.iter_mut().enumerate() {
            for offset in 0..pool {
                let neighbour = (at + offset).checked_sub(pool / 2).and_then(|n| mean.get(n));
                *s += neighbour.copied().unwrap_or(0.0) / pool as f64 / head.queries.len() as f64;
            }
        }
    }
    score
}

/// Policy specification §7.4 without a sketch: |k|²·|v|², divided by the sum.
pub(crate) fn kv_product(head: &PlainHead, scored: &[usize]) -> Vec<f64> {
    let products: Vec<f64> = scored
        .iter()
        .map(|&i| dot(&head.keys[i], &head.keys[i]) * dot(&head.values[i], &head.values[i]))
        .collect();
    let total: f64 = products.iter().sum();
    products.iter().map(|p| if total > 0.0 { p / total } else { 0.0 }).collect()
}

/// Attention probabilities of the query at `t` over all tokens up to it, `[member][kv_pos]`.
pub(crate) fn attention(head: &PlainHead, t: usize) -> Vec<Vec<f64>> {
    head.queries
        .iter()
        .map(|queries| {
            let root = (queries[t].len() as f64).sqrt();
            softmax(&(0..=t).map(|i| dot(&queries[t], &head.keys[i]) / root).collect::<Vec<_>>())
        })
        .collect()
}
