"""The files of docs/clusters: they parse, and tell every rank what tfdp reads."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tfdp import cluster

FOLDER = pathlib.Path(__file__).parent.parent.parent.parent / "docs" / "clusters"
MANIFEST = FOLDER / "kubernetes.yaml"


def pod_script():
    """The shell script of the manifest's only container."""
    text = re.search(r"args:\n +- \|\n(.*?)\n +env:\n", MANIFEST.read_text(), re.DOTALL)[1]
    return textwrap.dedent(text)


def stub(folder, name, body):
    """Puts a program before all others on the PATH and returns that."""
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("name", ["slurm.sbatch", "mpirun.sh"])
def test_scripts_are_right_for_bash(name):
    checked = subprocess.run(["bash", "-n", FOLDER / name], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_what_the_readme_names_is_there():
    named = re.findall(r"\]\(([\w.]+)\)", (FOLDER / "README.md").read_text())
    assert {"train.py", "ray_train.py", "slurm.sbatch", "mpirun.sh", "kubernetes.yaml"} <= set(
        named
    )
    assert all((FOLDER / name).exists() for name in named)


def test_every_pod_finds_its_rank_in_one_cluster(tmp_path):
    path = stub(tmp_path, "python", 'echo "$TF_CONFIG"')
    for index in range(4):
        environ = {"PATH": path, "WORLD_SIZE": "4", "JOB_COMPLETION_INDEX": str(index)}
        said = subprocess.run(
            ["/bin/sh", "-ec", pod_script()],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        config = json.loads(said)
        assert config["cluster"]["worker"] == [f"train-{rank}.train:2222" for rank in range(4)]
        found = cluster.detect({"TF_CONFIG": said})
        assert (found.rank, found.world_size) == (index, 4)
        assert found.coordinator == "train-0.train:2222"


def test_the_manifest_is_consistent():
    yaml = pytest.importorskip("yaml")
    service, policy, job = yaml.safe_load_all(MANIFEST.read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environ = {entry["name"]: entry.get("value") for entry in container["env"]}
    (secret,) = (entry for entry in container["env"] if "value" not in entry)
    assert (service["kind"], policy["kind"], job["kind"]) == ("Service", "NetworkPolicy", "Job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(environ["WORLD_SIZE"])
    assert container["args"] == [pod_script() + "\n"]
    assert environ.pop(secret["name"]) is None
    assert (secret["name"], secret["valueFrom"]["secretKeyRef"]["key"]) == ("TFDP_SECRET", "secret")
    assert all(isinstance(value, str) for value in environ.values())


def test_no_pod_but_the_jobs_own_reaches_them():
    yaml = pytest.importorskip("yaml")
    service, policy, _ = yaml.safe_load_all(MANIFEST.read_text())
    own = {"podSelector": {"matchLabels": service["spec"]["selector"]}}
    ports = [{"port": port["port"]} for port in service["spec"]["ports"]]
    assert policy["spec"] == {
        **own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own], "ports": ports}],
    }


@pytest.mark.parametrize(
    ("version", "shape"),
    [
        ("mpirun (Open MPI) 5.0.6", "-np 2 --host node-1:1,node-2:1 .* -x TFDP_COORDINATOR "),
        ("HYDRA build details", "-n 2 -ppn 1 -hosts node-1,node-2 .*TFDP_COORDINATOR,"),
    ],
)
def test_mpirun_is_called_for_both_hosts_with_the_coordinator(tmp_path, version, shape):
    said = f'if [ "$1" = --version ]; then echo "{version}"; else'
    hidden = '[[ ${#TFDP_SECRET} = 44 && "$*" = *TFDP_SECRET* && "$*" != *"$TFDP_SECRET"* ]]'
    path = stub(tmp_path, "mpirun", f'{said} {hidden} && echo "$TFDP_COORDINATOR $*"; fi')
    environ = {"PATH": path, "HOME": "/home/me"}
    called = subprocess.run(
        [FOLDER / "mpirun.sh"], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert re.match(f"node-1:23456 {shape}", called), called
    command = " /home/me/venv/bin/python -u train.py --epochs 3 --checkpoints checkpoints\n"
    assert called.endswith(command)


@pytest.mark.parametrize(("codes", "calls", "code"), [("9 7 0", 3, 0), ("75", 1, 75), ("4", 6, 4)])
def test_mpirun_is_called_again_after_failures(tmp_path, codes, calls, code):
    path = stub(
        tmp_path,
        "mpirun",
        'if [ "$1" = --version ]; then exit 0; fi\n'
        f'echo x >> "$HOME/calls"; set -- {codes}\n'
        'n=$(wc -l < "$HOME/calls"); shift $((n > $# ? $# - 1 : n - 1)); exit "$1"',
    )
    environ = {"PATH": path, "HOME": str(tmp_path), "PAUSE": "0"}
    run = subprocess.run([FOLDER / "mpirun.sh"], env=environ, stderr=subprocess.PIPE, check=False)
    assert run.returncode == code, run.stderr
    assert (tmp_path / "calls").read_text() == "x\n" * calls


def test_the_batch_script_gives_every_task_its_cores(tmp_path):
    home = tmp_path / "venv" / "bin"
    home.mkdir(parents=True)
    (home / "activate").touch()
    path = stub(
        tmp_path,
        "srun",
        'case "$*" in *"hostname -I") echo "10.0.0.1 fd00::1 "; echo "10.0.0.2 ";; '
        '*) echo "$OMP_NUM_THREADS $TF_NUM_INTEROP_THREADS $*"; '
        'echo "$TFDP_PEERS, ${#TFDP_SECRET}" > "$HOME/told";; esac',
    )
    environ = {"PATH": path, "HOME": str(tmp_path)}
    environ |= {"SLURM_CPUS_PER_TASK": "16", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    called = subprocess.run(
        ["bash", FOLDER / "slurm.sbatch"], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert (tmp_path / "told").read_text() == "10.0.0.1 fd00::1 10.0.0.2, 44\n"
    assert called.startswith("16 8 --cpus-per-task=16 ")
    assert called.endswith(" python -u train.py --epochs 3 --checkpoints checkpoints-7\n")


@pytest.mark.parametrize(("restarts", "queued"), [("", True), ("4", True), ("5", False)])
def test_the_batch_script_goes_back_into_the_queue_five_times(tmp_path, restarts, queued):
    home = tmp_path / "venv" / "bin"
    home.mkdir(parents=True)
    (home / "activate").touch()
    stub(tmp_path, "scontrol", 'echo "scontrol $*"')
    path = stub(tmp_path, "srun", 'case "$*" in *"hostname -I") echo a;; *) exit 75;; esac')
    environ = {"PATH": path, "HOME": str(tmp_path), "SLURM_RESTART_COUNT": restarts}
    environ |= {"SLURM_CPUS_PER_TASK": "16", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", FOLDER / "slurm.sbatch"], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 75
    assert done.stdout == ("scontrol requeue 7\n" if queued else "")


def test_a_pod_that_a_signal_has_stopped_is_replaced_and_none_of_the_failures():
    yaml = pytest.importorskip("yaml")
    *_, job = yaml.safe_load_all(MANIFEST.read_text())
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}}
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # which a podFailurePolicy needs
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount["name"] == pod["volumes"][0]["name"]
    assert pod_script().endswith(f" --checkpoints {mount['mountPath']}")


@pytest.mark.exhaustive("tutorials/test_demo.py::test_processes_train_like_one_device")
@pytest.mark.multiprocess
def test_the_example_trains_alike_in_one_process_and_in_several(runs):
    shutil.copy(FOLDER / "train.py", runs.folder)
    alone = subprocess.run(
        [sys.executable, "train.py"],
        cwd=runs.folder,
        env=runs.environ,
        capture_output=True,
        text=True,
    )
    together = runs.run("-n", 2, "--devices-per-process", 2, "--timeout", 300, "train.py")
    loss = float(alone.stdout.split()[-1])
    assert together.returncode == 0, together.err
    lines = together.out.splitlines()
    assert sorted(line[:14] for line in lines) == ["[0] 4 replicas", "[1] 4 replicas"]
    assert all(abs(float(line.split()[-1]) - loss) < 1e-5 for line in lines)
