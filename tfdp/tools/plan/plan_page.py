"""The page: everything that `tfdp plan` prints, and the scaling curve."""

from __future__ import annotations

import importlib.resources
import pathlib

import jinja2
import markupsafe

from tfdp.base.atomic_files import replace_text
from tfdp.base.words import count, duration, percent
from tfdp.tools.plan import curves, printing
from tfdp.tools.plan.answers import Answers
from tfdp.tools.plan.plan_options import PlanOptions
from tfdp.tools.report.bars import bar_chart

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
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("tfdp.tools.plan"), jinja2.PackageLoader("tfdp.tools.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = importlib.resources.files("tfdp.tools.report") / "templates" / "page.css"
    lines = [("best plan, the same training", "s0", answers.curve)]
    if answers.default:
        lines.append(("defaults", "s1", answers.default))
    timed = answers.timed
    charts = [curves.efficiency_chart(lines), curves.rate_chart(lines)] if timed else []
    return environment.get_template("plan.html.jinja").render(
        style=markupsafe.Markup(style.read_text(encoding="utf-8")),
        title=answers.inputs.name,
        introduction=list(printing.introduction(answers)),
        charts=charts,
        bars=_bars(answers) if timed else None,
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


def _bars(answers: Answers) -> object:
    values = []
    for one in answers.curve:
        parts = one.parts
        values.append(
            (
                count(one.ranks, "rank"),
                {
                    "compute": parts["compute"],
                    "wait": parts["late"],
                    "communication": parts["communication"],
                    "other": parts["update"] + parts["other"],
                },
            )
        )
    return bar_chart(
        "A step by number of ranks",
        values,
        _PARTS,
        unit="ms",
        words=duration,
        of="number of ranks",
        scale=1000.0,
    )
