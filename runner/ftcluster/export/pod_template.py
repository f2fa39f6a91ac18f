"""The user's template of pods: fields that a cluster requires, such as tolerations.

The file is a part of a Pod as Kubernetes defines it, with `metadata` and `spec`. ftcluster adds the
file's fields to the pods of a training run, and sets all other fields itself. Pure functions only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftcluster.errors import raise_together
from ftcluster.recipe.yaml_loader import read_keys

# fields of PodSpec, by type, that ftcluster does not set and that give no rights on the node
FIELDS = {
    "affinity": dict, "dnsConfig": dict, "dnsPolicy": str, "hostAliases": list,
    "imagePullSecrets": list, "nodeSelector": dict, "preemptionPolicy": str,
    "priorityClassName": str, "runtimeClassName": str, "schedulerName": str,
    "schedulingGates": list, "serviceAccountName": str, "tolerations": list,
    "topologySpreadConstraints": list,
}  # fmt: skip
SECTIONS = ("metadata", "spec")
OF_PODS = {"apiVersion": "v1", "kind": "Pod"}
TYPES = {dict: "a mapping", list: "a list of mappings", str: "a string"}
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1123, as a namespace's name
# at most 63 characters, and at most 253 in the prefix ("Labels and Selectors" in Kubernetes' docs)
LABEL_PART = r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"((?=[^/]{{1,253}}/){DNS_LABEL}(\.{DNS_LABEL})*/)?{LABEL_PART}"
KEY = re.compile(LABEL_KEY, re.ASCII)
VALUE = re.compile(rf"({LABEL_PART})?", re.ASCII)
RESERVED = re.compile(r"app\.kubernetes\.io/.*|sidecar\.istio\.io/inject")
HINT = (
    "the file is a part of a Pod: metadata with labels and annotations, and spec with "
    f"{', '.join(sorted(FIELDS))}; change other fields in the manifests, for example with kustomize"
)


@dataclass(frozen=True)
class PodTemplate:
    """Fields that the user adds to the pods.

    Attributes:
        node_selector: labels of the nodes.
        spec: all other fields of the pods' specification.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


EMPTY = PodTemplate()


def read_pod_template(text: str, source: str) -> PodTemplate:
    """Return the fields of a pod template.

    Args:
        source: name of the file, for messages.

    Raises:
        RecipeError: the text is not YAML or not a mapping.
        InputError: a field is unknown, reserved or of another type; lists all problems.
    """
    values, places = read_keys(text, source, SECTIONS)
    problems = [
        f"{places[key]}: {problem}"
        for key, value in values.items()
        for problem in _problems(key, value)
    ]
    raise_together(problems, f"{source} is not a valid pod template", HINT)
    spec = {
        key.removeprefix("spec."): value for key, value in values.items() if key.startswith("spec.")
    }
    return PodTemplate(
        labels=values.get("metadata.labels", {}),
        annotations=values.get("metadata.annotations", {}),
        node_selector=spec.pop("nodeSelector", {}),
        spec=spec,
    )


def _problems(key: str, value: Any) -> list[str]:
    """Return the problems of one field of the file."""
    section, _, name = key.partition(".")
    if section == "spec" and name in FIELDS:
        kind = FIELDS[name]
        if not isinstance(value, kind) or (
            kind is list and not all(isinstance(item, dict) for item in value)
        ):
            return [f"{key} must be {TYPES[kind]}"]
        return _wrong_labels(key, value) if name == "nodeSelector" else []
    if key == "metadata.labels":
        reserved = [
            f"{key}: ftcluster sets {label}" for label in dict.fromkeys(value or ())
            if RESERVED.fullmatch(str(label))
        ]  # fmt: skip
        return _wrong_labels(key, value) + reserved
    if key == "metadata.annotations":
        return [] if _is_texts(value) else [f"{key} must be a mapping of names to strings"]
    if key in OF_PODS:
        return [] if value == OF_PODS[key] else [f"{key} must be {OF_PODS[key]}"]
    if key in SECTIONS:
        return [f"{key} must be a mapping"]
    return [f"{key} is not a field of the template"]


def _wrong_labels(key: str, value: Any) -> list[str]:
    if not _is_texts(value):
        return [f"{key} must be a mapping of names to strings: quote numbers, true and false"]
    return [
        f"{key}: {name!r}: {text!r} is not a valid label" for name, text in value.items()
        if not KEY.fullmatch(name) or not VALUE.fullmatch(text)
    ]  # fmt: skip


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
