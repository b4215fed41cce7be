"""Whole runs: what ranks are given, what comes out of them, and with which exit code."""

import json
import os
import re
import sys

import pytest

pytestmark = pytest.mark.multiprocess

TELL_ENVIRONMENT = "print(json.dumps(dict(os.environ))); marked()"


def environments(outcome):
    """Each rank's environment, by rank, from what the ranks printed."""
    lines = [line.split(" ", 1) for line in outcome.out.splitlines()]
    return {int(prefix.strip("[]")): json.loads(text) for prefix, text in lines}


def test_every_rank_gets_its_place_in_one_cluster(runs):
    around = {"TF_CONFIG": '{"cluster": "of old"}', "PMI_RANK": "1", "PMI_SIZE": "9"}
    outcome = runs.run("-n", 3, runs.script(TELL_ENVIRONMENT), **around)
    assert outcome.returncode == 0
    assert not any("PMI_RANK" in environ for environ in environments(outcome).values())
    configs = {r: json.loads(e["TF_CONFIG"]) for r, e in environments(outcome).items()}
    assert [configs[r]["task"] for r in range(3)] == [
        {"type": "worker", "index": r} for r in range(3)
    ]
    clusters = [configs[r]["cluster"] for r in range(3)]
    assert clusters[0] == clusters[1] == clusters[2]
    assert len(set(clusters[0]["worker"])) == 3


def test_the_ranks_of_a_run_have_a_secret_that_nobody_sees(runs):
    script = runs.script(
        """
        import pathlib
        marked()
        secret = os.environ["TFDP_SECRET"]
        pathlib.Path(f"secret-{rank}").write_text(secret)
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert secret.encode() not in path.read_bytes(), path
            except OSError:
                pass
        print(tuple(name for name in os.environ if "SECRET" in name))
        """
    )
    secrets = set()
    for _ in range(2):
        outcome = runs.run("-n", 2, "--log-dir", "logs", script)
        assert outcome.returncode == 0, outcome.verdict
        first, second = ((runs.folder / f"secret-{rank}").read_text() for rank in range(2))
        assert first == second
        assert len(first) == 64
        logs = "".join(path.read_text() for path in (runs.folder / "logs").rglob("*.log"))
        assert logs
        assert first not in logs + outcome.out + outcome.verdict
        secrets.add(first)
    assert len(secrets) == 2


def test_ranks_can_listen_at_their_addresses_at_once(runs):
    script = runs.script(
        """
        import socket
        addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
        host, port = addresses[rank].split(":")
        server = socket.create_server((host, int(port)))
        for address in addresses:
            host, port = address.split(":")
            deadline = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection((host, int(port))).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        for _ in addresses:
            server.accept()
        marked()
        """
    )
    launchers = [runs.start("-n", 4, script) for _ in range(2)]
    for launcher in launchers:
        assert launcher.wait(180) == 0, launcher.stderr.read()


def test_threads_share_the_cores_and_the_users_settings_are_kept(runs):
    script = runs.script(TELL_ENVIRONMENT)
    given = environments(runs.run("-n", 2, script, OMP_NUM_THREADS="5"))[1]
    assert given["OMP_NUM_THREADS"] == "5"
    assert int(given["TF_NUM_INTRAOP_THREADS"]) >= 1
    assert int(given["TF_NUM_INTEROP_THREADS"]) >= 8
    assert "TFDP_DEVICES_PER_PROCESS" not in given
    given = environments(runs.run("-n", 2, "--devices-per-process", 3, script))[0]
    assert given["TFDP_DEVICES_PER_PROCESS"] == "3"


