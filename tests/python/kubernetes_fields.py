"""Writes kubernetes_fields.json: the fields of the Kubernetes kinds that deploy/ uses, and their types.

    pip download --no-deps kubeflow-trainer-api==2.3.0 && unzip -d FOLDER kubeflow_trainer_api-*.whl
    python tests/python/kubernetes_fields.py FOLDER

The package (Apache-2.0, The Kubeflow Authors) has a class for each type of Kubernetes, JobSet and Trainer; their
sources are read, not run, and names and types of fields alone are kept. "!" marks a field that must be there.
"""

import json
import pathlib
import re
import sys

ROOTS = ("JobsetV1alpha2JobSet", "TrainerV1alpha1ClusterTrainingRuntime", "TrainerV1alpha1TrainJob",
         "IoK8sApiCoreV1PodTemplateSpec")
FIELD = re.compile(r"^    (\w+): (.+?)(?: = Field\((.*)\))?$", re.M)
ALIAS = re.compile(r'alias="([^"]+)"')
PLAIN = {"StrictStr": "str", "str": "str", "StrictInt": "int", "StrictBool": "bool", "datetime": "str", "Any": "any",
         "object": "any", "StrictFloat": "any"}


def type_of(text):
    """"str", "[int]", "{str}" or the name of a class."""
    text = text.strip()
    for outer, shape in (("Optional", "%s"), ("List", "[%s]"), ("Dict", "{%s}"), ("Annotated", "%s")):
        if text.startswith(outer + "["):
            inner = text[len(outer) + 1:-1]
            if outer == "Dict":
                inner = inner.split(",", 1)[1]
            if outer == "Annotated":
                inner = inner.split(",", 1)[0]
            return shape % type_of(inner)
    return PLAIN.get(text, text)


def fields_of(source):
    body = source[source.index("(BaseModel):"):]
    body = body[:body.index("__properties")]
    return {(ALIAS.search(rest) or [None, name])[1]: type_of(kind) + ("" if kind.startswith("Optional") else "!")
            for name, kind, rest in FIELD.findall(body)}


def main(folder):
    sources = {}
    for path in pathlib.Path(folder).glob("kubeflow_trainer_api/models/*.py"):
        named = re.search(r"^class (\w+)\(BaseModel\):", path.read_text(), re.M)
        if named and "__properties" in path.read_text():  # others are one of several types: "any"
            sources[named[1]] = path.read_text()
    found, wanted = {}, list(ROOTS)
    while wanted:
        name = wanted.pop()
        if name in found or name not in sources:
            continue
        found[name] = fields_of(sources[name])
        wanted += [re.sub(r"[\[\]{}!]", "", kind) for kind in found[name].values()]
    for fields in found.values():
        for name, kind in fields.items():
            known = re.sub(r"[\[\]{}!]", "", kind)
            if known not in found and known not in PLAIN.values():
                fields[name] = kind.replace(known, "any")
    lines = [f"{json.dumps(name)}: {json.dumps(found[name], separators=(', ', ': '))}" for name in sorted(found)]
    target = pathlib.Path(__file__).with_suffix(".json")
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
