"""The pages of tools: a template of theirs in the layout of all, which loads nothing."""

import importlib.resources
import re

import jinja2
import markupsafe

from tfdp.base import words

_CODE = re.compile(r"`([^`]+)`")


def page(template: str, **context: object) -> str:
    """Returns one HTML page, which loads nothing from anywhere; all text in it is escaped.

    Args:
      template: The template's path within `tfdp/tools`; it extends `layout.html.jinja`.
      context: What the template shows; the layout shows `title`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfdp.tools", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    style = importlib.resources.files("tfdp.tools.report") / "templates" / "page.css"
    return environment.get_template(template).render(
        style=markupsafe.Markup(style.read_text(encoding="utf-8")), words=words, **context
    )


def _code(text: str) -> markupsafe.Markup:
    """Returns a sentence in which the words in backquotes are set as code."""
    return markupsafe.Markup(_CODE.sub(r"<code>\1</code>", str(markupsafe.escape(text))))