def test_eight_ranks_at_once(runs):
    script = runs.script(
        """
        for i in range(500):
            print("out", rank, i, "x" * 200)
            print("err", rank, i, "y" * 200, file=sys.stderr)
        marked()
        """
    )
    outcome = runs.run("-n", 8, script)
    assert outcome.returncode == 0
    for text, word, fill in ((outcome.out, "out", "x"), (outcome.err, "err", "y")):
        lines = text.splitlines()
        assert len(lines) == 8 * 500
        for rank in range(8):
            expected = [f"[{rank}] {word} {rank} {i} {fill * 200}" for i in range(500)]
            assert [line for line in lines if line.startswith(f"[{rank}] ")] == expected


def test_bytes_pass_as_they_are_and_the_last_line_needs_no_end(runs):
    script = runs.script(
        r"""
        sys.stdout.buffer.write(b"\xff\xfe\x00 bytes\n 10%\r 50%\r100%\nno end")
        marked()
        """
    )
    outcome = runs.run("-n", 1, script)
    assert outcome.stdout == b"[0] \xff\xfe\x00 bytes\n[0] 100%\n[0] no end\n"


def test_a_script_runs_under_this_python_and_a_program_is_found_on_the_path(runs):
    script = runs.script("print(sys.executable, sys.argv[1:]); marked()")
    outcome = runs.run("-n", 1, "--", script, "--timeout", "5", "--", "-n", "--d")
    assert outcome.out == f"[0] {sys.executable} ['--timeout', '5', '--', '-n', '--d']\n"
    assert runs.run("-n", 1, "echo", "-n", "one  two").out == "[0] one  two\n"
    # No environment is activated, and the program is one of this Python's.
    words = ("-n", 1, "--dry-run", "--", "tfdp", "doctor")
    assert f"{os.path.dirname(sys.executable)}/tfdp doctor" in runs.run(*words, PATH="/usr/bin").out


