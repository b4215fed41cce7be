"""The comparison of the rates of runs on several numbers of replicas."""

import dataclasses
import pathlib
from collections.abc import Sequence

from tfdp.tools.report.log_directory import LoggedRun
from tfdp.tools.report.summary import Headline


@dataclasses.dataclass(frozen=True)
class Point:
    """The rate of one run among others.

    Args:
      directory: The directory of the run's logs.
      line: The run's main numbers.
      speedup: The rate over that of the run with the fewest replicas.
      efficiency: The rate for each replica over that of the run with the fewest; 1 is ideal.
      parameters: The number of weights of its model, if known.
    """

    directory: pathlib.Path
    line: Headline
    speedup: float
    efficiency: float
    parameters: int | None


def scaling(runs: Sequence[tuple[LoggedRun, Headline]]) -> tuple[Point, ...]:
    """Returns the runs by their numbers of replicas, without those that have no rate.

    The others are compared with the first run of those with the fewest replicas.

    >>> from types import SimpleNamespace as Fake
    >>> run = Fake(directory=pathlib.Path("logs"), start=Fake(parameters=7))
    >>> rates = {2: 100.0, 8: 300.0}
    >>> lines = [Fake(replicas=n, ranks=1, examples_per_step=64.0, examples_per_second=rate)
    ...          for n, rate in rates.items()]
    >>> [(point.speedup, point.efficiency) for point in scaling([(run, li) for li in lines])]
    [(1.0, 1.0), (3.0, 0.75)]
    """
    rated = [(run, line, rate) for run, line in runs if (rate := line.examples_per_second)]
    rated.sort(key=lambda item: item[1].replicas)
    points = []
    for run, line, rate in rated:
        _, least, least_rate = rated[0]
        speedup = rate / least_rate
        points.append(
            Point(
                directory=run.directory,
                line=line,
                speedup=speedup,
                efficiency=speedup * least.replicas / line.replicas,
                parameters=run.start.parameters,
            )
        )
    return tuple(points)


def caveats(points: Sequence[Point]) -> list[str]:
    """Returns sentences to know before believing the efficiencies.

    >>> from types import SimpleNamespace as Fake
    >>> lines = [Fake(replicas=n, examples_per_step=64.0 * n) for n in (1, 2)]
    >>> points = [Point(pathlib.Path("a"), line, 1.0, 1.0, 7) for line in lines]
    >>> caveats(points)
    ['The global batch grows with the replicas (weak scaling): each replica has the same work.']
    """
    sentences = []
    if len({point.line.replicas for point in points}) == 1:
        sentences.append(
            "All runs have the same number of replicas: this compares their rates, and is no "
            "scaling efficiency."
        )
    elif len({point.line.examples_per_step for point in points}) == 1:
        sentences.append(
            "The global batch is the same (strong scaling): more replicas have less work each, and "
            "as much to send."
        )
    elif len({(point.line.examples_per_step or 0) / point.line.replicas for point in points}) == 1:
        sentences.append(
            "The global batch grows with the replicas (weak scaling): each replica has the same "
            "work."
        )
    else:
        sentences.append("The runs' batches differ, which changes their rates too.")
    if len({point.parameters for point in points}) > 1:
        sentences.append(
            "The numbers of weights differ: these are not runs of one model, and their "
            "efficiencies mean little."
        )
    return sentences
