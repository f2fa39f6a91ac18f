"""Writes trainer_schema.json: the parts of Kubeflow's resource definitions that manifests use.

    python -m tests.unit.export.trainer_schema VERSIONS FILE ...

Each FILE is the output of `ftcluster export k8s` for one kind, or a resource definition from
manifests/base/crds of kubeflow/trainer: of the newest Trainer for TrainingRuntime and TrainJob, of
v1.9 for PyTorchJob. The facts have the types of the fields that the manifests use, and the names of
all their neighbours, so that a test notices a field that was renamed or is new.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

KEPT = ("type", "required", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern",
        "x-kubernetes-int-or-string")  # fmt: skip
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
FILE = Path(__file__).with_name("trainer_schema.json")


def used(schema: dict[str, Any], value: Any) -> dict[str, Any]:
    """Return the part of a schema that applies to a value."""
    kept = {name: schema[name] for name in KEPT if name in schema}
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if properties:
            kept["fields"] = sorted(properties)
            kept["properties"] = {
                name: used(properties[name], inner)
                for name, inner in value.items()
                if name in properties
            }
        elif inner := schema.get("additionalProperties"):
            kept["values"] = used(inner, next(iter(value.values()), None))
    if isinstance(value, list) and value:
        parts = [used(schema["items"], item) for item in value]
        kept["items"] = parts[0]
        for part in parts[1:]:
            kept["items"] = merged(kept["items"], part)
    return kept


def merged(first: Any, second: Any) -> Any:
    """Return the union of two parts of the same schema."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return first
    names = [*first, *(name for name in second if name not in first)]
    return {
        name: merged(first[name], second[name]) if name in first and name in second
        else first.get(name, second.get(name))
        for name in names
    }  # fmt: skip


def problems(schema: dict[str, Any], value: Any, where: str = "") -> list[str]:
    """Return the problems of a value according to a schema in the file."""
    kind = schema.get("type")
    if "x-kubernetes-int-or-string" not in schema and kind and (
        not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool))
    ):  # fmt: skip
        return [f"{where} is {value!r}, not of type {kind}"]
    wrong = []
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{where} is {value!r}, not one of {schema['enum']}")
    if "minimum" in schema and value < schema["minimum"]:
        wrong.append(f"{where} is {value}, less than {schema['minimum']}")
    if isinstance(value, dict) and ("fields" in schema or "required" in schema):
        fields = schema["fields"]
        wrong += [f"{where}.{name} is unknown" for name in value.keys() - {*fields}]
        required = schema.get("required", ())
        wrong += [f"{where}.{name} is missing" for name in required if name not in value]
        inner_schemas = {name: schema["properties"].get(name, {}) for name in fields}
    elif isinstance(value, dict):
        inner_schemas = dict.fromkeys(value, schema.get("values", {}))
    if isinstance(value, dict):
        for name, inner in value.items():
            wrong += problems(inner_schemas.get(name, {}), inner, f"{where}.{name}")
    if isinstance(value, list):
        for place, item in enumerate(value):
            wrong += problems(schema.get("items", {}), item, f"{where}[{place}]")
    return wrong


def main(versions: str, *files: str) -> None:
    """Write the facts."""
    documents: dict[str, Any] = {}
    definitions = []
    for file in files:
        for document in yaml.load_all(Path(file).read_text(), yaml.CSafeLoader):
            if document["kind"] == "CustomResourceDefinition":
                definitions.append(document["spec"])
            else:
                documents[document["kind"]] = document
    kinds: dict[str, Any] = {}
    for definition in definitions:
        kind = definition["names"]["kind"]
        for version in definition["versions"]:
            name = f"{definition['group']}/{version['name']}"
            if version["served"] and documents[kind]["apiVersion"] == name:
                whole = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
                kinds[kind] = used(whole, documents[kind]["spec"])
    facts = {"from": versions, "read": f"{datetime.now(UTC):%Y-%m-%d}", **kinds}
    FILE.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
