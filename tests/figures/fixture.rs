//! Result tables as a real run would write them, made from formulas and a fixed seed.
//!
//! Shapes follow a 30-layer model with 3 KV heads: saw-tooth occupancy, recall that grows with the budget, lens
//! entropies that fall late, value ranges that grow with depth. No number here is a measurement.

use super::more;
use super::rows::{Noise, Rows, int, real, text};
use kvlab_sim::results::{RECORDING, RESULTS_VERSION, Results, ResultsManifest, SourceInfo};
use kvlab_sim::table::Value;
use std::sync::LazyLock;

pub(crate) const LAYERS: u16 = 30;
const VOCAB: u32 = 49_152;
const LONGEST: u32 = 800;
const PROMPT: u32 = 90;
const PERIOD: u32 = 64;
const POLICIES: [(&str, f64, usize); 6] = [
    ("random", 0.60, 3),
    ("streaming-llm", 0.74, 1),
    ("snapkv", 0.885, 1),
    ("vase-attnv", 0.875, 3),
    ("vase-dkv", 0.80, 3),
    ("keydiff", 0.70, 1),
];
pub(crate) const BUDGETS: [i64; 4] = [64, 128, 256, 512];

fn interval(id: &str, value: f64, half: f64, most: f64) -> Vec<(String, Value)> {
    vec![
        real(id, value),
        real(&format!("{id}_lo"), value - half),
        real(&format!("{id}_hi"), (value + half).min(most)),
    ]
}

fn mean(id: &str, value: f64, half: f64) -> Vec<(String, Value)> {
    let mut values = interval(id, value, half, if value > 1.0 { f64::MAX } else { 1.0 });
    values.push(int(&format!("{id}_n"), 12));
    values
}

fn rate(id: &str, value: f64, den: i64, half: f64) -> Vec<(String, Value)> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "small counts")]
    let num = (value * den as f64).round() as i64;
    let mut values = interval(id, value, half, if value > 1.0 { f64::MAX } else { 1.0 });
    values.extend([int(&format!("{id}_num"), num), int(&format!("{id}_den"), den)]);
    values
}

fn common(cell: &str, study: &str, policy: &str) -> Vec<(String, Value)> {
    vec![
        text("cell", cell),
        text("scenario", "paper-main"),
        text("source", "math-12"),
        ("synthetic".to_owned(), Value::Bool(false)),
        text("arm", "replay"),
        text("study", study),
        text("policy", policy),
        text("status", "ok"),
        int("sequences", 12),
        text("log_digest", "0123456789abcdef"),
    ]
}

/// A whole study: eviction and exit cells, and all series. Built once a process.
pub(crate) fn study() -> Results {
    static STUDY: LazyLock<Results> = LazyLock::new(built_study);
    STUDY.clone()
}

fn built_study() -> Results {
    let mut noise = Noise::new(7);
    let (mut cells, mut series) = (Rows::cells(), Rows::series());
    eviction(&mut cells, &mut series, &mut noise);
    exits(&mut cells, &mut series, &mut noise);
    recording(&mut series, &mut noise);
    more::cells(&mut cells);
    more::series(&mut series, "snapkv-01280");
    more::maps(&mut series, "snapkv-01280", LAYERS);
    let mut tables =
        vec![("steps".to_owned(), more::steps(&["rksc"])), ("joint".to_owned(), more::joint("rksc", 6))];
    tables.extend(more::drawn("vase-at01280", &["no-kv", "exact", "rksc"], "rksc", 0.8));
    Results { manifest: manifest(), cells: cells.table(), series: series.table(), more: tables }
}

/// The same manifest with other tables.
pub(crate) fn results(cells: &Rows, series: &Rows) -> Results {
    Results { manifest: manifest(), cells: cells.table(), series: series.table(), more: Vec::new() }
}

pub(crate) fn manifest() -> ResultsManifest {
    ResultsManifest {
        version: RESULTS_VERSION,
        tool: "kvlab 0.1.0".to_owned(),
        scenario: "paper-main".to_owned(),
        why: "Which eviction policy keeps most of the attention of a reasoning model at a small budget, and how many layers can an entropy threshold skip before the next token changes?".to_owned(),
        scenario_digest: "5f1d7a84db00d2fce00b31a7fc73224f5f1d7a84db00d2fce00b31a7fc73224f".to_owned(),
        scenario_text: "id: paper-main\nwhy: >-\n  Which policy keeps most?\neviction:\n  budgets: [64, 128, 256, 512]\n".to_owned(),
        sources: vec![SourceInfo {
            name: "math-12".to_owned(),
            digest: "a3c65c2974270fd093ee8a9bf8ae7d0ba3c65c2974270fd093ee8a9bf8ae7d0b".to_owned(),
            synthetic: false,
            model: "SmolLM2-135M-Instruct Q4_1".to_owned(),
            provider: "CPUExecutionProvider".to_owned(),
            sequences: 12,
            tokens: 9_846,
            layers: LAYERS,
            q_heads: 9,
            kv_heads: 3,
            vocab: VOCAB,
        }],
        command: "kvlab demo --out out --seed 0".to_owned(),
    }
}

