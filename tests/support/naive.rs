//! Slow twins: our own reading of the papers, in f64 and without shared code.

use kvlab_sim::contract::PlainHead;

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

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (na, nb) = (norm(&wide(a)), norm(&wide(b)));
    if na > 0.0 && nb > 0.0 { dot(a, b) / na / nb } else { 0.0 }
}

/// Policy specification §8.4.
pub(crate) fn key_norm(head: &PlainHead, scored: &[usize]) -> Vec<f64> {
    scored.iter().map(|&i| -norm(&wide(&head.keys[i]))).collect()
}

/// Policy specification §8.10, the anchor over all resident keys.
pub(crate) fn key_diff(head: &PlainHead, resident: &[usize], scored: &[usize]) -> Vec<f64> {
    let width = head.keys[0].len();
    let mut anchor = vec![0.0; width];
    for &i in resident {
        let key = wide(&head.keys[i]);
        let size = norm(&key);
        for (a, x) in anchor.iter_mut().zip(&key) {
            *a += x / size / resident.len() as f64;
        }
    }
    let size = norm(&anchor);
    scored
        .iter()
        .map(|&i| {
            let key = wide(&head.keys[i]);
            let product: f64 = key.iter().zip(&anchor).map(|(k, a)| k * a).sum();
            -product / norm(&key) / size
        })
        .collect()
}

/// Policy specification §8.5 with nothing evicted yet: column sums of the causal attention, mean over the group;
/// divided by the queries that see the token if `per_query`.
pub(crate) fn accumulated(head: &PlainHead, scored: &[usize], seen: usize, per_query: bool) -> Vec<f64> {
    let mut sums = vec![0.0; seen];
    for t in 0..seen {
        for row in attention(head, t) {
            for (sum, p) in sums.iter_mut().zip(row) {
                *sum += p / head.queries.len() as f64;
            }
        }
    }
    scored.iter().map(|&i| if per_query { sums[i] / (seen - i) as f64 } else { sums[i] }).collect()
}

/// Policy specification §8.7: attention of the query at `last`, mean over the query heads of all `heads`.
pub(crate) fn last_attention(heads: &[&PlainHead], last: usize, scored: &[usize]) -> Vec<f64> {
    let rows: Vec<Vec<f64>> = heads.iter().flat_map(|head| attention(head, last)).collect();
    scored.iter().map(|&i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect()
}

/// Policy specification §8.14 on tokens `0..len`, all resident: the deviations of each partition that is scored, which
/// ranks follow; nothing where there are too few tokens.
pub(crate) fn lag_kv(head: &PlainHead, len: usize, lag: usize, sinks: usize) -> Vec<Vec<f64>> {
    let spread = |rows: &[Vec<f32>], here: usize| -> Vec<f64> {
        let reference = &rows[here + lag..here + 2 * lag];
        let deviations: Vec<f64> = (here..here + lag)
            .map(|i| {
                let scaled: Vec<f64> = (0..rows[i].len())
                    .map(|c| {
                        let column = || reference.iter().map(|row| f64::from(row[c]));
                        let (low, high) =
                            (column().fold(f64::MAX, f64::min), column().fold(f64::MIN, f64::max));
                        // A channel that the reference holds still says nothing.
                        if high > low { (f64::from(rows[i][c]) - low) / (high - low) } else { 0.0 }
                    })
                    .collect();
                let mean = scaled.iter().sum::<f64>() / scaled.len() as f64;
                let square: f64 = scaled.iter().map(|x| (x - mean) * (x - mean)).sum();
                (square / (scaled.len() - 1) as f64).sqrt()
            })
            .collect();
        softmax(&deviations)
    };
    if len < sinks + 2 * lag {
        return Vec::new();
    }
    (0..(len - sinks) / lag - 1)
        .map(|p| {
            let (k, v) = (spread(&head.keys, sinks + p * lag), spread(&head.values, sinks + p * lag));
            k.iter().zip(&v).map(|(k, v)| (k + v) / 2.0).collect()
        })
        .collect()
}

/// Policy specification §8.6: `lambda`, the window, pooling width, and the original's threshold or VaSE's form.
pub(crate) fn r_kv(
    head: &PlainHead,
    resident: usize,
    scored: usize,
    window: std::ops::Range<usize>,
    pool: usize,
    lambda: f64,
    threshold: Option<f64>,
) -> Vec<f64> {
    let importance: Vec<f64> = if threshold.is_some() {
        let mut mean = vec![0.0; scored];
        for t in window.clone() {
            let most: Vec<f64> = (0..scored)
                .map(|i| {
                    let of = |q: &Vec<Vec<f32>>| dot(&q[t], &head.keys[i]) / (q[t].len() as f64).sqrt();
                    if i > t {
                        f64::NEG_INFINITY
                    } else {
                        head.queries.iter().map(of).fold(f64::NEG_INFINITY, f64::max)
                    }
                })
                .collect();
            for (m, p) in mean.iter_mut().zip(softmax(&most)) {
                *m += p / window.len() as f64;
            }
        }
        let around = |i: usize| i.saturating_sub(pool / 2)..(i + pool / 2 + 1).min(scored);
        (0..scored).map(|i| mean[around(i)].iter().copied().fold(f64::MIN, f64::max)).collect()
    } else {
        window_mass(head, &(0..scored).collect::<Vec<_>>(), window, pool)
    };
    let n = if threshold.is_some() { resident } else { scored };
    let mut similar: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..n).map(|j| if i == j { 0.0 } else { cosine(&head.keys[i], &head.keys[j]) }).collect())
        .collect();
    if let Some(threshold) = threshold {
        for row in &mut similar {
            let last = (0..n).rev().find(|&j| row[j] > threshold).unwrap_or(0);
            row[last] = 0.0;
        }
    }
    let means: Vec<f64> = (0..n).map(|j| similar.iter().map(|row| row[j]).sum::<f64>() / n as f64).collect();
    let redundant = softmax(&means);
    (0..scored).map(|i| lambda * importance[i] - (1.0 - lambda) * redundant[i]).collect()
}

