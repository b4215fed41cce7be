"""The command `tfdp plan`: reads what is planned with, predicts, prints, and writes the page."""

import pathlib
from collections.abc import Callable, Sequence

from rich.console import Console

from tfdp.base.atomic_files import replace_text
from tfdp.base.words import count, duration, number, percent
from tfdp.tools.plan import plan_inputs as inputs_
from tfdp.tools.plan import printing
from tfdp.tools.plan.answers import Answers, answer
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.prediction import Prediction
from tfdp.tools.report.charts import Chart, Series, bar_chart, line_chart


def run(options: PlanOptions, console: Console | None = None) -> int:
    """Plans, and prints the plans.

    Args:
      options: The options.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.

    Raises:
      ValueError: A file cannot be used, the model cannot be built, or the cluster cannot be.
      OSError: The page cannot be written.
    """
    console = console or Console(width=100)
    answers = answer(options, inputs_.read(options))
    printing.printed(answers, options, console)
    if options.output is not None:
        write_page(answers, options, options.output)
        console.print(f"Page: {options.output}", soft_wrap=True, highlight=False)
    return 0


_PARTS = {
    "compute": "forward and backward pass",
    "wait": "waiting for the slowest",
    "communication": "exposed communication",
    "other": "update, input, Keras",
}


def write_page(answers: Answers, options: PlanOptions, path: pathlib.Path) -> None:
    """Writes the page.

    Raises:
      OSError: The file cannot be written.
    """
    replace_text(path, render(answers, options))


def render(answers: Answers, options: PlanOptions) -> str:
    """Returns the plan as one HTML page, which loads nothing from anywhere; all text is escaped."""
    from tfdp.tools.report.pages import page  # needs jinja2, which only pages do

    timed = answers.timed
    return page(
        "plan/templates/plan.html.jinja",
        title=answers.inputs.name,
        introduction=list(printing.introduction(answers)),
        drawn=list(filter(None, _charts(answers))) if timed else [],
        head=printing.HEAD,
        curve=[printing.curve_cells(one) for one in answers.curve],
        verdicts=list(printing.verdicts(answers)) if timed else [],
        limits=[
            (one.name, percent(one.gain)) for one in answers.limits if timed and one.gain > 0.005
        ],
        ranks=count(answers.curve[-1].ranks, "rank"),
        rows=printing.rows_of(answers.rows) if timed else [],
        memory=list(printing.memory_lines(answers, options)),
        use=printing.used(answers) if timed else "",
    )


def _charts(answers: Answers) -> list[Chart | None]:
    """Returns the efficiency, the rate beside what is ideal, and the parts of a step, by ranks."""
    first = answers.curve[0]
    alone = first.examples_per_second / first.ranks / first.efficiency
    ideal = [(one.ranks, alone * one.ranks) for one in answers.curve]
    return [
        line_chart(
            "Efficiency",
            _series(answers, lambda one: one.efficiency),
            x_label="ranks",
            unit="the rate of a rank over that of one alone",
            zero=True,
            x_logarithmic=True,
            words=percent,
        ),
        line_chart(
            "Examples per second",
            [
                *_series(answers, lambda one: one.examples_per_second),
                Series("ideal", ideal, "s2", dashed=True),
            ],
            x_label="ranks",
            unit="of all ranks",
            logarithmic_from=1.0,
            x_logarithmic=True,
            words=number,
        ),
        bar_chart(
            "A step by number of ranks",
            [(count(one.ranks, "rank"), _parts(one)) for one in answers.curve],
            _PARTS,
            words=duration,
            of="number of ranks",
        ),
    ]


def _series(answers: Answers, value: Callable[[Prediction], float]) -> list[Series]:
    """Returns the lines of the best plans and of the defaults."""

    def line(name: str, ink: str, found: Sequence[Prediction]) -> Series:
        return Series(name, [(one.ranks, value(one)) for one in found], ink)

    return [
        line("best plan, the same training", "s0", answers.curve),
        line("defaults", "s1", answers.default),
    ]


def _parts(one: Prediction) -> dict[str, float]:
    parts = one.parts
    return {
        "compute": parts["compute"],
        "wait": parts["late"],
        "communication": parts["communication"],
        "other": parts["update"] + parts["other"],
    }
