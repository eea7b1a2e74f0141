//! Results folders as `plot` and `report` read them: several shown together, and what `kvlab tune` recommends added to them.

use crate::exit::CliError;
use kvlab_sim::results::{RECOMMENDED_COLUMNS, Results, read, table_of};
use kvlab_sim::scenario::Scenario;
use kvlab_sim::table::Value;
use std::path::{Path, PathBuf};

/// The studies in `folders` as one, with the recommendation in the folder `tuned`, where there is one.
pub(crate) fn together(folders: &[PathBuf], tuned: Option<&Path>) -> Result<Results, CliError> {
    let studies = folders.iter().map(|folder| read(folder)).collect::<Result<Vec<Results>, _>>()?;
    let mut results = kvlab_plots::overlaid(studies)?;
    if let Some(folder) = tuned {
        let path = folder.join("tune.json");
        let text =
            std::fs::read_to_string(&path).map_err(|source| CliError::Io { path: path.clone(), source })?;
        let rows = recommended(&text).map_err(|reason| CliError::Invalid { path, reason })?;
        let table = table_of(RECOMMENDED_COLUMNS, &rows)?;
        results.more.push(("recommended".to_owned(), table));
    }
    Ok(results)
}

/// The rows of `recommended` from what `kvlab tune` wrote.
fn recommended(json: &str) -> Result<Vec<Vec<Value>>, String> {
    let report: serde_json::Value =
        serde_json::from_str(json).map_err(|error| format!("not what `kvlab tune` writes: {error}"))?;
    let word = |key: &str| {
        report[key]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("`{key}` is missing: not what `kvlab tune` writes"))
    };
    let (stack, source) = (word("tuned")?, word("source")?);
    let Some(setting) = report["chosen"]["setting"].as_object() else {
        return Err("it recommends nothing: no setting was certified".to_owned());
    };
    let guarantee: Vec<&str> = report["chosen"]["guarantee"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|said| said.as_str())
        .collect();
    let guarantee = guarantee.join(" ");
    let params = params(report["chosen"]["yaml"].as_str().unwrap_or_default())?;
    let rows: Vec<Vec<Value>> = setting
        .iter()
        .filter_map(|(axis, value)| {
            let texts = [&stack, &params, &source, axis].map(|text| Value::Text(text.clone()));
            let rest = [Value::Real(value.as_f64()?), Value::Text(guarantee.clone())];
            Some(texts.into_iter().chain(rest).collect())
        })
        .collect();
    if rows.is_empty() {
        return Err(
            "its setting has no thresholds: only recommendations for branch trees are drawn".to_owned()
        );
    }
    Ok(rows)
}

/// The effective parameters of the stack that is recommended, from the scenario that `kvlab tune` gives for it.
fn params(yaml: &str) -> Result<String, String> {
    let scenario = Scenario::parse(yaml, "the recommended scenario").map_err(|error| error.to_string())?;
    let plan = scenario.plan(0);
    let stack = plan.trees.first().map(|plan| plan.stack.as_ref());
    match stack {
        Some(Ok(stack)) => Ok(stack.params().to_string()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("it recommends no stack over branch trees: only those are drawn".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_threshold_of_the_setting_is_a_row_with_the_guarantee() {
        let yaml =
            "id: t\nwhy: w\ntrees: {stacks: [{label: tuned, share: {kind: asks, params: {tau: 0.85}}}]}\n";
        let setting = serde_json::json!({"tau": 0.85, "theta": 1.5});
        let chosen = serde_json::json!({"setting": setting, "guarantee": ["A.", "B."], "yaml": yaml});
        let json = serde_json::json!({"tuned": "rksc", "source": "t", "chosen": chosen});
        let rows = recommended(&json.to_string()).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            rows[1][3..],
            [Value::Text("theta".into()), Value::Real(1.5), Value::Text("A. B.".into())]
        );
        assert!(matches!(&rows[0][1], Value::Text(params) if params.contains("\"tau\":0.85")));
    }

    #[test]
    fn what_is_no_recommendation_is_refused_in_words() {
        for (json, part) in [
            ("{", "not what"),
            ("{}", "`tuned` is missing"),
            (r#"{"tuned": "a", "source": "b", "chosen": null}"#, "no setting was certified"),
            (
                r#"{"tuned": "a", "source": "b", "chosen": {"setting": {"tau": 1}}}"#,
                "the recommended scenario",
            ),
        ] {
            let error = recommended(json).unwrap_err();
            assert!(error.contains(part), "{json}: {error}");
        }
    }
}
