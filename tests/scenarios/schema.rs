//! The JSON Schema for editors: the file is what the program prints, and an independent validator agrees with the parser about what is one.

use super::yaml_files;
use kvlab_sim::scenario::{Scenario, schema};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn reference() -> String {
    std::fs::read_to_string(root().join("scenarios/reference.yaml")).unwrap()
}

#[test]
fn the_schema_in_the_repository_is_the_one_that_is_printed() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvlab")).args(["list", "schema"]).output().unwrap();
    let file = std::fs::read(root().join("scenarios/schema.json")).unwrap();
    assert!(output.stdout == file, "`kvlab list schema >scenarios/schema.json` brings it up to date");
}

/// Every key of the reference has a meaning in the schema, and its default there is what the comment stands beside.
#[test]
fn keys_have_the_meanings_of_the_reference() {
    let schema = schema(&reference());
    let key = |path: &[&str]| {
        path.iter().fold(&schema, |place, key| match *key {
            "[]" => &place["items"],
            key => &place["properties"][key],
        })
    };
    let budgets = key(&["eviction", "budgets"]);
    assert!(budgets["description"].as_str().unwrap().starts_with("C, tokens resident per layer"));
    assert_eq!(key(&["eviction", "recent"])["default"], json!(16));
    let place = key(&["tune", "constraints"]);
    let meaning = place["description"].as_str().unwrap();
    assert!(meaning.contains("harm_rate at most 0.01 (trees), attn_mass_recall at least 0.9"), "{meaning}");
    assert!(key(&["expect"])["description"].as_str().unwrap().starts_with("What the results are to be"));
    let ids = key(&["eviction", "policies", "[]", "use"])["enum"].as_array().unwrap();
    assert!(ids.contains(&json!("vase-attnv")) && !ids.contains(&json!("vase-atnv")));
}

fn parsed(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

/// `document` with a key that nobody knows in one of its maps, for every map.
fn with_a_stranger(document: &Value) -> Vec<(String, Value)> {
    fn maps(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.push(path.to_owned());
                map.iter().for_each(|(key, value)| maps(value, &format!("{path}/{key}"), found));
            }
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(at, value)| maps(value, &format!("{path}/{at}"), found))
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    maps(document, "", &mut found);
    let one = |path: String| {
        let mut changed = document.clone();
        changed.pointer_mut(&path).unwrap()["stranger"] = json!(1);
        (path, changed)
    };
    found.into_iter().map(one).collect()
}

#[test]
fn an_independent_validator_agrees_about_shipped_scenarios_and_about_mistakes() {
    let given = std::env::var("KVLAB_PYTHON").ok();
    let python = given.clone().unwrap_or_else(|| "python3".to_owned());
    let can_import = Command::new(&python).args(["-c", "import jsonschema"]).output();
    if given.is_none() && !can_import.is_ok_and(|output| output.status.success()) {
        crate::durability::skipped("no python3 with jsonschema; name one in KVLAB_PYTHON");
        return;
    }
    let mut cases = Vec::new();
    let mut case = |name: String, document: Value, valid: bool| {
        cases.push(json!({"name": name, "document": document, "valid": valid}));
    };
    let mut files: Vec<PathBuf> = Vec::new();
    yaml_files(&root().join("scenarios"), &mut files);
    assert!(files.len() > 15);
    for path in files {
        case(path.display().to_string(), parsed(&std::fs::read_to_string(&path).unwrap()), true);
    }
    // A key that nobody knows, in every map of the reference. Parameters of cost models are the models' own.
    let full = parsed(&reference());
    let strangers = with_a_stranger(&full);
    assert!(strangers.len() > 60, "{}", strangers.len());
    for (path, document) in strangers {
        let text = serde_yaml::to_string(&document).unwrap();
        assert!(Scenario::parse(&text, "test").is_err(), "{path}");
        case(format!("a stranger in {path}"), document, path == "/serve/cost/params");
    }
    let mut accepted = Vec::new();
    for (key, other) in [
        ("/id", json!(["x"])),
        ("/eviction/budgets", json!("many")),
        ("/eviction/recent", json!(1.5)),
        ("/eviction/policies/0/use", json!("fulll")),
        ("/eviction/policies/1/with/value_share", json!("half")),
        ("/eviction/policies/1/with/reserved", json!(3)),
        ("/eviction/policies/2/stack/score/kind", json!("window-mas")),
        ("/eviction/policies/2/stack/granularity", json!("block")),
        ("/exit/lens", json!(["final"])),
        ("/pool/policies/0/use", json!("lruu")),
        ("/pool/stream/kind", json!("zipff")),
        ("/trees/stacks/0/share/params/alpha", json!("high")),
        ("/trees/stacks/0/sweep", json!({"share.taau": 1})),
        ("/trees/steps", json!(["taau"])),
        ("/tune/method", json!("sidak")),
        ("/tune/constraints", json!([{"metric": "harm", "at_most": 1}])),
        ("/compare/by", json!("sequence")),
        ("/expect/0/metric", json!("atn_mass_recall")),
        ("/expect/0/where", json!({"polcy": "full"})),
        ("/expect/0/where", json!({"policy": 5})),
        ("/seeds", json!([])),
    ] {
        let mut document = full.clone();
        *document.pointer_mut(key).unwrap_or_else(|| panic!("no {key}")) = other;
        let text = serde_yaml::to_string(&document).unwrap();
        if Scenario::parse(&text, "test").is_ok() {
            accepted.push(key);
        }
        case(format!("another {key}"), document, false);
    }
    for (name, change) in
        [("a policy without use or stack", json!([{"label": "x"}])), ("no label", json!([{"stack": {}}]))]
    {
        let mut document = full.clone();
        document["eviction"]["policies"] = change;
        case(name.to_owned(), document, false);
    }
    let folder = tempfile::tempdir().unwrap();
    let cases_file = folder.path().join("cases.json");
    std::fs::write(&cases_file, Value::from(cases).to_string()).unwrap();
    let script = root().join("tests/support/schema.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(root().join("scenarios/schema.json"))
        .arg(&cases_file)
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
