"""The page: everything that a run's report says, put into the template."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

from tfdp.report import figures, words
from tfdp.report.breakdown import rank_splits
from tfdp.report.hints import findings
from tfdp.report.manifest import manifest_groups
from tfdp.report.reading import Run
from tfdp.report.scaling import caveats, scaling
from tfdp.report.stragglers import straggler, stragglers, waits
from tfdp.report.summary import headline, skipped, traffic
from tfdp.report.tiles import status, tiles

_CODE = re.compile(r"`([^`]+)`")


def render(run: Run, compared: Sequence[Run], now: float) -> str:
    """The report as one HTML page, which asks for nothing from anywhere.

    All that stands in the logs is escaped.

    Args:
        run: what it is of.
        compared: runs for the scaling efficiency, usually on other numbers of replicas.
        now: seconds since 1970.

    Example:
        >>> import pathlib
        >>> from tfdp.report.files import RankLog, Session
        >>> from tfdp.report.records import Start, Step
        >>> start, step = Start(0, 0, 1, "<x>", 1), Step(0, 1, 0, 1, 8, 1.0)
        >>> log = RankLog((Session(start, 1, [step]),), (step,), (), ())
        >>> page = render(Run(pathlib.Path("logs"), (log,), None, ()), [], now=2)
        >>> page.startswith("<!doctype html>"), "<x>" in page
        (True, False)
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfdp.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    environment.globals |= {"words": words, "label": figures.rank_label}
    style = importlib.resources.files("tfdp.report") / "templates" / "page.css"
    return environment.get_template("page.html.jinja").render(
        style=markupsafe.Markup(style.read_text(encoding="utf-8")),
        now=now,
        **_context(run, compared, now),
    )


def _context(run: Run, compared: Sequence[Run], now: float) -> dict[str, Any]:
    line, splits, waited = headline(run), rank_splits(run), waits(run)
    bars, over_time = figures.step_parts(run, splits)
    points = scaling([(one, headline(one)) for one in [run, *compared]]) if compared else ()
    model = (run.manifest or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else None
    sampled = any("compute" in one.split.parts for one in splits)
    return {
        "run": run,
        "title": str(name) if name else "Training run",
        "line": line,
        "status": status(line, now),
        "tiles": tiles(line),
        "findings": findings(run),
        "learning": figures.learning(run),
        "speed": figures.speed(run),
        "bars": bars,
        "over_time": over_time,
        "splits": splits,
        "sampled": sampled,
        "meets": any("meeting" in one.split.parts for one in splits),
        "waits": waited,
        "wait_bars": figures.wait_bars(waited),
        "straggler": straggler(waited),
        "stragglers": stragglers(waited),
        "optimizer": figures.optimizer(run),
        "skipped": skipped(run.first.steps),
        "traffic": traffic(run),
        "compared": len(compared),
        "points": points,
        "caveats": caveats(points) if points else [],
        "efficiency": figures.efficiency_bars(points),
        "compute_shares": [
            (figures.rank_label(one.rank, one.host), one.split.share("compute"))
            for one in splits
            if "compute" in one.split.parts
        ],
        "manifest": manifest_groups(run.manifest) if run.manifest else [],
    }


def _code(text: str) -> markupsafe.Markup:
    """A sentence with what stands in backquotes set as code."""
    return markupsafe.Markup(_CODE.sub(r"<code>\1</code>", str(markupsafe.escape(text))))
