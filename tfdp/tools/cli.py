"""The command `tfdp`, with its subcommands.

Nothing heavy is imported until a subcommand runs: `tfdp --help` answers without TensorFlow.
"""

import argparse
import sys
from collections.abc import Sequence

import tfdp
from tfdp.base.command_line import add_command, require
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.data.index_command import add_data
from tfdp.tools.bench.bench_options import BenchOptions
from tfdp.tools.check_gpu.stages import STAGES, CheckGpuOptions
from tfdp.tools.doctor import DoctorOptions
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.report import ReportOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: The words after `tfdp`; by default those of this process.

    Returns:
      The exit code: 0; 1 where a benchmark's process failed, or a check of `doctor` or
      `check-gpu`; 2 where the user's request cannot be carried out, with a message and no
      traceback; of `run` see :func:`tfdp.cluster.launch.run`.

    Raises:
      SystemExit: `--help` or `--version` (0), or words that cannot be parsed (2).
    """
    parsed = build_parser().parse_args(arguments)
    return parsed.handler(parsed)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all subcommands; each leaves its function in `handler`."""
    parser = argparse.ArgumentParser(
        prog="tfdp",
        description="Data-parallel training for Keras 3: N replicas train like one device.",
    )
    parser.add_argument("--version", action="version", version=f"tfdp {tfdp.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    adds = _add_bench, add_data, _add_run, _add_doctor, _add_check_gpu, _add_report, _add_plan
    for add in adds:
        add(commands)
    return parser


def _add_bench(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "bench",
        BenchOptions,
        _bench,
        help="how long each topology takes for an all-reduce of each size",
        description="Times all-reduces of float32 between processes on this machine, for each "
        "topology on each engine of tfdp, in turn; prints tables and draws a picture. In a clone "
        "`python -m benchmarks sums` does so beside other libraries, and on simulated hosts.",
    )


def _bench(options: BenchOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "matplotlib"], parser)

    from tfdp.tools.bench.bench_rounds import run

    return run(options)


def _add_run(commands: argparse._SubParsersAction) -> None:
    """Adds `run` to the commands.

    The options end where the command begins: `tfdp run -n 2 train.py --timeout 5` gives `--timeout`
    to `train.py`. A `--` before the command is allowed and dropped.
    """
    add_command(
        commands,
        "run",
        RunOptions,
        _run,
        help="start a training script in N processes on this host, or on each of several",
        usage="%(prog)s -n N|MIN:MAX [--nodes N|MIN:MAX --rendezvous HOST:PORT] [--engine E] "
        "[--devices-per-process D] [--gpus-per-process K] [--log-dir DIR] [--max-restarts R] "
        "[--restart-window S] [--discover CMD] [--discover-every S] [--join-timeout S] "
        "[--timeout S] [--dry-run] [--] COMMAND [ARG ...]",
        description="Starts COMMAND in N processes on this host, as one cluster: every process "
        "gets its TF_CONFIG and its share of the cores. Output lines begin with the rank. If one "
        "rank fails, the command ends the others, and reports the first failure last.",
        allow_abbrev=False,  # else an option of COMMAND could be an ambiguous one of ours
    )


def _run(options: RunOptions, parser: argparse.ArgumentParser) -> int:
    from tfdp.cluster import launch
    from tfdp.cluster.launch.discovery import DiscoveryError
    from tfdp.cluster.launch.places import TooFewGPUsError
    from tfdp.cluster.launch.rank_start import CommandError
    from tfdp.errors import ClusterError

    try:
        return launch.run(options)
    except CommandError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except (TooFewGPUsError, DiscoveryError) as error:
        parser.error(str(error))
    # A folder that cannot be written, no free port, no more processes; no MPI that fits.
    except (OSError, ClusterError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "doctor",
        DoctorOptions,
        _doctor,
        help="check versions, devices, the cluster and an all-reduce",
        description="Prints versions, devices and the cluster that the environment describes, "
        "times an all-reduce on every rank, and says what to change. It runs alone or under any "
        "launcher (`tfdp run -n 2 -- tfdp doctor`); then rank 0 prints a line per rank.",
        epilog="Exit code 0 if every check passed, also where there are hints; 1 if one failed.",
    )


def _doctor(options: DoctorOptions, parser: argparse.ArgumentParser) -> int:
    from tfdp.tools.doctor.examination import run

    return run(options)


def _add_check_gpu(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "check-gpu",
        CheckGpuOptions,
        _check_gpu,
        help="check within 24 minutes what works on this machine's GPUs or TPUs",
        description="Checks one machine with one or more GPUs, or TPUs, in stages: "
        + "; ".join(f"{stage.name}: {stage.asks}" for stage in STAGES)
        + ". Each stage has processes of its own and a limit, and prints a line.",
        epilog="Exit code 0 if no stage differs, fails or hangs, also if some are skipped for want "
        "of GPUs; else 1.",
    )


def _check_gpu(options: CheckGpuOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)

    from tfdp.tools.check_gpu.gpu_check import run

    return run(options)


def _add_report(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "report",
        ReportOptions,
        _report,
        help="make an HTML page from the logs of Telemetry",
        description="Makes one self-contained HTML page of the log directory that "
        "tfdp.callbacks.Telemetry wrote, or is still writing: curves, where each rank's steps go, "
        "late ranks, scaling, the manifest, and what to try next.",
        epilog="Exit code 0 if the page is written; 2, and no page, if something is missing.",
    )


def _report(options: ReportOptions, parser: argparse.ArgumentParser) -> int:
    require(["jinja2"], parser)

    from tfdp.tools.report.log_reader import LogError
    from tfdp.tools.report.report_page import write_page

    try:
        return write_page(options)
    except LogError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(
            f"`LOG_DIR` must be readable and the page's directory writable; received: {error}; "
            "mend the permissions, or do `--output FILE.html`."
        )


def _add_plan(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "plan",
        PlanOptions,
        _plan,
        help="predict step time, efficiency and memory for N ranks, before they are bought",
        description="Predicts the time of a step, its parts, the efficiency and the memory for "
        "numbers of ranks, from a model (timed on this machine, or by its logs) and a description "
        "or a measurement of hosts and links; ranks the plans, says what limits them, and prints "
        "the arguments to use.",
        epilog="Exit code 0; 2 where the request cannot be carried out.",
    )


def _plan(options: PlanOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"] * bool(options.model), parser)
    require(["jinja2"] * bool(options.output), parser)

    from tfdp.tools.plan.plan_command import run

    try:
        return run(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