fn eviction(cells: &mut Rows, series: &mut Rows, noise: &mut Noise) {
    let mut full = common("full00000000", "eviction", "full");
    full.extend(mean("attn_mass_recall", 1.0, 0.0));
    full.extend(mean("accuracy", 0.95, 0.04));
    full.extend(mean("attn_output_error", 0.0, 0.0));
    full.extend(mean("mean_keep_ratio", 1.0, 0.0));
    full.extend([
        int("evictions", 0),
        int("peak_kv_bytes", 62_208_000),
        int("peak_allocated_kv_bytes", 62_914_560),
        int("peak_stored_kv_bytes", 62_208_000),
    ]);
    cells.push(full);
    curve(series, "full00000000", "live_kv_tokens", lengths().map(|x| (x, f64::from(x))));
    curve(series, "full00000000", "step_mass_recall", lengths().map(|x| (x, 1.0)));
    for (policy, quality, seeds) in POLICIES {
        for budget in BUDGETS {
            for seed in 0..seeds {
                let cell = format!("{}{budget:04}{seed}", &format!("{policy}------")[..7]);
                eviction_cell(cells, &cell, (policy, quality, seeds), budget, seed, noise);
                let live = |x: u32| f64::from(resident(x, budget));
                curve(series, &cell, "live_kv_tokens", lengths().map(|x| (x, live(x))));
                curve(
                    series,
                    &cell,
                    "allocated_kv_tokens",
                    lengths().map(|x| (x, f64::from(resident(x, budget).div_ceil(16) * 16))),
                );
                let recalls: Vec<(u32, f64)> =
                    lengths().map(|x| (x, step_recall(x, quality, budget, noise))).collect();
                curve(series, &cell, "step_mass_recall", recalls.into_iter());
            }
        }
    }
}

/// An eviction cell with both proxies; `half` is half the width of the interval.
pub(crate) fn eviction_row(
    cell: &str,
    policy: &str,
    budget: i64,
    recall: f64,
    half: f64,
    seed: Option<i64>,
) -> Vec<(String, Value)> {
    let mut row = common(cell, "eviction", policy);
    row.extend([int("budget_tokens", budget), int("evictions", 9)]);
    row.extend(seed.map(|seed| int("seed", seed)));
    row.extend(interval("attn_mass_recall", recall, half, f64::MAX));
    row.extend(interval("attn_output_error", 1.0 - recall, half, f64::MAX));
    row
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "small numbers")]
fn eviction_cell(
    cells: &mut Rows,
    cell: &str,
    (policy, quality, seeds): (&str, f64, usize),
    budget: i64,
    seed: usize,
    noise: &mut Noise,
) {
    let recall = 1.0 - (1.0 - quality) * (64.0 / budget as f64).powf(0.62) - 0.012 * noise.unit();
    let mut row = common(cell, "eviction", policy);
    if seeds > 1 {
        row.push(int("seed", seed as i64));
    }
    if policy.starts_with("vase-attnv") {
        row.push(int("value_tokens", budget / 4));
    }
    row.extend([
        text("params", &format!("{{\"budget_tokens\":{budget},\"period_tokens\":64,\"pool\":5}}")),
        int("budget_tokens", budget),
        int("kv_budget_tokens", budget - 32),
        int("recent_tokens", 32),
        int("sink_tokens", 4),
        int("period_tokens", i64::from(PERIOD)),
        int("window_tokens", 32),
        int("evictions", 12 * (1400 - budget) / 64),
        int("peak_kv_bytes", (budget + 63) * 46_080),
        int("peak_allocated_kv_bytes", (budget + 64) * 46_080),
        int("peak_stored_kv_bytes", (budget + 63) * 46_080),
        int("kv_byte_steps", (budget + 31) * 46_080 * 9_846),
    ]);
    row.extend(mean("attn_mass_recall", recall, 0.018 + 0.01 * noise.unit()));
    row.extend(mean("accuracy", recall * recall, 0.05));
    row.extend(mean("attn_output_error", 0.9 * (1.0 - recall).powf(0.8), 0.02));
    row.extend(mean("mean_keep_ratio", (budget as f64 / 700.0).min(1.0), 0.01));
    row.extend(rate("boundary_tie_rate", 0.001, 55_000, 0.0005));
    row.extend(rate("wide_value_coverage", quality * 0.9, 4_320, 0.02));
    cells.push(row);
}

fn lengths() -> impl Iterator<Item = u32> {
    PROMPT..=LONGEST
}

/// Tokens resident after `length` tokens: evicted down to the budget at each multiple of the period.
fn resident(length: u32, budget: i64) -> u32 {
    let budget = u32::try_from(budget).unwrap();
    let last = length / PERIOD * PERIOD;
    if last > budget && last > PROMPT { budget + (length - last) } else { length }
}

fn step_recall(length: u32, quality: f64, budget: i64, noise: &mut Noise) -> f64 {
    let kept = f64::from(resident(length, budget)) / f64::from(length);
    if kept >= 1.0 {
        1.0
    } else {
        (1.0 - (1.0 - quality) * 1.6 * (1.0 - kept).powf(0.8) - 0.015 * noise.unit()).clamp(0.0, 1.0)
    }
}