LOGGED_BY_TENSORFLOW = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795836642.797497    9360 port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795836647.855757    9401 base_collective_executor.cc:252] ...::StartAbort UNAVAILABLE
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]]
E0000 00:00:1795836647.855757    9401 cuda_dnn.cc:1] no device
E is of the script's
"""


def test_what_tensorflow_logs_of_others_failures_is_in_the_log_and_shown_where_asked_for(runs):
    script = runs.script(f"sys.stderr.write({LOGGED_BY_TENSORFLOW!r}); marked()")
    lines = LOGGED_BY_TENSORFLOW.splitlines()
    shown = runs.run("-n", 1, "--log-dir", "logs", script, TF_CPP_MIN_LOG_LEVEL="2").err
    assert shown.splitlines() == [f"[0] {line}" for line in lines[-2:]]
    assert (runs.folder / "logs" / "rank-0.log").read_text() == LOGGED_BY_TENSORFLOW
    shown = runs.run("-n", 1, script, TF_CPP_MIN_LOG_LEVEL="0").err
    assert shown.splitlines() == [f"[0] {line}" for line in lines]


def test_what_gloo_says_of_its_connections_is_in_the_log_and_shown_where_asked_for(runs):
    said = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of ... ranks is : 1"
    script = runs.script(f"print({said!r}); print('[Gloo] is mine'); marked()")
    shown = runs.run("-n", 1, "--log-dir", "logs", script, TF_CPP_MIN_LOG_LEVEL="2").out
    assert shown == "[0] [Gloo] is mine\n"
    assert (runs.folder / "logs" / "rank-0.log").read_text() == f"{said}\n[Gloo] is mine\n"
    shown = runs.run("-n", 1, script, TF_CPP_MIN_LOG_LEVEL="0").out
    assert shown == f"[0] {said}\n[0] [Gloo] is mine\n"


def test_a_command_that_does_not_exist_starts_nothing(runs):
    for word in ("no-such-program", "no_such_script.py"):
        outcome = runs.run("-n", 2, "--log-dir", "logs", word)
        assert outcome.returncode == 127
        assert word in outcome.err and "must be" in outcome.err
        assert outcome.out == ""
    assert not (runs.folder / "logs").exists()


def test_logs_hold_each_rank_s_output_and_those_of_an_earlier_run_are_kept(runs):
    script = runs.script('print("run", sys.argv[1], "of", rank); sys.stdout.write("end"); marked()')
    logs = runs.folder / "some" / "logs"
    for number, ranks in ((1, 3), (2, 2), (3, 2)):
        assert runs.run("-n", ranks, "--log-dir", logs, script, number).returncode == 0
    written = {p.relative_to(logs).as_posix(): p.read_text() for p in logs.rglob("*.log")}
    folders = {1: "earlier-1/", 2: "earlier-2/", 3: ""}
    assert written == {
        f"{folders[number]}rank-{rank}.log": f"run {number} of {rank}\nend"
        for number, ranks in ((1, 3), (2, 2), (3, 2))
        for rank in range(ranks)
    }


def test_without_log_dir_no_file_is_written(runs, tmp_path_factory):
    temporary = tmp_path_factory.mktemp("temporary")
    script = runs.script("marked()")
    before = sorted(runs.folder.iterdir())
    assert runs.run("-n", 2, script, TMPDIR=str(temporary)).returncode == 0
    assert sorted(runs.folder.iterdir()) == before
    assert list(temporary.iterdir()) == []


def test_dry_run_prints_what_a_shell_would_run_and_starts_nothing(runs):
    script = runs.script('open("started", "w"); print(os.environ["TF_CONFIG"], sys.argv[1])')
    outcome = runs.run("-n", 2, "--log-dir", "logs", "--dry-run", script, "two words")
    assert outcome.returncode == 0
    assert sorted(path.name for path in runs.folder.iterdir()) == [script]
    assert "TFDP_SECRET=" not in outcome.out
    commands = [line for line in outcome.out.splitlines() if not line.startswith("#")]
    assert len(commands) == 2
    for rank, command in enumerate(commands):
        said = runs.run("-n", 1, "sh", "-c", command).out
        assert f'"index": {rank}' in said
        assert "two words" in said


def test_a_rank_that_ends_early_with_0_is_no_failure(runs):
    script = runs.script(
        """
        import pathlib
        marked()
        if rank == 0:
            pathlib.Path("new").write_text(str(os.getpid()))
            pathlib.Path("new").rename("pid")
        while rank == 1:
            try:
                os.kill(int(pathlib.Path("pid").read_text()), 0)
            except FileNotFoundError:
                pass
            except ProcessLookupError:
                break
            time.sleep(0.01)
        print("done")
        """
    )
    outcome = runs.run("-n", 2, script)
    assert outcome.returncode == 0
    assert sorted(outcome.out.splitlines()) == ["[0] done", "[1] done"]


def test_the_first_failure_gives_the_exit_code_and_the_last_words(runs):
    script = runs.script(
        """
        if rank == 2:
            raise SystemExit("no data") if len(sys.argv) > 1 else ValueError("no data\\nat all")
        time.sleep(300)
        """
    )
    outcome = runs.run("-n", 3, script)
    assert outcome.returncode == 1
    assert "rank 2 of 3 failed first, with exit code 1." in outcome.verdict
    assert outcome.verdict.endswith("  ValueError: no data\n  at all\n")
    assert runs.run("-n", 3, script, "quietly").verdict.endswith("  no data\n")


def test_a_rank_s_own_exit_code_is_the_launcher_s(runs):
    outcome = runs.run("-n", 2, runs.script("sys.exit(17 * rank)"))
    assert outcome.returncode == 17
    assert "exit code 17. It wrote no error" in outcome.verdict


def test_a_killed_rank_is_named_with_its_signal(runs):
    script = runs.script("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)")
    outcome = runs.run("-n", 2, "--log-dir", "logs", script)
    assert outcome.returncode == 128 + 9
    assert "rank 1 of 2 failed first, with signal SIGKILL" in outcome.verdict
    assert "logs/rank-1.log" in outcome.verdict


# What rank 0 does, and then, once rank 0 is gone, rank 1; and which of them failed first.
@pytest.mark.parametrize(
    ("dies", "follows", "first", "code", "how"),
    [
        ("tell(lost_rank=1); sys.exit(1)", "os._exit(3)", 1, 3, "exit code 3"),
        ("tell(lost_rank=1); sys.exit(1)", "tell(lost_rank=1); os._exit(3)", 1, 3, "exit code 3"),
        ("sys.exit('UnavailableError')", "os.kill(os.getpid(), 11)", 1, 139, "signal SIGSEGV"),
        ("raise RuntimeError('tfdp: lost rank 1')", "os._exit(3)", 0, 1, "exit code 1"),
    ],
    ids=["tells of it", "tells of it as the lost one does", "is before a kill", "prints it"],
)
def test_a_rank_that_fails_because_another_is_dying_is_not_the_first(
    runs, dies, follows, first, code, how
):
    script = runs.script(
        f"""
        import pathlib
        gone = pathlib.Path("gone")
        if rank == 0:
            gone.with_suffix(".new").write_text(str(os.getpid()))
            gone.with_suffix(".new").rename(gone)
            {dies}
        while not gone.exists():
            time.sleep(0.01)
        try:
            while True:
                os.kill(int(gone.read_text()), 0)
                time.sleep(0.01)
        except ProcessLookupError:
            {follows}
        """
    )
    patient = """
    from tfdp.cluster.launch import supervision, verdict
    supervision.SAME_TIME_SECONDS = supervision.LOST_RANK_SECONDS = 60.0
    verdict.SAME_TIME_SECONDS = 60.0
    """
    outcome = runs.run("-n", 2, script, change=patient)
    assert f"rank {first} of 2 failed first, with {how}" in outcome.verdict
    assert outcome.returncode == code


def test_the_last_error_is_the_one_that_ended_the_rank_whatever_it_printed_since(runs):
    script = runs.script(
        """
        import atexit, traceback
        def cannot_clean_up():
            try:
                open("/no/such/file")
            except OSError:
                traceback.print_exc()
        atexit.register(cannot_clean_up)
        marked()
        if rank == 1:
            raise ValueError("no data\\nat all")
        time.sleep(300)
        """
    )
    outcome = runs.run("-n", 2, script)
    assert "rank 1 of 2 failed first, with exit code 1." in outcome.verdict
    assert outcome.verdict.endswith("  ValueError: no data\n  at all\n")
    assert "No such file" in outcome.err


def test_ranks_that_trained_alone_are_an_error(runs):
    outcome = runs.run("-n", 3, runs.script("if rank == 1: marked()"))
    assert outcome.returncode == 1
    assert "ranks 0, 2 made none" in outcome.verdict
    assert re.search(r'`TF_CONFIG=\{.*"index": 0\}\}`', outcome.verdict)
    assert "Make `tfdp.DataParallelStrategy()`" in outcome.verdict
    assert runs.run("-n", 1, runs.script("")).returncode == 0  # one process is alone rightly


def test_a_rank_that_ends_with_0_while_others_wait_in_their_strategy_ends_the_run(runs):
    script = runs.script(
        """
        if rank != 1:
            time.sleep(0.5)
            tell(begun=True)
            time.sleep(300)
        """
    )
    outcome = runs.run("-n", 3, "--timeout", 150, script)
    assert outcome.returncode == 1
    assert "rank 1 of 3 ended with exit code 0 and made none" in outcome.verdict
    assert "ranks 0, 2 had to be ended" in outcome.verdict


def test_a_reader_that_leaves_ends_the_run(runs):
    launcher = runs.start("-n", 2, runs.script("while True: print('more'); time.sleep(0.01)"))
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(60) == 128 + 13
    assert b"Error" not in launcher.stderr.read()
    runs.assert_nobody_is_left()
