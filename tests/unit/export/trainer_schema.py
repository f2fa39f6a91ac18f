"""Writes trainer_schema.json: what Kubeflow Trainer's resource definitions say of our manifests.

    python -m tests.unit.export.trainer_schema VERSION MANIFESTS DEFINITION ...

MANIFESTS is the output of `ftcluster export k8s --kind trainjob`, each DEFINITION a file of
manifests/base/crds of kubeflow/trainer. Kept are the types of the fields that the manifests have,
and the names of all fields beside them, so that one that is renamed or new shows.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

KEPT = ("type", "required", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern",
        "x-kubernetes-int-or-string")  # fmt: skip
FILE = Path(__file__).with_name("trainer_schema.json")


def used(schema: dict[str, Any], value: Any) -> dict[str, Any]:
    """The part of a schema that is about a value."""
    kept = {name: schema[name] for name in KEPT if name in schema}
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if known:
            kept["fields"] = sorted(known)
            kept["properties"] = {
                name: used(known[name], inner) for name, inner in value.items() if name in known
            }
        elif inner := schema.get("additionalProperties"):
            kept["values"] = used(inner, next(iter(value.values()), None))
    if isinstance(value, list) and value:
        parts = [used(schema["items"], one) for one in value]
        kept["items"] = parts[0]
        for part in parts[1:]:
            kept["items"] = merged(kept["items"], part)
    return kept


def merged(one: Any, other: Any) -> Any:
    """Two parts of the same schema together."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one
    names = [*one, *(name for name in other if name not in one)]
    return {
        name: merged(one[name], other[name]) if name in one and name in other
        else one.get(name, other.get(name))
        for name in names
    }  # fmt: skip


def problems(schema: dict[str, Any], value: Any, where: str = "") -> list[str]:
    """Return the problems of a value according to a schema of the file."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = schema.get("type")
    if "x-kubernetes-int-or-string" not in schema and kind and (
        not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))
    ):  # fmt: skip
        return [f"{where} is {value!r}, not of type {kind}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where} is {value!r}, not one of {schema['enum']}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{where} is {value}, less than {schema['minimum']}")
    if isinstance(value, dict) and ("fields" in schema or "required" in schema):
        found += [f"{where}.{name} is unknown" for name in value.keys() - {*schema["fields"]}]
        found += [f"{where}.{name} is missing" for name in schema.get("required", ())
                  if name not in value]  # fmt: skip
        found += [said for name, inner in value.items() if name in schema["fields"]
                  for said in problems(schema["properties"].get(name, {}), inner,
                                       f"{where}.{name}")]  # fmt: skip
    elif isinstance(value, dict):
        found += [said for name, inner in value.items()
                  for said in problems(schema.get("values", {}), inner,
                                       f"{where}.{name}")]  # fmt: skip
    if isinstance(value, list):
        found += [said for at, inner in enumerate(value)
                  for said in problems(schema.get("items", {}), inner,
                                       f"{where}[{at}]")]  # fmt: skip
    return found


def main(version: str, manifests: str, *definitions: str) -> None:
    documents = {one["kind"]: one for one in yaml.safe_load_all(Path(manifests).read_text())}
    kinds: dict[str, Any] = {}
    for file in definitions:
        spec = yaml.load(Path(file).read_text(), yaml.CSafeLoader)["spec"]
        for each in spec["versions"]:
            kind = spec["names"]["kind"]
            if (
                each["served"]
                and documents[kind]["apiVersion"] == f"{spec['group']}/{each['name']}"
            ):
                whole = each["schema"]["openAPIV3Schema"]["properties"]["spec"]
                kinds[kind] = used(whole, documents[kind]["spec"])
    facts = {
        "from": f"kubeflow/trainer {version}",
        "read": f"{datetime.now(UTC):%Y-%m-%d}",
        **kinds,
    }
    FILE.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
