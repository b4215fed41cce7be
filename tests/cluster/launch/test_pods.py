"""The pods of docs/clusters/kubernetes.yaml: hosts of their own that know each other by name.

There is no Kubernetes here. Each pod is a network namespace with the environment that kubelet gives
the pods of an indexed Job, and the names that the headless Service gives them; one that fails is
replaced at once, as the Job's controller does.
"""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tiers
from cluster.launch.test_cluster_examples import FOLDER, pod_script

from benchmarks import hosts

JOINS = pathlib.Path(__file__).parent.parent.parent / "strategy" / "xla" / "scripts" / "joins.py"
PODS, REPLACED = 2, 2


def why_not():
    try:
        with hosts.hosts(1, None):
            return None
    except hosts.HostsError as error:
        return str(error)


pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(why_not() is not None, reason="needs root, ip and tc"),
]


class Job(threading.Thread):
    """A pod of a Job, with those that take its place.

    Attributes:
      codes: The exit codes of the pods that have ended.
      said: What each has said.
    """

    def __init__(self, index, host, script, names):
        super().__init__()
        environ = {"JOB_COMPLETION_INDEX": str(index), "WORLD_SIZE": str(PODS)}
        environ["TFDP_SECRET"] = "the secret of the pods"
        environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        environ |= {"TF_NUM_INTEROP_THREADS": "8", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environ["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        inherited = {
            name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ
        }
        self._environ = inherited | environ
        # A container has its own /etc/hosts and its own host name.
        made = f"mount --bind {shlex.quote(str(names))} /etc/hosts; hostname train-{index}; "
        container = ["unshare", "--mount", "--uts", "/bin/sh", "-ec"]
        command = [*container, f"{made} exec /bin/sh -ec {shlex.quote(script)}"]
        self._command = hosts.inside(host, command)
        self.codes, self.said = [], []

    def run(self):
        while len(self.codes) <= REPLACED and 0 not in self.codes:
            ended = subprocess.run(
                self._command,
                env=self._environ | {"TFDP_TEST_POD": str(len(self.codes))},
                cwd=FOLDER,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            self.said.append(ended.stdout)
            self.codes.append(ended.returncode)


def run(folder, arguments):
    """Runs the manifest's script with other arguments of Python in each pod; returns the pods."""
    folder.mkdir(exist_ok=True)
    names = folder / "hosts"
    own = [f"{hosts.address(index)} train-{index}.train train-{index}" for index in range(PODS)]
    names.write_text("\n".join(["127.0.0.1 localhost", *own, ""]))
    script, count = re.subn("python -u .*", f"python -u {shlex.join(arguments)}", pod_script())
    assert count == 1
    with hosts.hosts(PODS, None) as built:
        pods = [Job(index, host, script, names) for index, host in enumerate(built)]
        for pod in pods:
            pod.start()
        for pod in pods:
            pod.join()
    return pods


def said_by(pods):
    return "\n".join(text for pod in pods for text in pod.said)


@pytest.mark.parametrize("options", [["--xla"], pytest.param([], marks=tiers.MARK)])
def test_the_ranks_in_pods_meet_by_name_and_train_as_one(options, tmp_path):
    pods = run(tmp_path, ["train.py", "--epochs", "3", *options])
    assert [pod.codes for pod in pods] == [[0]] * PODS, said_by(pods)
    assert len({re.search("2 replicas, loss (.*)", pod.said[0])[1] for pod in pods}) == 1


@pytest.mark.exhaustive(
    "strategy/xla/test_jax_distributed.py::test_a_killed_rank_is_named_and_a_restart_has_the_bits_of_no_end"
)
@pytest.mark.parametrize("rank", [0, 1])
def test_pods_that_take_the_place_of_killed_ones_end_with_the_same_bits(rank, tmp_path):
    found = {}
    for how in ("never", "killed"):
        folder = tmp_path / how
        pods = run(folder, [str(JOINS), str(folder), how, str(rank)])
        assert all(pod.codes[-1] == 0 for pod in pods), said_by(pods)
        found[how] = pods, [np.load(folder / f"{index}.npy") for index in range(PODS)]
    pods, weights = found["killed"]
    assert pods[rank].codes[0] == -signal.SIGKILL, said_by(pods)
    assert re.search(f"[Ll]ost rank {rank}", pods[1 - rank].said[0]), said_by(pods)
    for each in weights + found["never"][1]:
        np.testing.assert_array_equal(each, weights[0])
