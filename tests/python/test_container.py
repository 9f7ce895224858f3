"""deploy/containers makes the image that the manifests and deploy/README.md ask for."""

import json
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

import namespaces
import trees
from own_sshd import wait_for
from trees import packages

yaml = pytest.importorskip("yaml")

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "deploy/containers"
MPIJOB = yaml.safe_load((ROOT / "deploy/mpijob.yaml").read_text())["spec"]
CONTAINERFILE = (CONTAINERS / "Containerfile").read_text()
BUILD = (CONTAINERS / "build").read_text()


def settings(name):
    """Of an ssh configuration: {keyword: value}."""
    lines = [line.split(None, 1) for line in (CONTAINERS / name).read_text().splitlines() if line.strip() and "#" not in line]
    return {words[0]: words[1] for words in lines}


def box(role):
    return MPIJOB["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0]


def test_it_has_what_the_manifests_start():
    sshd, config = box("Worker")["command"][0], box("Worker")["command"][-1]
    assert sshd == "/usr/sbin/sshd" and {"openssh-server", "openssh-client"} <= set(packages("image"))
    assert f"COPY --chown=1000:1000 sshd_config {config}" in CONTAINERFILE
    for manifest in (ROOT / "deploy").glob("*.yaml"):
        for path in re.findall(r"/opt/rueda/(examples/[\w/.]+)", manifest.read_text()):
            assert (ROOT / path).is_file(), path
        assert re.findall(r"image: (\S+)", manifest.read_text()) in ([], ["rueda:latest"], ["rueda:latest"] * 2)
    assert "COPY examples /opt/rueda/examples" in CONTAINERFILE and "NAME=rueda:latest" in BUILD
    # "python" is what they start.
    assert "python-is-python3" in packages("image")


def test_user_port_and_keys_are_those_of_the_mpijob():
    user, numbers = re.search(r"useradd .*--uid (\d+) (\w+)", CONTAINERFILE).group(2, 1)
    assert re.findall(r"^USER (\S+)", CONTAINERFILE, re.M) == [numbers] == [str(box("Worker")["securityContext"]["runAsUser"])]
    assert MPIJOB["sshAuthMountPath"] == f"/home/{user}/.ssh"
    server, client = settings("sshd_config"), settings("ssh_config")
    assert server["Port"] == client["Port"] == "2222"
    assert server["HostKey"] == MPIJOB["sshAuthMountPath"] + "/id_rsa" and server["StrictModes"] == "no"
    assert client["StrictHostKeyChecking"] == "no"
    page = (ROOT / "deploy/README.md").read_text()
    for text in (f"`{user}` ({numbers})", f"/home/{user}/.sshd_config", "Port 2222", "/opt/rueda/examples", "rueda:latest"):
        assert text in page, text


def test_everything_that_is_added_is_made_and_packages_are_listed_in_one_place():
    added = {word for line in re.findall(r"^(?:ADD|COPY) (.*)", CONTAINERFILE, re.M)
             for word in shlex.split(line)[:-1] if not word.startswith("--")}  # fmt: skip
    assert added == {"root.tar", "wheels", "examples", "ssh_config", "sshd_config"}
    for name in added:
        assert name in BUILD, name
    assert "apt" not in CONTAINERFILE
    assert "debian_packages image" in BUILD and "--packages containers" in BUILD
    assert set(packages("containers")) == {"mmdebstrap", "buildah"}
    assert not {"mmdebstrap", "buildah"} & set(packages("build tests"))


def test_the_script_explains_itself_and_refuses_what_it_cannot_do():
    help = subprocess.run([CONTAINERS / "build", "--help"], capture_output=True, text=True, check=True).stdout
    assert "deploy/containers/build [--wheel FILE]" in help and "#" not in help
    for words, said in ((["--wheel", "none.whl"], "there is no wheel"), (["--torch"], "unknown argument --torch"), (["--out"], "needs a value")):
        done = subprocess.run([CONTAINERS / "build", *words], capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr, done


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The image as its configuration and a Tree."""
    why_not = trees.why_not() or namespaces.why_not() or (None if shutil.which("buildah") else "no buildah here")
    if why_not:
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("image")
    (wheel,) = (ROOT / "build/wheel").glob("rueda-*.whl")
    done = subprocess.run([CONTAINERS / "build", "--wheel", wheel, "--out", folder / "image.tar"], capture_output=True, text=True, timeout=1200)
    if any(text in done.stdout + done.stderr for text in trees.NO_NETWORK):
        pytest.skip("Debian's archive cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["tar", "-xf", folder / "image.tar", "-C", folder], check=True)
    (manifest,) = json.loads((folder / "manifest.json").read_text())
    (layer,) = manifest["Layers"]
    assert any(tag.endswith("/library/rueda:latest") for tag in manifest["RepoTags"])  # what "rueda:latest" means
    (folder / "root").mkdir()
    subprocess.run(["tar", "-xf", folder / layer, "-C", folder / "root"], check=True)
    yield json.loads((folder / manifest["Config"]).read_text())["config"], trees.Tree(folder / "root")
    shutil.rmtree(folder)


@pytest.mark.slow
def test_it_runs_as_a_user_and_holds_no_secret_and_nothing_of_the_builder(image):
    config, tree = image
    assert (config["User"], config["WorkingDir"]) == ("1000", "/home/mpiuser")
    for name in ("tmp/wheels", "home/mpiuser/.ssh", "opt/rueda/examples/__pycache__"):
        assert not (tree.root / name).exists(), name
    for name in ("etc/resolv.conf", "etc/hostname"):  # empty: what buildah mounts its own on
        assert not (tree.root / name).exists() or (tree.root / name).read_text() == "", name
    assert list((tree.root / "etc/ssh").glob("ssh_host_*")) == []
    keys = subprocess.run(["grep", "-rlE", "BEGIN [A-Z ]*PRIVATE KEY", tree.root / "etc", tree.root / "home", tree.root / "root"],
                          capture_output=True, text=True)  # fmt: skip
    assert keys.stdout == ""
    assert tree.run("id", "-un").stdout == "mpiuser\n"
    done = tree.run("ruedarun", "-np", "2", "--no-prefix", "python", "/opt/rueda/examples/hello_allreduce.py", env=environment(config))
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2: the ranks add up to 1" for rank in range(2)]


def environment(config):
    return {**dict(entry.split("=", 1) for entry in config["Env"]), "HOME": "/home/mpiuser"}


@pytest.fixture()
def lab():
    hosts = namespaces.Lab(3, number=9)
    yield hosts
    hosts.close()


@pytest.mark.slow
def test_an_mpijob_runs_with_sshd_in_its_workers(image, lab, tmp_path):
    """The operator's part: a key pair and a hostfile that are mounted, names, the launcher's variables."""
    config, tree = image
    secret = tmp_path / "secret"
    secret.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-C", "", "-f", secret / "id_rsa"], check=True)
    shutil.copy(secret / "id_rsa.pub", secret / "authorized_keys")
    for file in secret.iterdir():
        file.chmod(0o644)  # as a Secret's files for a user who does not own them
    names = ["launcher.job.ns.svc", "job-worker-0.job.ns.svc", "job-worker-1.job.ns.svc"]
    (tree.root / "etc/hosts").write_text("".join(f"{lab.address(index)} {name}\n" for index, name in enumerate(names)))
    (tree.root / "etc/mpi").mkdir()
    (tree.root / "etc/mpi/hostfile").write_text("".join(f"{name} slots=2\n" for name in names[1:]))
    (tree.root / "etc/program.py").write_text(
        "import os, rueda\nrueda.init()\nprint(rueda.size(), os.uname().nodename, os.getuid())\n")

    def pod(index, command, extra=()):
        home = tmp_path / f"home{index}"
        shutil.copytree(tree.root / "home/mpiuser", home)
        (home / ".ssh").mkdir()
        subprocess.run(["chown", "-R", "1000:1000", home], check=True)
        mounts = (f"mount --bind {shlex.quote(str(home))} \"$root/home/mpiuser\"; mount -t tmpfs tmpfs \"$root/tmp\"; "
                  f"mount --bind -o ro {shlex.quote(str(secret))} \"$root/home/mpiuser/.ssh\"")
        return tree.words(command, env={**environment(config), **dict(extra)}, mounts=mounts, host=lab.hosts[index],
                          name=names[index].split(".")[0], folder="/home/mpiuser")

    workers = []
    try:
        for index in (1, 2):
            log = (tmp_path / f"sshd{index}").open("w")
            workers.append(subprocess.Popen(pod(index, box("Worker")["command"]), stdout=log, stderr=subprocess.STDOUT))
        operators = {"K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                     "OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                     "OMPI_MCA_orte_set_default_slots": "2"}
        command = [*box("Launcher")["command"][:2], "/etc/program.py"]
        done = subprocess.run(pod(0, command, operators), capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL)
        logs = "".join((tmp_path / f"sshd{index}").read_text() for index in (1, 2))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        said = sorted(line.split(": ", 1)[1] for line in done.stdout.splitlines() if "<stdout>" in line)
        assert said == [f"4 job-worker-{rank // 2} 1000" for rank in range(4)], done.stdout + done.stderr
        assert "4 ranks on 2 hosts, found in /etc/mpi/hostfile" in done.stdout + done.stderr
        # Nothing of the job is left in the workers: sshd alone.
        wait_for(lambda: len(lab.processes()) == len([pid for pid in lab.processes() if is_of_sshd(pid)]))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def is_of_sshd(pid):
    """A worker's sshd, or what has put it into its namespaces."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip() in ("sshd", "unshare")
    except OSError:
        return True
