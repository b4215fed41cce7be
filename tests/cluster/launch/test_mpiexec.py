"""Ranks that MPI's launcher starts: the real one, and stand-ins for the MPIs that are not here."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import textwrap

import pytest

from tfdp.cluster import launch
from tfdp.cluster.launch import launcher, mpiexec
from tfdp.cluster.launch.mpiexec import Library, Mpiexec, check_fit, find_library, find_mpiexec
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.errors import ClusterError

BESIDE = str(pathlib.Path(sys.executable).parent)
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([BESIDE, os.environ.get("PATH", "")]))
INSTALLED = MPIEXEC and importlib.util.find_spec("mpi4py")

pytestmark = pytest.mark.multiprocess
real = pytest.mark.skipif(not INSTALLED, reason="needs an MPI and mpi4py")

# What a script of these tests begins with; `connect` leaves no shared memory behind.
JOINS = """
import tfdp.cluster.mpi
world = tfdp.cluster.mpi.connect(None)[0]
world = getattr(world, "COMM_WORLD", world)
marked()
open(f"ready-{rank}", "w").close()
"""


def by_mpi(runs, body, *options):
    """The words of `tfdp run` for two ranks of MPI."""
    return ["-n", 2, "--engine", "mpi", *options, runs.script(JOINS + textwrap.dedent(body))]


@real
def test_ranks_of_mpi_are_those_of_the_cluster_and_write_through_pipes_of_their_own(runs):
    script = r"""
    assert (world.Get_rank(), world.Get_size()) == (rank, 2)
    assert sys.stdin.read() == ""
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    for line in open("/proc/self/maps"):
        assert "mpich_shm" not in line or line.endswith(" (deleted)\n")
    for i in range(300):
        print("out", rank, i, "x" * 500, flush=i == 299)
        print("err", rank, i, "y" * 500, file=sys.stderr)
    os._exit(0)  # MPI is not finalised
    """
    outcome = runs.run(*by_mpi(runs, script, "--log-dir", "logs"))
    assert (outcome.returncode, outcome.verdict) == (0, "")
    for text, word, fill in ((outcome.out, "out", "x"), (outcome.err, "err", "y")):
        lines = text.splitlines()
        assert len(lines) == 2 * 300
        for rank in range(2):
            expected = [f"[{rank}] {word} {rank} {i} {fill * 500}" for i in range(300)]
            assert [line for line in lines if line.startswith(f"[{rank}] ")] == expected
    assert sorted(path.name for path in (runs.folder / "logs").iterdir()) == [
        "rank-0.log",
        "rank-1.log",
    ]
    runs.assert_nobody_is_left()


@real
@pytest.mark.parametrize(
    ("ends", "code", "verdict"),
    [
        ("raise ValueError('no data')", 1, "exit code 1. .*  ValueError: no data$"),
        pytest.param("sys.exit(17)", 17, "exit code 17. ", marks=pytest.mark.exhaustive),
        pytest.param(
            "os.kill(os.getpid(), 9)", 128 + 9, "signal SIGKILL. ", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "os._exit(3)", 3, "exit code 3. Rank 0 had to be ended", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_the_rank_that_fails_first_is_named(runs, ends, code, verdict):
    outcome = runs.run(*by_mpi(runs, f"if rank == 1: {ends}\ntime.sleep(60)"))
    assert outcome.returncode == code
    assert re.search(f"^tfdp run: rank 1 of 2 failed first, with {verdict}", outcome.verdict, re.S)
    assert "[mpiexec]" not in outcome.err
    runs.assert_nobody_is_left()


@real
def test_a_rank_that_calls_mpi_s_abort_is_named(runs):
    outcome = runs.run(*by_mpi(runs, "if rank == 1: world.Abort(7)\ntime.sleep(60)"))
    assert outcome.returncode == 7
    assert "rank 1 of 2 failed first" in outcome.verdict
    runs.assert_nobody_is_left()


@real
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 9))],
)
def test_a_signal_to_tfdp_run_ends_all_ranks_of_mpi(runs, wait_until_ended, number):
    started = runs.start(*by_mpi(runs, "time.sleep(300)"))
    runs.wait_for("ready-0", "ready-1")
    started.send_signal(number)
    outcome = wait_until_ended(started)
    assert outcome.returncode in (128 + number, -number)
    assert number == 9 or "was passed on, and all ranks have ended" in outcome.verdict
    runs.assert_nobody_is_left()


@real
@pytest.mark.parametrize(
    "who", ["mpiexec", *(pytest.param(w, marks=pytest.mark.exhaustive) for w in ("proxy", "shim"))]
)
def test_what_is_killed_between_tfdp_run_and_a_rank_ends_the_run(runs, wait_until_ended, who):
    body = "open('parents', 'w').write(open('/proc/%d/stat' % os.getppid()).read())"
    started = runs.start(*by_mpi(runs, f"if rank == 1: {body}\ntime.sleep(300)"))
    runs.wait_for("ready-0", "ready-1", "parents")
    while not (words := (runs.folder / "parents").read_text().split()):
        pass
    shim, proxy = int(words[0]), int(words[3])
    programs = {pid: line.split(b"\0")[0] for pid, line in runs.alive().items()}
    (found,) = (  # Open MPI's becomes `prterun`
        pid for pid, name in programs.items() if name.endswith((b"/mpiexec", b"/prterun"))
    )
    os.kill({"shim": shim, "proxy": proxy, "mpiexec": found}[who], signal.SIGKILL)
    outcome = wait_until_ended(started)
    assert outcome.returncode != 0
    named = "rank 1 of 2 failed first|" if who == "shim" else ""
    assert re.match(f"tfdp run: ({named}MPI's launcher must outlive the ranks)", outcome.verdict)
    runs.assert_nobody_is_left()


@real
def test_the_plan_is_one_line_that_a_shell_can_run(runs):
    body = "place = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
    # One write for a line: `mpiexec` joins what the ranks write, and `print` writes each word by
    # itself where Python does not buffer.
    body += "sys.stdout.write(f'{rank} {place} {sys.argv[1]}\\n')\n"
    script = runs.script(body + "sys.stdout.flush()")
    outcome = runs.run("-n", 2, "--engine", "mpi", "--dry-run", script, "two words")
    assert outcome.returncode == 0, outcome.err
    (line,) = [line for line in outcome.out.splitlines() if not line.startswith("#")]
    said = runs.run("-n", 1, "sh", "-c", line).out
    assert sorted(said.splitlines()) == ["[0] 0 0 two words", "[0] 1 1 two words"]


# It starts the ranks as Open MPI does, and knows no other words than Open MPI's.
OPEN_MPI = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("mpiexec (Open MPI) 5.0.11"))
known = {{"--enable-recovery": 0, "--allow-run-as-root": 0}}
known |= {{"--host": 1, "--map-by": 1, "--bind-to": 1}}
while words[0] in known:
    del words[: 1 + known[words[0]]]
assert words[0] == "-n", words
ranks = [
    subprocess.Popen(words[2:], env={{**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}})
    for rank in range(int(words[1]))
]
for rank in ranks:
    rank.wait()
"""