/// Future attention mass of each token, mean taken by nobody: summed over queries from `seen` on and over the group.
pub(crate) fn oracle(head: &PlainHead, scored: &[usize], seen: usize) -> Vec<f64> {
    let mut sums = vec![0.0; head.keys.len()];
    for t in seen..head.keys.len() {
        for row in attention(head, t) {
            sums.iter_mut().zip(row).for_each(|(sum, p)| *sum += p);
        }
    }
    scored.iter().map(|&i| sums[i]).collect()
}

/// Vectors before their rotation at `frequencies`, half-split form.
fn unrotated(rotated: &[f32], pos: usize, frequencies: &[f64]) -> Vec<f64> {
    let half = frequencies.len();
    let mut plain = wide(rotated);
    for (c, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (pos as f64 * frequency).sin_cos();
        let (x, y) = (f64::from(rotated[c]), f64::from(rotated[c + half]));
        plain[c] = x * cos + y * sin;
        plain[c + half] = y * cos - x * sin;
    }
    plain
}

/// Policy specification §8.13 over tokens `0..resident`: scores of the first `scored`, sinks and all.
pub(crate) fn expected_attention(
    head: &PlainHead,
    resident: usize,
    scored: usize,
    window: std::ops::Range<usize>,
    future: usize,
    sinks: usize,
    frequencies: &[f64],
) -> Vec<f64> {
    let width = head.keys[0].len();
    let half = frequencies.len();
    let seen = window.end;
    let turn = |x: &[f64]| -> Vec<f64> {
        let mut turned = vec![0.0; width];
        for t in seen..seen + future {
            for (c, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (t as f64 * frequency).sin_cos();
                turned[c] += (x[c] * cos - x[c + half] * sin) / future as f64;
                turned[c + half] += (x[c + half] * cos + x[c] * sin) / future as f64;
            }
        }
        turned
    };
    let mut scores = vec![0.0; scored];
    for queries in &head.queries {
        let plain: Vec<Vec<f64>> =
            window.clone().filter(|&t| t >= sinks).map(|t| unrotated(&queries[t], t, frequencies)).collect();
        if plain.is_empty() {
            continue;
        }
        let mean: Vec<f64> =
            (0..width).map(|c| plain.iter().map(|q| q[c]).sum::<f64>() / plain.len() as f64).collect();
        let mu = turn(&mean);
        let apart: Vec<Vec<f64>> = plain
            .iter()
            .map(|q| turn(&q.iter().zip(&mean).map(|(x, m)| x - m).collect::<Vec<_>>()))
            .collect();
        let logits: Vec<f64> = (0..resident)
            .map(|i| {
                if i < sinks {
                    return f64::NEG_INFINITY;
                }
                let key = wide(&head.keys[i]);
                let along = |x: &[f64]| x.iter().zip(&key).map(|(x, k)| x * k).sum::<f64>();
                let spread = apart.iter().map(|a| along(a).powi(2)).sum::<f64>() / apart.len() as f64;
                along(&mu) / (width as f64).sqrt() + spread / (2.0 * width as f64)
            })
            .collect();
        for (score, p) in scores.iter_mut().zip(softmax(&logits)) {
            *score += if p.is_nan() { 0.0 } else { p / head.queries.len() as f64 };
        }
    }
    for (i, score) in scores.iter_mut().enumerate() {
        *score *= norm(&wide(&head.values[i]));
    }
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    scores.iter_mut().take(sinks).for_each(|score| *score = most + 1.0);
    scores
}