fn curve(series: &mut Rows, cell: &str, metric: &str, points: impl Iterator<Item = (u32, f64)>) {
    for (x, value) in points {
        let n = 12 - i64::from(x) * 11 / i64::from(LONGEST);
        series.push([
            text("cell", cell),
            text("metric", metric),
            text("stat", "mean"),
            real("x", f64::from(x)),
            real("value", value),
            int("n", n),
        ]);
    }
}

fn exits(cells: &mut Rows, series: &mut Rows, noise: &mut Noise) {
    for (lens, shift) in [("final-norm", 0.0_f64), ("raw", 1.4)] {
        for (at, theta) in
            [0.0_f64, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 11.0].into_iter().enumerate()
        {
            for epsilon in [0.05_f64, 0.2, 1.0] {
                let cell = format!("{}{at:02}{:04}", &lens[..3], epsilon * 100.0);
                let reach =
                    ((theta - shift).max(0.0) / 3.2).min(1.0) * (0.45 + 0.5 * f64::sqrt(epsilon).min(1.0));
                let skip = (reach * 0.8 + 0.004 * noise.unit()).min(0.96);
                let mut row = common(&cell, "exit", "entropy-exit");
                row.extend([
                    text("lens", lens),
                    text("theta_unit", "nats"),
                    real("theta", theta),
                    real("epsilon", epsilon),
                ]);
                if theta <= 0.0 {
                    row.push(text(
                        "lint",
                        "theta is unreachable: no observed entropy is below 0.000 nats (smallest 0.004)",
                    ));
                } else if theta > 10.8 {
                    row.push(text("lint", "theta is vacuous: 11.000 nats is not below the largest possible entropy, ln V = 10.803"));
                }
                row.extend(rate("skip_rate", skip, 246_000, 0.01 + skip * 0.05));
                row.extend(rate("exit_rate", (skip * 1.3).min(1.0), 8_200, 0.02));
                row.extend(rate("exit_agreement", 1.0 - 0.55 * skip.powf(1.4), 8_200, 0.005 + skip * 0.04));
                row.extend(mean("mean_layers_run", f64::from(LAYERS) * (1.0 - skip), 0.4));
                cells.push(row);
                for layer in 1..=LAYERS {
                    let early = 8_200.0 * (skip * 1.3).min(1.0) / 16.0 * (1.0 + 0.5 * noise.unit());
                    let value = if layer == LAYERS {
                        8_200.0 * (1.0 - skip)
                    } else if layer > 12 {
                        early.round()
                    } else {
                        0.0
                    };
                    series.push([
                        text("cell", &cell),
                        text("metric", "exit_layer_count"),
                        text("stat", "count"),
                        real("x", f64::from(layer)),
                        real("value", value.round()),
                    ]);
                }
            }
        }
    }
}

fn recording(series: &mut Rows, noise: &mut Noise) {
    for layer in 0..LAYERS {
        let depth = f64::from(layer) / f64::from(LAYERS - 1);
        let late = (depth - 0.6).max(0.0);
        let normed = 1.3 - 1.6 * (depth - 0.5).max(0.0) + 6.0 * late * late + 0.06 * noise.unit();
        let raw = 10.6 - 5.0 * depth * depth + 0.1 * noise.unit();
        for (metric, median, below, above) in [
            ("lens_entropy_nats", normed, 0.6 + 0.4 * depth, 0.7 + late),
            ("raw_lens_entropy_nats", raw, 0.9 * depth + 0.1, 0.2 * (1.0 - depth) + 0.8 * depth),
        ] {
            for (stat, value) in
                [("p10", (median - below).max(0.01)), ("p50", median), ("p90", (median + above).min(10.8))]
            {
                series.push([
                    text("cell", RECORDING),
                    text("metric", metric),
                    text("stat", stat),
                    int("layer", i64::from(layer)),
                    real("x", f64::from(layer)),
                    real("value", value),
                    int("n", 8_200),
                ]);
            }
        }
        let (middle, width) = if layer == 0 { (0.32, 0.02) } else { (2.6 + 5.0 * depth, 0.5) };
        for bin in 0..40 {
            let x = f64::from(bin) * width;
            let z = (x - middle) / (middle * 0.34);
            let count = (4_000.0 * (-0.5 * z * z).exp() * (0.8 + 0.4 * noise.unit())
                + if z > 2.0 { 3.0 * noise.unit() * (4.5 - z).max(0.0) } else { 0.0 })
            .round();
            series.push([
                text("cell", RECORDING),
                text("metric", "value_range_count"),
                text("stat", "count"),
                int("layer", i64::from(layer)),
                real("x", x),
                real("x_hi", x + width),
                real("value", count),
            ]);
        }
        for reserve in [16, 32, 64, 128] {
            let cut = middle * (1.9 - f64::from(reserve) / 300.0);
            series.push([
                text("cell", RECORDING),
                text("metric", "value_range_cut"),
                text("stat", "mean"),
                int("layer", i64::from(layer)),
                real("x", f64::from(reserve)),
                real("value", cut),
            ]);
        }
    }
}
