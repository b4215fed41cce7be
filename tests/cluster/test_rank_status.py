"""Word from the ranks of a run to its launcher."""

import os
import subprocess
import sys
import textwrap

import pytest

from tfdp.cluster.rank_status import RankStatus, ranks_without_strategy, tell, told

TASK = '{"task": {"type": "worker", "index": 1}}'


# What the scripts of these tests begin with.
PREAMBLE = """
import os, sys
from tfdp.cluster.rank_status import tell, tell_alive, told
from tfdp.errors import RankLostError
folder = os.environ["TFDP_RUN_STATUS"]
"""


@pytest.fixture
def environ(tmp_path):
    """What `tfdp run` sets in the environment of rank 1."""
    return {"TFDP_RUN_STATUS": str(tmp_path), "TF_CONFIG": TASK}


def start(environ, script):
    """Starts a script as a process of rank 1."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script)],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def rank(environ, script):
    """Runs a script as a process of rank 1 to its end."""
    started = start(environ, script)
    output, errors = started.communicate(timeout=60)
    return subprocess.CompletedProcess(started.args, started.returncode, output, errors)


def test_a_rank_tells_one_thing_after_the_other(tmp_path, environ):
    for _ in range(2):
        tell(environ, begun=True)
    assert told(str(tmp_path), 1) == RankStatus(begun=True)
    tell(environ, made=True, log_dir="/logs")
    tell(environ, can_stop=True)
    assert told(str(tmp_path), 1) == RankStatus(
        begun=True, made=True, can_stop=True, log_dir="/logs"
    )
    tell(environ, can_stop=False)
    assert told(str(tmp_path), 1) == RankStatus(begun=True, made=True, log_dir="/logs")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["rank-1-status", "rank-1-status.lock"]
    assert ranks_without_strategy(str(tmp_path), range(3)) == [0, 2]


@pytest.mark.parametrize("config", [None, "", "{", "{}", "[]", '{"task": {"index": null}}'])
def test_a_process_that_is_no_rank_tells_nothing(tmp_path, config):
    environ = {"TFDP_RUN_STATUS": str(tmp_path)}
    tell(environ if config is None else {**environ, "TF_CONFIG": config}, made=True)
    assert list(tmp_path.iterdir()) == []


def test_without_a_launcher_nothing_happens(tmp_path):
    tell({"TF_CONFIG": TASK}, made=True)
    tell({"TF_CONFIG": TASK, "TFDP_RUN_STATUS": str(tmp_path / "gone")}, made=True)
    assert list(tmp_path.iterdir()) == []


def test_of_an_end_the_first_error_and_the_rank_that_was_lost_before_it_count(tmp_path, environ):
    tell(environ, lost_rank=2)
    tell(environ, lost_rank=0)
    assert told(str(tmp_path), 1) == RankStatus(lost_rank=2)
    tell(environ, error="RankLostError: ...")
    tell(environ, error="OSError: of its clean-up")
    assert told(str(tmp_path), 1) == RankStatus(error="RankLostError: ...", lost_rank=2)


def test_a_rank_that_loses_others_after_its_own_error_has_failed_of_itself(tmp_path, environ):
    tell(environ, error="ValueError: mine")
    tell(environ, lost_rank=0)
    assert told(str(tmp_path), 1) == RankStatus(error="ValueError: mine")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("raise ValueError('mine')", "ValueError: mine"),
        ("os.kill(os.getpid(), 9)", None),
        ("os._exit(3)", None),
    ],
)
def test_an_error_that_nothing_catches_is_told_and_a_kill_is_not(tmp_path, environ, end, error):
    done = rank(environ, f"tell(made=True)\n{end}")
    assert done.returncode != 0
    status = told(str(tmp_path), 1)
    assert status.made
    assert status.error == error or status.error.splitlines()[-1] == error
    assert (error or "") in done.stderr.decode()


@pytest.mark.parametrize(
    ("before", "lost", "kept"),
    [
        ("", 2, 2),  # the error itself says whom the rank has lost
        ("tell(lost_rank=0)", 2, 0),
        ("tell(lost_rank=0)", None, 0),
        ("", None, None),
        ("tell(error='ValueError: mine')", 2, None),
    ],
)
def test_the_error_that_ends_a_rank_says_whom_it_has_lost(tmp_path, environ, before, lost, kept):
    error = "ValueError('mine')" if lost is None else "RankLostError('lost')"
    done = rank(
        environ,
        f"""
        tell(made=True)
        {before}
        error = {error}
        error.rank = {lost}
        raise error
        """,
    )
    assert done.returncode == 1
    tell(environ, lost_rank=3)  # of another thread, whose connection breaks meanwhile
    assert told(str(tmp_path), 1).lost_rank == kept


def test_an_error_in_a_process_that_a_rank_has_forked_is_not_the_rank_s(tmp_path, environ):
    script = """
        tell(made=True)
        child = os.fork()
        if child == 0:
            raise ValueError("of a worker")
        os.waitpid(child, 0)
        """
    done = rank(environ, script)
    assert done.returncode == 0
    assert b"ValueError: of a worker" in done.stderr
    assert told(str(tmp_path), 1) == RankStatus(made=True)


def test_a_process_that_a_rank_has_forked_neither_tells_nor_lives_for_it(tmp_path, environ):
    script = """
        import threading
        tell_alive()
        tell(made=True)
        before = os.listdir(folder)
        os.unlink(os.path.join(folder, "rank-1-alive"))
        child = os.fork()
        if child == 0:
            tell_alive()
            tell(error="of a worker", can_stop=True)
            os._exit(threading.active_count())
        assert os.waitpid(child, 0) == (child, 1 << 8)
        assert set(os.listdir(folder)) == {*before} - {"rank-1-alive"}
        """
    done = rank(environ, script)
    assert (done.returncode, done.stderr) == (0, b"")
    assert told(str(tmp_path), 1) == RankStatus(made=True)


def test_processes_of_a_rank_that_tell_at_once_lose_nothing(tmp_path, environ):
    script = """
        for number in range(300):
            tell({0}=str(number))
            status = told(folder, 1)
            assert status.{0} == str(number), status
            assert status.made, status
        """
    tell(environ, made=True)
    # Each tells of a field that no other changes.
    started = [start(environ, script.format(name)) for name in ("log_dir", "begun", "can_stop")]
    while any(process.poll() is None for process in started):
        assert told(str(tmp_path), 1).made
    assert [process.communicate()[1] for process in started] == [b"", b"", b""]
    assert told(str(tmp_path), 1) == RankStatus(
        begun="299", made=True, can_stop="299", log_dir="299"
    )


def test_a_process_that_is_forked_while_its_rank_tells_does_not_keep_others_from_telling(
    tmp_path, environ
):
    script = """
        import json, signal
        dumps, children = json.dumps, []
        def fork_and_dump(value):
            json.dumps = dumps
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                signal.pause()
            children.append(child)
            return dumps(value)
        json.dumps = fork_and_dump
        tell(begun=True)
        signal.alarm(20)  # or it would wait for ever
        tell(made=True)
        signal.alarm(0)
        os.kill(children[0], signal.SIGKILL)
        """
    done = rank(environ, script)
    assert done.returncode == 0
    assert told(str(tmp_path), 1) == RankStatus(begun=True, made=True)


@pytest.mark.parametrize("full", [True, False])
def test_a_status_that_cannot_be_written_is_said_and_the_rank_goes_on(tmp_path, environ, full):
    tell(environ, begun=True)
    if full:
        (tmp_path / "rank-1-status.new").symlink_to("/dev/full")
    else:
        (tmp_path / "rank-1-status.lock").unlink()
        (tmp_path / "rank-1-status.lock").mkdir()
    done = rank(environ, "tell(made=True)\nprint('goes on')")
    assert (done.returncode, done.stdout) == (0, b"goes on\n")
    why = "No space left on device" if full else "Is a directory"
    said = done.stderr.decode()
    assert said.startswith("tfdp: this rank must tell `tfdp run` of made in ")
    assert why in said
    assert "Make room there" in said
    assert told(str(tmp_path), 1) == RankStatus(begun=True)