@pytest.fixture
def open_mpi(tmp_path, monkeypatch):
    """A stand-in for Open MPI's launcher, which `tfdp run` takes for the installed one."""
    path = tmp_path / "mpiexec"
    path.write_text(OPEN_MPI)
    path.chmod(0o755)
    found = Mpiexec(str(path), "Open MPI")
    monkeypatch.setattr(launcher, "fitting_mpiexec", lambda command, environ: found)
    return path


def test_ranks_of_open_mpi_are_named_by_its_variable(tmp_path, open_mpi, capfd, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, json\n"
        "from tfdp.cluster.rank_status import tell\n"
        "rank = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "memory = os.environ['OMPI_MCA_btl_sm_backing_directory']\n"
        "tell(made=True)\n"
        "print(rank, os.environ['OMPI_COMM_WORLD_RANK'], os.path.isdir(memory))\n"
        "raise SystemExit(5 * rank)\n"
    )
    assert launch.run(RunOptions(processes=2, engine="mpi", command=(str(script),))) == 5
    said = capfd.readouterr()
    assert sorted(said.out.splitlines()) == ["[0] 0 0 True", "[1] 1 1 True"]
    assert "rank 1 of 2 failed first, with exit code 5" in said.err


def test_a_launcher_that_starts_no_rank_is_named_with_what_it_said(open_mpi, capfd):
    open_mpi.write_text("#!/bin/sh\necho 'There are not enough slots' >&2\nexit 213\n")
    assert launch.run(RunOptions(processes=2, engine="mpi", command=("true",))) == 213
    said = capfd.readouterr().err
    assert "[mpiexec] There are not enough slots" in said
    assert "`mpiexec` ended with exit code 213. Its last error:" in said
    assert said.endswith("Its last error:\n  There are not enough slots\n")


