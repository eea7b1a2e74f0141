"""Validates JSON files against a JSON Schema. Each further argument is a file with [{"name", "document", "valid"}]; what is not as said is printed."""

import json
import sys

import jsonschema

schema = json.load(open(sys.argv[1], encoding="utf-8"))
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
wrong = 0
for path in sys.argv[2:]:
    for case in json.load(open(path, encoding="utf-8")):
        error = jsonschema.exceptions.best_match(validator.iter_errors(case["document"]))
        if (error is None) != case["valid"]:
            wrong += 1
            print(case["name"], "is refused:" if error else "is accepted", error.json_path + ": " + error.message if error else "")
sys.exit(1 if wrong else 0)
