//! Rows of the table `calibration`: a fitted curve and the cells behind it, for people to look at.

use super::{FitRow, Predictor};
use crate::table::Value;

/// A row a knot of the curve, then a row a cell that it was fitted on, in the predictor's order.
#[must_use]
pub fn calibration_rows(predictor: &Predictor) -> Vec<Vec<Value>> {
    let knots = predictor.knots().map(|(proxy, height)| row(predictor, proxy, Some(height), None));
    knots.chain(predictor.rows.iter().map(|cell| row(predictor, cell.proxy, None, Some(cell)))).collect()
}

fn row(predictor: &Predictor, proxy: f64, height: Option<f64>, cell: Option<&FitRow>) -> Vec<Value> {
    let text = |value: &str| Value::Text(value.to_owned());
    let real = |value: Option<f64>| value.map_or(Value::Absent, Value::Real);
    let int =
        |value: Option<u64>| value.and_then(|v| i64::try_from(v).ok()).map_or(Value::Absent, Value::Int);
    let predicted = predictor.predict(proxy).ok();
    vec![
        text(if cell.is_some() { "cell" } else { "knot" }),
        text(&predictor.proxy),
        text(&predictor.outcome),
        cell.map_or(Value::Absent, |cell| text(&cell.policy)),
        int(cell.and_then(|cell| cell.budget).map(u64::from)),
        int(cell.and_then(|cell| cell.seed)),
        Value::Real(proxy),
        real(height.or(predicted.map(|found| found.value))),
        real(predicted.map(|found| found.low)),
        real(predicted.map(|found| found.high)),
        real(cell.map(|cell| cell.executed)),
        real(cell.and_then(|cell| cell.residual.map(|residual| cell.executed + residual))),
        int(u64::try_from(predictor.problems).ok()),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{CellKey, Observations};
    use super::*;
    use crate::results::{CALIBRATION_COLUMNS, table_of};

    // Four policies whose outcome is their proxy: the curve is the diagonal, and it holds every cell.
    #[test]
    fn knots_come_first_and_cells_have_what_they_gave() {
        let mut observed = Observations::default();
        for at in 1u32..=4 {
            let value = f64::from(at) / 8.0;
            observed.cells.push(CellKey { policy: format!("p{at}"), budget: Some(64), seed: None });
            observed.proxy.push(vec![Some(value); 5]);
            observed.outcome.push(vec![Some(value); 5]);
        }
        let predictor = Predictor::fit(&observed, ("attn_mass_recall", 1.0), "accuracy", "m").unwrap();
        let rows = calibration_rows(&predictor);
        let table = table_of(CALIBRATION_COLUMNS, &rows).unwrap();
        assert_eq!(table.rows(), 8);
        assert_eq!(table.value("kind", 3), Value::Text("knot".to_owned()));
        assert_eq!(table.value("executed", 3), Value::Absent);
        let (value, curve, executed) =
            (table.value("value", 5), table.value("curve", 5), table.value("executed", 5));
        assert_eq!((value, curve, executed), (Value::Real(0.25), Value::Real(0.25), Value::Real(0.25)));
        // Without p2, the curve from p1 to p3 is still the diagonal at p2.
        assert_eq!(table.value("left_out", 5), Value::Real(0.25));
    }
}
