//! Cells and tables of branch trees, pools and simulated serving, as those studies write them. No number is a measurement.

use super::rows::{Noise, Rows, int, real, text};
use kvlab_sim::results::{
    CALIBRATION_COLUMNS, CLAIM_COLUMNS, JOINT_COLUMNS, PHASE_COLUMNS, RECORDING, RETAINED_COLUMNS,
    STEP_COLUMNS, WORDING_COLUMNS,
};
use kvlab_sim::table::{Table, Value};

fn rate(id: &str, num: i64, den: i64) -> Vec<(String, Value)> {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let value = num as f64 / den as f64;
    let ends = [
        real(&format!("{id}_lo"), (value - 0.05).max(0.0)),
        real(&format!("{id}_hi"), (value + 0.05).min(1.0)),
    ];
    [real(id, value), int(&format!("{id}_num"), num), int(&format!("{id}_den"), den)]
        .into_iter()
        .chain(ends)
        .collect()
}

fn common(study: &str, cell: &str, policy: &str) -> Vec<(String, Value)> {
    vec![
        text("cell", cell),
        text("source", "math-12"),
        text("arm", "replay"),
        text("study", study),
        text("policy", policy),
        text("status", "ok"),
        int("sequences", 0),
    ]
}

/// A stack swept over τ, θ and ε, a pool policy over capacities, and arms of simulated serving.
pub(crate) fn cells(cells: &mut Rows) {
    let mut noise = Noise::new(5);
    for (x, tau) in [0.7, 0.8, 0.9].into_iter().enumerate() {
        for (y, theta) in [0.5, 1.0, 2.0].into_iter().enumerate() {
            for (z, epsilon) in [0.1, 0.5].into_iter().enumerate() {
                let mut row = common("trees", &format!("t{x}{y}{z}"), "rksc");
                row.extend([real("tau", tau), real("theta", theta), real("epsilon", epsilon)]);
                row.push(text(
                    "params",
                    &format!(
                        "{{\"share\":{{\"tau\":{tau}}},\"exit\":{{\"theta\":{theta},\"epsilon\":{epsilon}}}}}"
                    ),
                ));
                if y == 2 {
                    row.push(text("lint", "theta is vacuous: 2.000 nats is above every observed entropy that could stop a pass (largest 1.700)"));
                }
                let step = i64::try_from(3 - x + y + z).unwrap();
                row.extend(rate("share_rate", 40 * (3 - i64::try_from(x).unwrap()), 120));
                row.extend(rate("verify_skip_rate", 4, 24));
                row.extend(rate("verify_exit_rate", 12 * step, 80));
                row.extend(rate("verify_layer_skip_rate", 90 * step, 960));
                row.extend(rate("verify_work_rate", 9_000 - 900 * step, 9_600));
                row.extend(rate("tree_accuracy", 22 - step / 2, 24));
                row.extend(rate("harm_rate", step / 2, 24));
                cells.push(row);
            }
        }
    }
    for (policy, best) in [("belady", 0.9), ("lru", 0.6), ("depth-only", 0.7)] {
        for (at, blocks) in [64_i64, 160, 640].into_iter().enumerate() {
            let mut row = common("pool", &format!("{policy}{blocks}"), policy);
            #[expect(clippy::cast_possible_truncation, reason = "a small count")]
            let num = (1_000.0 * best * (0.4 + 0.3 * f64::from(u8::try_from(at).unwrap()))) as i64;
            row.push(int("pool_capacity_blocks", blocks));
            row.extend(rate("pool_hit_rate", num, 1_000));
            cells.push(row);
        }
    }
    for (arm, speedup) in [("no-kv", 1.0), ("exact", 1.8), ("rksc", 3.1)] {
        let mut row = common("serve", arm, arm);
        let half = 0.2 * noise.unit();
        row.extend([real("serve_latency_ms", 900.0 / speedup), int("serve_latency_ms_n", 50)]);
        row.extend([
            real("serve_speedup", speedup),
            real("serve_speedup_lo", speedup - half),
            real("serve_speedup_hi", speedup + half),
        ]);
        cells.push(row);
    }
}

