"""`tfdp doctor` from end to end, alone and under the launcher."""

import json
import os
import re
import signal
import subprocess
import sys

import meeting
import pytest

from tfdp.tools.cli import main
from tfdp.tools.doctor import measure
from tfdp.tools.doctor.rank_facts import Measurement
from tfdp.tools.plan.plan_inputs import read_links

DOCTOR = [sys.executable, "-m", "tfdp.tools.cli", "doctor", "--megabytes", "1"]
LAUNCHER = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "2"]
INHERITED = ("TF_CONFIG", "TF_NUM_INTEROP_THREADS", "TFDP_DEVICES_PER_PROCESS", "KERAS_BACKEND")


def environment(**changed):
    kept = {name: value for name, value in os.environ.items() if name not in INHERITED}
    return kept | changed


def examined(command, **changed):
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(**changed),
        timeout=300,
        check=False,
    )


def table(text):
    """The words of the ranks' lines."""
    return [
        line.split() for line in text.splitlines() if re.match(r"(\[0\] )? *\d+ +\S+ +\d+ ", line)
    ]


def tf_config(index, ports):
    workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


@pytest.mark.parametrize(
    ("words", "remedy"),
    [(["--megabytes", "0"], "do `--megabytes 16`"), (["--timeout", "nan"], "do `--timeout 60`")],
)
def test_a_refusal_says_what_to_do(capsys, words, remedy):
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", *words])
    assert exit_.value.code == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.slow
def test_one_process_is_examined_alone():
    done = examined(DOCTOR)
    assert done.returncode == 0, done.stderr
    assert "tensorflow 2." in done.stdout
    assert "one process (no cluster in the environment)" in done.stdout
    assert "there is nothing to reduce" in done.stdout
    if len(os.sched_getaffinity(0)) < 8:
        assert "hint: TF_NUM_INTEROP_THREADS should be at least 8" in done.stdout
        assert "All checks passed; 1 to improve." in done.stdout


@pytest.mark.exhaustive("test_one_process_is_examined_alone")
def test_the_devices_of_one_process_reduce_too():
    done = examined(DOCTOR, TFDP_DEVICES_PER_PROCESS="3", TF_NUM_INTEROP_THREADS="8")
    assert done.returncode == 0, done.stderr
    [line] = table(done.stdout)
    assert line[3] == "CPU:0,1,2"
    assert line[-1] == "right"
    assert done.stdout.splitlines()[-1] == "All checks passed."


def test_a_malformed_cluster_is_named_without_a_traceback():
    done = examined(DOCTOR, TF_CONFIG="{'cluster'")
    assert done.returncode == 1
    assert "versions: python" in done.stdout
    assert done.stderr.startswith("tfdp doctor: error: `TF_CONFIG` must be JSON")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named():
    first, second = meeting.free_ports(2)
    done = examined([*DOCTOR, "--timeout", "2"], TF_CONFIG=tf_config(0, [first, second]))
    assert done.returncode == 1
    assert f"rank 0 at 127.0.0.1:{first}, rank 1 at 127.0.0.1:{second}" in done.stdout
    assert "but rank 1 of 2 did not connect" in done.stderr
    assert "allow more time with `--timeout`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive("test_a_malformed_cluster_is_named_without_a_traceback")
def test_a_malformed_number_of_devices_is_named():
    done = examined(DOCTOR, TFDP_DEVICES_PER_PROCESS="two")
    assert done.returncode == 1
    assert "tfdp doctor: error: TFDP_DEVICES_PER_PROCESS must be a number" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive("test_one_process_is_examined_alone")
@pytest.mark.multiprocess
def test_rank_0_prints_a_line_for_each_rank(tmp_path):
    links = tmp_path / "links.json"
    done = examined([*LAUNCHER, "--devices-per-process", "2", "--", *DOCTOR, "--json", str(links)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] cluster:  2 processes, this is rank 0; read from TF_CONFIG" in done.stdout
    lines = table(done.stdout)
    assert [line[1] for line in lines] == ["0", "1"]
    assert {line[4] for line in lines} == {"CPU:0,1"}
    assert {line[-1] for line in lines} == {"right"}
    assert "[1]" not in done.stdout
    assert done.stdout.splitlines()[-1] == "[0] All checks passed."
    assert read_links(links).links.latency_seconds_inside > 0


def test_one_replica_has_no_links_for_a_plan(tmp_path, capsys):
    assert main(["doctor", "--json", str(tmp_path / "links.json")]) == 1
    assert "Do `tfdp run -n 2 -- tfdp doctor --json " in capsys.readouterr().err


def test_a_sum_that_is_wrong_fails_the_examination(monkeypatch, capsys):
    monkeypatch.setattr(measure, "measure", lambda *_: Measurement(large_seconds=1.0, right=False))
    assert main(["doctor", "--megabytes", "1"]) == 1
    assert "must give every rank the sum, but rank 0 got another" in capsys.readouterr().err


@pytest.mark.exhaustive("test_a_sum_that_is_wrong_fails_the_examination")
@pytest.mark.multiprocess
def test_a_sum_that_is_wrong_on_one_rank_fails_the_examination(tmp_path):
    script = tmp_path / "doctor.py"
    script.write_text(
        "import sys, dataclasses, json, os\n"
        "import tfdp.tools.doctor.measure as m\n"
        "real, rank = m.measure, json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "m.measure = lambda *a: dataclasses.replace(real(*a), right=rank != 1)\n"
        "from tfdp.tools.cli import main\n"
        "sys.exit(main(['doctor', '--megabytes', '1']))\n"
    )
    done = examined([*LAUNCHER, "--", str(script)])
    assert done.returncode == 1
    assert [line[-1] for line in table(done.stdout)] == ["right", "WRONG"]
    assert "must give every rank the sum, but rank 1 got another" in done.stderr


@pytest.mark.exhaustive(
    "strategy/test_cluster_failures.py::test_a_killed_rank_is_named_on_every_other_rank"
)
@pytest.mark.multiprocess
def test_a_rank_that_is_killed_during_the_checks_is_named(tmp_path):
    script = tmp_path / "doctor.py"
    script.write_text(
        "import sys, os\n"
        "import tfdp.tools.doctor.measure as m\n"
        "def killed(strategy, *rest):\n"
        # Rank 0 comes to this when it knows the facts of both.
        "    strategy.extended.processes.board.barrier('a round trip')\n"
        "    os.kill(os.getpid(), 9)\n"
        "m.measure = killed\n"
        "from tfdp.tools.cli import main\n"
        "sys.exit(main(['doctor', '--megabytes', '1', '--timeout', '200']))\n"
    )
    ports = meeting.free_ports(2)
    killed = subprocess.Popen(
        [sys.executable, str(script)], env=environment(TF_CONFIG=tf_config(1, ports))
    )
    done = examined([*DOCTOR, "--timeout", "200"], TF_CONFIG=tf_config(0, ports))
    assert killed.wait(60) == -signal.SIGKILL
    assert done.returncode == 1
    assert [line[-1] for line in table(done.stdout)] == ["failed", "failed"]
    assert "lost rank 1" in done.stderr
    assert "Traceback" not in done.stderr
