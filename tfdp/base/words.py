"""The words for numbers, times, sizes, counts and ranks, as people read them."""

import math
import re
import textwrap
import time
from collections.abc import Iterable, Sequence

_INNER_ERROR = re.compile(r"    [\w.]+(?:Error|Exception): ")


def number(value: float | None) -> str:
    """Writes four digits that count, and whole numbers in full up to 1e10.

    >>> [number(x) for x in (1234567, 1834.2, 0.93127, 2.5e-5, float("nan"), None, 12.0)]
    ['1,234,567', '1,834', '0.9313', '2.5e-05', 'nan', '–', '12']
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e10 else f"{value:.3g}"
    if value == int(value):
        return str(int(value))
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Writes a time in the unit that fits.

    >>> [duration(x) for x in (0, 4.2e-5, 0.0123, 1.25, 75, 7380, 2e5, None)]
    ['0 s', '42 µs', '12.3 ms', '1.25 s', '1 min 15 s', '2 h 3 min', '2.31 days', '–']
    """
    if seconds is None:
        return "–"
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:g} s"
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} µs"
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if round(seconds) < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{seconds / 86400:.3g} days"


def percent(fraction: float | None) -> str:
    """Writes a fraction of 1 in percent.

    >>> percent(0.123), percent(0.05), percent(0.0042), percent(None)
    ('12%', '5%', '0.4%', '–')
    """
    if fraction is None:
        return "–"
    shown = f"{100 * fraction:.0f}" if abs(fraction) >= 0.0995 else f"{100 * fraction:.1f}"
    return f"{shown.removesuffix('.0')}%"


def size(bytes_: float | None) -> str:
    """Writes bytes, by powers of 1000.

    >>> size(12), size(48_300_000), size(2.5e12)
    ('12 B', '48.3 MB', '2.5 TB')
    """
    if bytes_ is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if bytes_ < 999.5:
            return f"{bytes_:.3g} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.3g} TB" if bytes_ < 1000 else f"{bytes_:,.0f} TB"


def moment(seconds: float) -> str:
    """Writes a day and time, in UTC.

    >>> moment(0)
    '1970-01-01 00:00:00 UTC'
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


def count(amount: int, thing: str) -> str:
    """Writes a number and its noun.

    >>> count(1, "step"), count(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{amount:,} {thing}" + "s" * (amount != 1)


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Names ranks.

    >>> ranks_in_words([1, 3])
    'ranks 1, 3'
    """
    listed = list(ranks)
    return ("rank " if len(listed) == 1 else "ranks ") + ", ".join(map(str, listed))


def error_of_user_code(lines: Sequence[str]) -> list[str]:
    """Returns the lines of an error; of one that autograph has wrapped those of the error within.

    >>> error_of_user_code(["OSError: in user code:", '    File "x.py", line 1', "    OSError: no"])
    ['OSError: no']
    """
    inner = [number for number, line in enumerate(lines) if _INNER_ERROR.match(line)]
    if not (inner and lines[0].endswith(": in user code:")):
        return list(lines)
    return textwrap.dedent("\n".join(lines[inner[-1] :])).splitlines()