@pytest.mark.parametrize("vendor", ["MPICH", "Intel MPI"])
def test_the_launchers_of_one_family_get_the_same_words(vendor):
    found = mpiexec.words(Mpiexec("mpiexec", vendor), 3, "/folder", ["/bin/true", "-n"])
    assert found[:7] == [
        *("mpiexec", "-disable-auto-cleanup", "-launcher", "fork", "-hosts", "localhost"),
        "-n",
    ]
    assert found[7] == "3"
    assert found[-4:] == ["/folder", "PMI_RANK", "/bin/true", "-n"]


def test_settings_of_the_user_are_kept():
    mine = {"I_MPI_PIN": "1", "MPI4PY_RC_FINALIZE": "1", "HOME": "/root"}
    assert mine.items() <= mpiexec.environment(mine, "/dev/shm/x").items()
    assert mpiexec.environment({}, "/dev/shm/x")["I_MPI_PIN"] == "0"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Returns a function that makes a program in a folder, beside which Python then is."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    (tmp_path / "bin").mkdir()

    def make(body, folder="bin", name="mpiexec"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize(
    ("said", "vendor"),
    [
        ("HYDRA build details:\n    Version:   5.0.2", "MPICH"),
        ("mpiexec (Open MPI) 5.0.11", "Open MPI"),
        ("mpiexec (OpenRTE) 4.1.2", "Open MPI"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626", "Intel MPI"),
    ],
)
def test_a_launcher_is_known_by_its_version(program, said, vendor):
    path = program(f"echo '{said}'")
    assert find_mpiexec({"PATH": ""}) == Mpiexec(str(path), vendor)


def test_the_launcher_beside_python_goes_before_the_path(program):
    elsewhere = program("echo '(Open MPI)'", "elsewhere")
    environ = {"PATH": str(elsewhere.parent)}
    assert find_mpiexec(environ) == Mpiexec(str(elsewhere), "Open MPI")
    beside = program("echo HYDRA")
    assert find_mpiexec(environ) == Mpiexec(str(beside), "MPICH")


def test_without_a_launcher_the_error_says_what_to_install(program, tmp_path):
    with pytest.raises(ClusterError) as error:
        find_mpiexec({"PATH": str(tmp_path)})
    for part in ("`mpiexec` must be", f"{tmp_path}/bin/mpiexec", "pip install mpich", "module"):
        assert part in str(error.value)


def test_a_launcher_of_another_kind_is_refused_with_what_it_says(program):
    path = program("echo mpiexec of PBS")
    with pytest.raises(ClusterError) as error:
        find_mpiexec({"PATH": ""})
    for part in ("must be that of MPICH, Intel MPI or Open MPI", str(path), "mpiexec of PBS"):
        assert part in str(error.value)


def test_the_library_is_that_of_the_ranks_python(program):
    python = program(f"echo noise; echo '{json.dumps(['MPICH', '5.0.2', '4.1.2'])}'", name="py")
    assert find_library(str(python), {}) == Library("MPICH", "5.0.2", "4.1.2")


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("ModuleNotFoundError: No module named 'mpi4py'", "do `pip install 'tfdp[mpi]'`"),
        ("RuntimeError: cannot load MPI library", "do `pip install mpich`"),
    ],
)
def test_a_python_without_mpi_is_named_with_its_error_and_the_fix(program, said, fix):
    python = program(f'echo "Traceback" >&2; echo "{said}" >&2; exit 1', name="py")
    with pytest.raises(ClusterError) as error:
        find_library(str(python), {})
    for part in ("mpi4py must be importable", str(python), said, fix):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("launcher", "library", "fits"),
    [
        ("MPICH", "MPICH", True),
        ("MPICH", "Intel MPI", True),  # one binary interface
        ("Intel MPI", "MPICH", True),
        ("Open MPI", "Open MPI", True),
        ("MPICH", "Open MPI", False),
        ("Open MPI", "MPICH", False),
    ],
)
def test_a_library_of_another_mpi_is_refused(launcher, library, fits):
    pair = Mpiexec("/opt/mpiexec", launcher), Library(library, "1.2", "4.1.2")
    if fits:
        check_fit(*pair)
        return
    with pytest.raises(ClusterError) as error:
        check_fit(*pair)
    for part in (f"received {library} 1.2 and /opt/mpiexec of {launcher}", "--no-binary mpi4py"):
        assert part in str(error.value)