/// What survives, and how much the range of a value has to do with its error.
pub(crate) fn series(series: &mut Rows, cell: &str) {
    for at in 0_i32..8 {
        for (metric, value, layer) in [
            ("survival", 0.2 + 0.1 * f64::from(at), None),
            ("range_error_correlation", 0.9 - 0.1 * f64::from(at), Some(at)),
        ] {
            let row = [
                text("cell", cell),
                text("metric", metric),
                text("stat", "mean"),
                real("x", f64::from(at)),
                real("value", value),
            ];
            series.push(row.into_iter().chain(layer.map(|layer| int("layer", i64::from(layer)))));
        }
    }
}

/// Recall by KV head of `cell`, and entropies of one sequence by layer and position.
pub(crate) fn maps(series: &mut Rows, cell: &str, layers: u16) {
    let mut noise = Noise::new(13);
    for layer in 0..layers {
        let mut push = |cell: &str, metric: &str, x: f64, x_hi: Option<f64>, value: f64| {
            let row = [
                text("cell", cell),
                text("metric", metric),
                text("stat", "mean"),
                int("layer", i64::from(layer)),
                real("x", x),
                real("value", value),
            ];
            series.push(row.into_iter().chain(x_hi.map(|x_hi| real("x_hi", x_hi))));
        };
        for head in 0_u8..3 {
            push(cell, "head_mass_recall", f64::from(head), None, 0.7 + 0.3 * noise.unit());
        }
        for column in 0_u8..40 {
            let x = 90.0 + f64::from(column);
            let value = 10.0 * noise.unit() * (1.0 - f64::from(layer) / f64::from(layers));
            push(RECORDING, "token_entropy_nats", x, Some(x + 1.0), value);
        }
    }
}

/// Step functions of every threshold of stacks called `labels`.
pub(crate) fn steps(labels: &[&str]) -> Table {
    let mut rows = Rows::of(STEP_COLUMNS);
    for label in labels {
        for axis in ["tau", "tau-conf", "margin", "theta", "epsilon"] {
            let mut above = None;
            for step in 0_i32..5 {
                let upto = (step < 4).then(|| 0.5 + 0.1 * f64::from(step));
                let mut row = vec![text("stack", label), text("group", label), text("axis", axis)];
                row.extend(
                    ["tau", "tau_conf", "margin", "theta_nats", "epsilon_nats"].map(|name| real(name, 0.65)),
                );
                row.extend(above.map(|above| real("above", above)));
                row.extend(upto.map(|upto| real("upto", upto)));
                let step = i64::from(step);
                row.extend([
                    int("shared_branches", 120 - 20 * step),
                    int("branches", 120),
                    int("skipped_problems", 20 - 4 * step),
                    int("problems", 24),
                ]);
                row.extend([
                    int("verified_branches", 20 + 20 * step),
                    int("exited_branches", 20),
                    int("layers_run", 300),
                    int("layers", 12),
                ]);
                row.extend([
                    int("correct_problems", 20),
                    int("harmed_problems", 2),
                    int("helped_problems", 1),
                    int("gradable_problems", 24),
                ]);
                rows.push(row);
                above = upto;
            }
        }
    }
    rows.table()
}

/// Facts of `problems` problems for a stack called `label`.
pub(crate) fn joint(label: &str, problems: i64) -> Table {
    let mut rows = Rows::of(JOINT_COLUMNS);
    let params = r#"{"share":{"kind":"asks","params":{"tau":0.8}},"verify":{"kind":"cgee","params":{"tau_conf":0.7,"margin":0.06,"rule":"either","relative_margin":0.08,"floor_scale":0.9}},"exit":{"kind":"entropy","params":{"theta":1.0,"epsilon":0.5,"unit":"nats"}},"winner":{"kind":"score-confidence","params":{}},"decode_exit":null}"#;
    let mut noise = Noise::new(11);
    for problem in 0..problems {
        let mut above = None;
        for upto in [Some(0.1 + 0.2), Some(0.9), None] {
            let mut row = vec![
                text("stack", label),
                text("group", label),
                text("params", params),
                real("nats", 1.0),
                int("layers", 12),
            ];
            row.extend([
                int("problem", problem),
                int("branches", 2),
                int("shared_branches", 1),
                int("prompt_tokens", 200),
                int("reused_tokens", 60),
            ]);
            row.extend([
                int("prefill_unshared", 2_400),
                int("prefill", 2_000),
                real("top", noise.unit()),
                real("gap", noise.unit()),
                real("relative_gap", noise.unit()),
            ]);
            row.extend(
                above
                    .map(|above| real("above", above))
                    .into_iter()
                    .chain(upto.map(|upto| real("upto", upto))),
            );
            row.push(text("stops", &format!("40,12;3,{},0.25;7,0.5,0.125|44,12", noise.unit())));
            row.extend([int("if_skipped", 3), text("verified", "0:0=3|1:0=3,1=1"), text("item", "an item")]);
            row.extend([
                ("gradable".to_owned(), Value::Bool(true)),
                ("full_correct".to_owned(), Value::Bool(true)),
            ]);
            rows.push(row);
            above = upto;
        }
    }
    rows.table()
}