/// Policy specification §8.12 without a sketch: x (X'X + jitter)^-1 x' by Gauss elimination, rows centred.
pub(crate) fn leverage(head: &PlainHead, scored: &[usize], jitter: f64, frequencies: &[f64]) -> Vec<f64> {
    let mut rows: Vec<Vec<f64>> = scored.iter().map(|&i| unrotated(&head.keys[i], i, frequencies)).collect();
    let width = head.keys[0].len();
    for c in 0..width {
        let mean = rows.iter().map(|row| row[c]).sum::<f64>() / rows.len() as f64;
        rows.iter_mut().for_each(|row| row[c] -= mean);
    }
    let gram = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>();
    rows.iter()
        .map(|x| {
            let mut system: Vec<Vec<f64>> = (0..width)
                .map(|i| {
                    let row = (0..width).map(|j| gram(i, j) + if i == j { jitter } else { 0.0 });
                    row.chain([x[i]]).collect()
                })
                .collect();
            for pivot in 0..width {
                let best =
                    (pivot..width).max_by(|&a, &b| system[a][pivot].abs().total_cmp(&system[b][pivot].abs()));
                system.swap(pivot, best.unwrap());
                let line = system[pivot].clone();
                for (i, row) in system.iter_mut().enumerate() {
                    if i != pivot {
                        let factor = row[pivot] / line[pivot];
                        row.iter_mut().zip(&line).for_each(|(x, l)| *x -= factor * l);
                    }
                }
            }
            (0..width).map(|i| x[i] * system[i][width] / system[i][i]).sum()
        })
        .collect()
}

/// The attention output of query head `member` at `t` over `slots`, with these keys and values, `[head_dim]`.
pub(crate) fn output(
    head: &PlainHead,
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    member: usize,
    t: usize,
    slots: &[usize],
) -> Vec<f64> {
    let query = &head.queries[member][t];
    let root = (query.len() as f64).sqrt();
    let shares = softmax(&slots.iter().map(|&i| dot(query, &keys[i]) / root).collect::<Vec<_>>());
    let mut mixed = vec![0.0; query.len()];
    for (share, &i) in shares.iter().zip(slots) {
        mixed.iter_mut().zip(&values[i]).for_each(|(sum, x)| *sum += share * f64::from(*x));
    }
    mixed
}

/// Policy specification §9.2: the tokens of the `count` pages of `page` tokens with the largest bounds, ascending; of equal
/// ones the earlier. Bounds are f32 products in channel order, so that ties are the same.
pub(crate) fn quest(head: &PlainHead, member: usize, t: usize, page: usize, count: usize) -> Vec<usize> {
    let query = &head.queries[member][t];
    let tokens: Vec<usize> = (0..=t).collect();
    let mut pages: Vec<(f32, usize)> = tokens
        .chunks(page)
        .enumerate()
        .map(|(at, tokens)| {
            let mut bound = 0.0;
            for (c, q) in query.iter().enumerate() {
                let channel: Vec<f32> = tokens.iter().map(|&i| head.keys[i][c]).collect();
                let high = channel.iter().copied().fold(f32::MIN, f32::max);
                let low = channel.iter().copied().fold(f32::MAX, f32::min);
                bound += (q * high).max(q * low);
            }
            (bound, at)
        })
        .collect();
    pages.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut chosen: Vec<usize> = pages.into_iter().take(count).map(|(_, at)| at).collect();
    chosen.sort_unstable();
    chosen.into_iter().flat_map(|at| at * page..((at + 1) * page).min(t + 1)).collect()
}

/// Rounding to the nearest of 2^bits levels between the smallest and the largest of each group of channels, with scale and
/// smallest value in half floats.
pub(crate) fn rounded(vector: &[f32], bits: u8, group: usize) -> Vec<f32> {
    let half = |x: f32| half::f16::from_f32(x).to_f32();
    vector
        .chunks(group)
        .flat_map(|channels| {
            let low = channels.iter().copied().fold(f32::MAX, f32::min);
            let high = channels.iter().copied().fold(f32::MIN, f32::max);
            let most = f32::from(2u16.pow(u32::from(bits)) - 1);
            let low = half(low);
            let step = half((high - low) / most);
            channels.iter().map(move |x| {
                let level =
                    if step > 0.0 { ((x - low) / step).round_ties_even().clamp(0.0, most) } else { 0.0 };
                level * step + low
            })
        })
        .collect()
}
