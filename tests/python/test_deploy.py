"""The manifests of deploy/ against the fields that their kinds have: unknown ones, wrong types and missing ones are
errors. The fields of Kubernetes, JobSet and Trainer come from Kubeflow's own package (kubernetes_fields.py); those of
MPIJob v2beta1, which no package has, are written down here from its documentation."""

import copy
import json
import os
import pathlib
import re
import subprocess

import pytest

import worlds

yaml = pytest.importorskip("yaml")

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = HERE.parents[1] / "deploy"
FIELDS = {
    **json.loads((HERE / "kubernetes_fields.json").read_text()),
    "MPIJob": {"apiVersion": "str!", "kind": "str!", "metadata": "IoK8sApimachineryPkgApisMetaV1ObjectMeta!",
               "spec": "MPIJobSpec!"},
    "MPIJobSpec": {"slotsPerWorker": "int", "runPolicy": "MPIRunPolicy", "mpiReplicaSpecs": "MPIReplicas!",
                   "sshAuthMountPath": "str", "launcherCreationPolicy": "str", "runLauncherAsWorker": "bool",
                   "mpiImplementation": "str"},
    "MPIRunPolicy": {"cleanPodPolicy": "str", "ttlSecondsAfterFinished": "int", "activeDeadlineSeconds": "int",
                     "backoffLimit": "int", "schedulingPolicy": "{any}", "suspend": "bool", "managedBy": "str"},
    "MPIReplicas": {"Launcher": "MPIReplica!", "Worker": "MPIReplica"},
    "MPIReplica": {"replicas": "int", "template": "IoK8sApiCoreV1PodTemplateSpec!", "restartPolicy": "str"},
}
KINDS = {"kubeflow.org/v2beta1 MPIJob": "MPIJob", "jobset.x-k8s.io/v1alpha2 JobSet": "JobsetV1alpha2JobSet",
         "trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
         "trainer.kubeflow.org/v1alpha1 TrainJob": "TrainerV1alpha1TrainJob"}
SCALARS = {"str": str, "int": int, "bool": bool}


def faults(value, kind, where=""):
    """What is wrong with a value of a type, as "path: why"."""
    if kind == "any":
        return []
    if kind[0] in "[{":
        wanted = list if kind[0] == "[" else dict
        if not isinstance(value, wanted):
            return [f"{where}: expected a {wanted.__name__}"]
        entries = enumerate(value) if wanted is list else value.items()
        return [fault for key, entry in entries for fault in faults(entry, kind[1:-1], f"{where}.{key}")]
    if kind in SCALARS:
        right = isinstance(value, SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if right else [f"{where}: expected {kind}, not {value!r}"]
    if not isinstance(value, dict):
        return [f"{where}: expected {kind}"]
    fields = FIELDS[kind]
    found = [f"{where}.{name}: no field of {kind}" for name in value if name not in fields]
    found += [f"{where}.{name}: is missing" for name, of in fields.items() if of[-1] == "!" and name not in value]
    for name in value.keys() & fields.keys():
        found += faults(value[name], fields[name].rstrip("!"), f"{where}.{name}")
    return found


def manifests():
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted(DEPLOY.glob("*.yaml"))}


def kind_of(manifest):
    return KINDS[f"{manifest['apiVersion']} {manifest['kind']}"]


def every(value, key):
    """All values under a key, however deep."""
    if isinstance(value, list):
        return [found for entry in value for found in every(entry, key)]
    if not isinstance(value, dict):
        return []
    own = [value[key]] if key in value else []
    return own + [found for entry in value.values() for found in every(entry, key)]


@pytest.mark.parametrize("name", ["jobset.yaml", "mpijob.yaml", "runtime.yaml", "trainjob.yaml"])
def test_manifests_have_only_fields_that_there_are(name):
    manifest = manifests()[name]
    assert faults(manifest, kind_of(manifest)) == []


def test_every_manifest_is_looked_at():
    assert len(manifests()) == 4


def test_what_is_wrong_is_found():
    sound = manifests()["jobset.yaml"]

    def faults_with(change):
        changed = copy.deepcopy(sound)
        change(changed["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0], changed)
        return faults(changed, kind_of(changed))

    assert faults_with(lambda box, _: box.update(commandline=["true"])) == [
        ".spec.replicatedJobs.0.template.spec.template.spec.containers.0.commandline: no field of IoK8sApiCoreV1Container"]
    assert any("expected str" in fault for fault in faults_with(lambda box, _: box["env"][1].update(value=2)))
    assert any("expected a list" in fault for fault in faults_with(lambda box, _: box.update(command="ruedarun")))
    assert any("name: is missing" in fault for fault in faults_with(lambda box, _: box.pop("name")))
    assert any("no field" in fault for fault in faults_with(lambda _, job: job["spec"].update(replicas=2)))
    assert any("expected int" in fault for fault in faults_with(
        lambda _, job: job["spec"]["replicatedJobs"][0].update(replicas=True)))


def test_no_flag_is_needed_and_no_container_is_roots():
    for name, manifest in manifests().items():
        boxes = [box for boxes in every(manifest, "containers") for box in boxes] or [manifest["spec"]["trainer"]]
        for box in boxes:
            command = box["command"]
            assert command[:2] == ["ruedarun", "python"] or command[0] == "/usr/sbin/sshd", name
        for pod in every(manifest, "template"):
            if "containers" in pod.get("spec", {}):
                spec = pod["spec"]
                for box in spec["containers"]:
                    context = {**spec.get("securityContext", {}), **box.get("securityContext", {})}
                    assert context["runAsNonRoot"] is True and context["runAsUser"] == 1000, name
                    assert context["allowPrivilegeEscalation"] is False, name


def jobset_environment(rank):
    box = every(manifests()["jobset.yaml"], "containers")[0][0]
    return {entry["name"]: entry.get("value", str(rank)) for entry in box["env"]}


def refusal(environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PET_") and name != "RUEDA_KEY_FILE"}
    done = subprocess.run([worlds.ruedarun(), "true"], capture_output=True, text=True, timeout=90,
                          env={**kept, **environment})
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_ruedarun_reads_what_the_jobset_sets():
    said = refusal(jobset_environment(1))
    # Here the key is not mounted.
    assert "4 ranks on 2 nodes" in said and "job key: /etc/rueda/key/key cannot be read" in said


def test_the_secret_is_the_one_that_ruedarun_names():
    environment = jobset_environment(1)
    del environment["RUEDA_KEY_FILE"]
    name, key = re.search(r"create secret generic (\S+) --from-literal=(\w+)=", refusal(environment)).groups()
    for manifest in ("jobset.yaml", "runtime.yaml"):
        assert every(manifests()[manifest], "secretName") == [name], manifest
        mounts = [mount for mounts in every(manifests()[manifest], "volumeMounts") for mount in mounts]
        folder = next(mount["mountPath"] for mount in mounts if mount["name"] == "key")
        files = [entry["value"] for entries in every(manifests()[manifest], "env") for entry in entries
                 if entry["name"] == "RUEDA_KEY_FILE"]
        assert files == [f"{folder}/{key}"], manifest