/// The tables that are there to be drawn: `cell` holds tokens, `arms` are served, `stack` has a similarity gate; numbers are around `value`.
pub(crate) fn drawn(cell: &str, arms: &[&str], stack: &str, value: f64) -> Vec<(String, Table)> {
    let mut retained = Rows::of(RETAINED_COLUMNS);
    for seen in [96_i64, 160, 224] {
        for (from, upto, reason) in [
            (0, 3, "sink"),
            (10, 12, "value"),
            (20, 20 + seen / 8, "sampled"),
            (seen - 32, seen - 1, "recent"),
        ] {
            let places = [int("sequence", 0), int("layer", 3), int("kv_head", 1), int("seen", seen)];
            let run = [int("from", from), int("upto", upto), text("reason", reason), text("cell", cell)];
            retained.push(places.into_iter().chain(run));
        }
    }
    let mut phases = Rows::of(PHASE_COLUMNS);
    for (arm, item) in arms.iter().flat_map(|arm| ["p1", "p2"].map(|item| (arm, item))) {
        let times = ["waiting_ms", "gate_ms", "prefill_ms", "decode_ms", "verify_ms"];
        let times = times.into_iter().zip(1_u8..).map(|(name, at)| real(name, value / 5.0 * f64::from(at)));
        phases.push([text("cell", arm), text("item", item)].into_iter().chain(times));
    }
    let mut wordings = Rows::of(WORDING_COLUMNS);
    for level in 0_u8..4 {
        let sigma = value / (1.0 + f64::from(level));
        let quantiles =
            ["sigma_min", "sigma_p10", "sigma_p50", "sigma_p90", "sigma_max"].map(|name| real(name, sigma));
        let counts =
            [int("branches", 40), int("sharing", 20), int("both_answers", 40), int("changed_answers", 3)];
        let keys =
            [text("stack", stack), text("group", stack), real("tau", 0.8), int("level", i64::from(level))];
        wordings.push(keys.into_iter().chain(quantiles).chain(counts));
    }
    let mut claims = Rows::of(CLAIM_COLUMNS);
    for unit in ["times", "ms", "GiB", "share"] {
        let keys = [
            text("scenario", stack),
            text("claim", stack),
            text("unit", unit),
            text("published_text", "3.0×"),
        ];
        let ours = ["published", "as_published", "as_published_lo", "as_published_hi", "corrected"];
        claims.push(keys.into_iter().chain(ours.map(|name| real(name, value))));
    }
    let mut calibration = Rows::of(CALIBRATION_COLUMNS);
    for (kind, policy, at) in [("knot", None, 0.0), ("knot", None, 1.0), ("cell", Some(stack), 0.5)] {
        let mut row =
            vec![text("kind", kind), text("estimate", "attn_mass_recall"), text("outcome", "accuracy")];
        row.extend(policy.map(|policy| text("policy", policy)));
        row.extend([real("value", value * at), real("curve", value * at), int("problems", 20)]);
        row.extend([real("curve_lo", value * at - 0.1), real("curve_hi", value * at + 0.1)]);
        row.extend(policy.into_iter().flat_map(|_| [real("executed", value), real("left_out", value)]));
        calibration.push(row);
    }
    [
        ("retained", retained),
        ("phases", phases),
        ("wordings", wordings),
        ("claims", claims),
        ("calibration", calibration),
    ]
    .map(|(name, rows)| (name.to_owned(), rows.table()))
    .into()
}
