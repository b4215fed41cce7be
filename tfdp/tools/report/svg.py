"""Drawings of matplotlib as inline SVG, with the page's colours and with marks that have titles."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from xml.etree import ElementTree

import markupsafe
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# A drawing's units are pixels if it is shown as wide as this, about a phone's width.
WIDTH = 320

Said = Callable[[str], str]

# The page's colours, which differ by light and dark: matplotlib draws with a number for each.
_INKS = (
    *("ink", "soft", "grid", "open", "strip", "s0", "s1", "s2", "s3"),
    *("input", "compute", "meeting", "communication", "other", "rest", "wait"),
)

_NUMBERED_INK = re.compile("#0000([0-9a-f]{2})")
_LONG_NUMBER = re.compile(r"-?\d+\.\d\d+")
_MARK = "said-"
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_PIXELS_PER_INCH = 72  # of matplotlib's SVG, whatever the figure says


def ink(name: str) -> str:
    """Returns the colour given to matplotlib for one of the page's colours, a variable of its CSS.

    >>> ink("soft")
    '#000002'
    """
    return f"#0000{_INKS.index(name) + 1:02x}"


def drawn(paint: Callable[[Axes, Said], None], height: float) -> markupsafe.Markup:
    """Returns the painting of a function as one `<svg>`, which loads nothing from anywhere.

    Cost: some 0.1 s.

    Args:
      paint: Called with the axes and with a function that takes a text and returns the `gid` of the
        artist which says it: as its own words if the artist is a text, else where the pointer is on
        it. No text from a log may reach matplotlib by another way: matplotlib would measure it, and
        read `$` as mathematics.
      height: The height in pixels if the drawing is :data:`WIDTH` wide.

    >>> svg = drawn(lambda axes, said: axes.axvspan(0, 1, color=ink("s0"), gid=said("a<b")), 99)
    >>> "fill: var(--s0)" in svg, "<title>a&lt;b</title>" in svg
    (True, True)
    """
    texts: list[str] = []

    def said(text: str) -> str:
        texts.append(text)
        return f"{_MARK}{len(texts) - 1}"

    file = io.StringIO()
    with style.context(["default", _style()]):
        size = (WIDTH / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH)
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.add_subplot(), said)
        FigureCanvasSVG(figure).print_svg(file, metadata=_NO_METADATA)
    return _inline(file.getvalue(), texts)


def _style() -> dict[str, object]:
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": "none",
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": ink("soft"),
        "figure.facecolor": "none",
        "font.family": "DejaVu Sans",
        "font.size": 12.5,
        "grid.color": ink("grid"),
        "lines.markersize": 5,
        "lines.solid_capstyle": "round",
        "path.simplify": False,
        "svg.fonttype": "none",
        "text.color": ink("ink"),
        "xtick.major.pad": 7,
        "xtick.color": ink("soft"),
        "xtick.major.size": 0,
        "ytick.major.pad": 7,
        "ytick.color": ink("soft"),
        "ytick.major.size": 0,
    }


def _inline(text: str, texts: list[str]) -> markupsafe.Markup:
    """Returns a file of matplotlib's as part of a page: small, and without names that clash."""
    root = ElementTree.fromstring(text)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "aria-hidden": "true",
        "focusable": "false",
    }
    for defs in root.findall("./{*}defs[{*}style]"):  # its rules would hold for the whole page
        root.remove(defs)
    used = {id(part) for part in root.findall(".//{*}defs/*")}
    for element in list(root.iter()):
        name = element.get("id", "") if id(element) in used else element.attrib.pop("id", "")
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {k.rpartition("}")[2]: _short(k, v) for k, v in element.attrib.items()}
        element.text = (element.text or "").strip() or None
        element.tail = None
        if name.startswith(_MARK):
            _say(element, texts[int(name.removeprefix(_MARK))])
    return markupsafe.Markup(ElementTree.tostring(root, encoding="unicode"))


def _short(key: str, value: str) -> str:
    if key == "style":
        return _NUMBERED_INK.sub(lambda match: f"var(--{_INKS[int(match[1], 16) - 1]})", value)
    return _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.1f}", " ".join(value.split()))


def _say(element: ElementTree.Element, text: str) -> None:
    own = element.find("{*}text")
    if own is not None:
        own.text = text
    else:
        element.set("class", "says")
        ElementTree.SubElement(element, "title").text = text
