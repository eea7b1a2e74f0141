//! Predictions beside the cells of a replay.

use super::{Prediction, Predictor};
use crate::table::{Column, Table, TableError, Value};

/// The cells with `predicted_accuracy`, its interval and the number of fitted cells, for every row of an eviction replay that has the
/// predictor's proxy. Where the proxy is outside of what was fitted there is none, and `lint` says so.
///
/// # Errors
/// When the table has such a column already.
pub fn predict_cells(cells: &Table, predictor: &Predictor) -> Result<Table, TableError> {
    let is_text = |name: &str, row: usize, word: &str| cells.value(name, row) == Value::Text(word.to_owned());
    let (mut predictions, mut lints) = (Vec::new(), Vec::new());
    for row in 0..cells.rows() {
        let is_meant = is_text("study", row, "eviction") && is_text("arm", row, "replay");
        let outcome = match cells.value(&predictor.proxy, row) {
            Value::Real(proxy) if is_meant => Some(predictor.predict(proxy)),
            _ => None,
        };
        let said = match cells.value("lint", row) {
            Value::Text(text) => Some(text),
            _ => None,
        };
        lints.push(match (&outcome, said) {
            (Some(Err(refused)), Some(said)) => Some(format!("{said}; no predicted accuracy: {refused}")),
            (Some(Err(refused)), None) => Some(format!("no predicted accuracy: {refused}")),
            (_, said) => said,
        });
        predictions.push(outcome.and_then(Result::ok));
    }
    let mut table = Table::new();
    for (name, column) in cells.names().iter().zip(cells.columns()) {
        match name.as_str() {
            "lint" => table.push(
                name,
                Column::Text(lints.iter().map(|lint| lint.as_deref().map(Into::into)).collect()),
            )?,
            _ => table.push(name, column.clone())?,
        }
    }
    let real =
        |of: fn(&Prediction) -> f64| Column::Real(predictions.iter().map(|p| p.as_ref().map(of)).collect());
    table.push("predicted_accuracy", real(|p| p.value))?;
    table.push("predicted_accuracy_lo", real(|p| p.low))?;
    table.push("predicted_accuracy_hi", real(|p| p.high))?;
    let fitted = i64::try_from(predictor.rows.len()).unwrap_or(i64::MAX);
    table
        .push("predicted_accuracy_n", Column::Int(predictions.iter().map(|p| p.map(|_| fitted)).collect()))?;
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::{CellKey, Observations};

    #[test]
    fn rows_in_range_are_predicted_and_others_say_why_not() {
        let mut observed = Observations::default();
        for policy in 0u32..5 {
            observed.cells.push(CellKey { policy: policy.to_string(), budget: None, seed: None });
            observed.proxy.push(vec![Some(f64::from(policy) / 8.0)]);
            observed.outcome.push(vec![Some(f64::from(policy) / 4.0)]);
        }
        let predictor = Predictor::fit(&observed, ("attn_mass_recall", 1.0), "accuracy", "m").unwrap();
        let text = |words: [&str; 4]| Column::Text(words.map(|word| Some(word.into())).to_vec());
        let mut cells = Table::new();
        cells.push("study", text(["eviction", "eviction", "exit", "eviction"])).unwrap();
        cells.push("arm", text(["replay", "replay", "replay", "real"])).unwrap();
        cells.push("lint", Column::Text(vec![None, Some("l".into()), None, None])).unwrap();
        cells
            .push("attn_mass_recall", Column::Real(vec![Some(0.25), Some(0.75), Some(0.25), Some(0.25)]))
            .unwrap();
        let found = predict_cells(&cells, &predictor).unwrap();
        assert_eq!(found.value("predicted_accuracy", 0), Value::Real(0.5));
        assert_eq!(found.value("predicted_accuracy_n", 0), Value::Int(5));
        for row in 1..4 {
            assert_eq!(found.value("predicted_accuracy", row), Value::Absent, "row {row}");
        }
        assert!(
            matches!(found.value("lint", 1), Value::Text(said) if said.starts_with("l; no predicted") && said.contains("0.75"))
        );
        assert_eq!(found.value("lint", 2), Value::Absent);
        assert!(predict_cells(&found, &predictor).is_err(), "twice");
    }
}
