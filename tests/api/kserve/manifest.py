"""Whether every field of examples/deploy/kserve is one of KServe's or Kubernetes', and of the right type.

`python -m tests.api.kserve.manifest`, in an environment that has `kserve`, whose models are generated from the
definitions of its resources. Run by test_python_client.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import kserve
import yaml
from kubernetes import client as kubernetes

FOLDER = Path(__file__).parents[3] / "examples/deploy/kserve"
KINDS = {
    ("serving.kserve.io/v1alpha1", "ClusterServingRuntime"): "V1alpha1ClusterServingRuntime",
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): "V1alpha1ServingRuntime",
    ("serving.kserve.io/v1beta1", "InferenceService"): "V1beta1InferenceService",
}
PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "object": (object,),
    "ResourceQuantity": (str, int),
    "V1beta1MetricQuantity": (str, int),
}


KUBERNETES = re.compile(
    r"^K8sIoApi[A-Z][a-z]+(?=V\d)"
)  # how newer releases of kserve call what is not theirs


def model(name: str) -> Any:
    found = getattr(kserve, name, None) or getattr(kubernetes, KUBERNETES.sub("", name), None)
    assert found is not None, f"no model {name}"
    return found


def faults(value: Any, type_: str, path: str) -> list[str]:
    if item := re.fullmatch(r"[Ll]ist\[(.*)\]", type_):
        if not isinstance(value, list):
            return [f"{path}: expected a list"]
        return [f for i, one in enumerate(value) for f in faults(one, item[1], f"{path}[{i}]")]
    if item := re.fullmatch(r"[Dd]ict[(\[]str, (.*)[)\]]", type_):
        return [f for key, one in value.items() for f in faults(one, item[1], f"{path}.{key}")]
    if type_ in PLAIN:
        return [] if isinstance(value, PLAIN[type_]) else [f"{path}: expected {type_}, got {value!r}"]
    of = model(type_)
    attributes = {name: attribute for attribute, name in of.attribute_map.items()}
    found = []
    for key, one in value.items():
        if key not in attributes:
            found.append(f"{path}.{key}: not a field of {type_}")
        else:
            found += faults(one, of.openapi_types[attributes[key]], f"{path}.{key}")
    return found


def main() -> int:
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        documents = [*yaml.safe_load_all(path.read_text())]
        for document in [*documents, *(one for made in documents for one in made.get("objects", ()))]:
            if kind := KINDS.get((document["apiVersion"], document["kind"])):  # it has no LLMInferenceService
                found += faults(document, kind, document["kind"])
    print("\n".join(found) or "every field is known")  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
