"""The joint evaluation of `cargo bench -p kvlab-sim --bench steps`, in vectorised NumPy.

Usage: cargo bench -p kvlab-sim --bench steps -- DIR, then: python3 tools/bench/steps_numpy.py DIR

Reads the facts that the bench wrote and evaluates the same grid of 16**5 settings of (tau, tau_conf, margin, theta, epsilon).
It is written as one would by hand: everything that depends on fewer thresholds is computed once (shared branches a tau, exit layers a
(theta, epsilon), winners a (tau, theta, epsilon), skips a (tau, tau_conf, margin)), and the rest is one matrix product a tau.
Prints the time and the sum of right answers over the grid, which must equal the bench's. Needs NumPy; nothing else uses this file.
"""

import sys
import time

import numpy as np

BRANCHES, LAYERS, PER_AXIS = 8, 30, 16
MIN_LAYER, REL_MARGIN, FLOOR = 2, 0.08, 0.9


def axis(low, high):
    return low + (high - low) * (np.arange(PER_AXIS) / PER_AXIS)


def main(folder):
    def load(name, dtype, *shape):
        return np.fromfile(f"{folder}/{name}", dtype).reshape(-1, *shape)

    sigma = load("sigma.f64", "<f8", BRANCHES)
    confidence = load("confidence.f64", "<f8", BRANCHES, 2)
    correct = load("correct.u8", "u1", BRANCHES, 2).astype(bool)
    entropy = load("entropy.f32", "<f4", BRANCHES, 2, LAYERS).astype(np.float64)
    p_yes = load("p_yes.f32", "<f4", BRANCHES, 2, LAYERS).astype(np.float64)
    problems = sigma.shape[0]
    tau, tau_conf, margin = axis(0.5, 1.0), axis(0.5, 0.95), axis(0.0, 0.2)
    theta, epsilon = axis(0.5, 9.0), axis(0.05, 3.0)

    begin = time.perf_counter()
    # Exit layer of every outcome at every (theta, epsilon): [theta, epsilon, problem, branch, prefix].
    change = np.abs(np.diff(entropy, axis=-1))
    score = np.empty((PER_AXIS, PER_AXIS, problems, BRANCHES, 2))
    for i, t in enumerate(theta):
        for j, e in enumerate(epsilon):
            stops = np.zeros(entropy.shape, bool)
            stops[..., MIN_LAYER + 1 :] = (entropy[..., MIN_LAYER + 1 :] < t) & (change[..., MIN_LAYER:] < e)
            layer = np.where(stops.any(-1), stops.argmax(-1), LAYERS - 1)
            score[i, j] = np.take_along_axis(p_yes, layer[..., None], -1)[..., 0]
    total = 0
    counts = np.empty((PER_AXIS, PER_AXIS, PER_AXIS, PER_AXIS, PER_AXIS), np.int64)
    rows = np.arange(problems)
    for k, at in enumerate(tau):
        prefix = (sigma >= at).astype(int)
        pick = lambda array: np.take_along_axis(array, prefix[..., None], -1)[..., 0]
        conf, right = pick(confidence), pick(correct)
        ranked = -np.sort(-conf, axis=1)
        top, gap = ranked[:, 0], ranked[:, 0] - ranked[:, 1]
        by_b = gap / np.maximum(top, 1e-6) >= REL_MARGIN
        rule_a = (top >= tau_conf[:, None])[:, None, :] & (gap >= margin[:, None])[None, :, :]
        rule_b = (top >= FLOOR * tau_conf[:, None])[:, None, :] & by_b
        skips = (rule_a | rule_b).reshape(-1, problems)
        skipped_right = right[rows, np.argmax(conf * np.sqrt(conf), 1)]
        values = np.take_along_axis(score, prefix[None, None, ..., None], -1)[..., 0] * np.sqrt(conf)
        verified_right = right[rows, values.argmax(-1)].reshape(-1, problems)
        counts[k] = (
            (skips @ skipped_right.astype(np.float32)).astype(np.int64)[:, None]
            + (~skips).astype(np.float32) @ verified_right.astype(np.float32).T
        ).reshape(counts[k].shape)
        total += int(counts[k].sum())
    seconds = time.perf_counter() - begin
    print(f"{counts.size} settings, accuracy only: {seconds:.3f} s; sum of right answers over the grid: {total}")


if __name__ == "__main__":
    main(sys.argv[1])
