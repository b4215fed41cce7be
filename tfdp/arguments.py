"""What the command lines share: modules that must be there, the environment, lists of numbers."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Sequence

# For each module a subcommand may need, what to install.
_INSTALL = {
    "tensorflow": "pip install 'tfdp[cpu]' (or 'tfdp[gpu]', or 'tfdp[tensorflow]')",
    "sklearn": "pip install 'tfdp[demo]'",
    "jinja2": "pip install 'tfdp[report]'",
    "matplotlib": "pip install 'tfdp[demo]' (or 'tfdp[report]')",
    "rich": "pip install 'tfdp[demo]'",
    "google_crc32c": "pip install 'tfdp[records]'",
}


def require(modules: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Ends the command with an error, by the parser, if a module cannot be imported."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            parser.error(
                f"`{parser.prog}` must be able to import {module}; received an environment "
                f"without it; do `{_INSTALL[module]}`."
            )


def set_environment() -> None:
    """What TensorFlow and Keras read when they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # The default number of inter-op threads can starve the iterators of several devices on two
    # cores.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
    os.environ["KERAS_BACKEND"] = "tensorflow"


def numbers(option: str, example: str) -> Callable[[str], tuple[int, ...]]:
    """A parser's `type` for whole numbers with commas between.

    Args:
        option: its name, for the error.
        example: what to write, for the error.

    >>> numbers("replicas", "2,4")("2,8")
    (2, 8)
    """

    def parse(text: str) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"`{option}` must be numbers with commas between; received {text!r}; "
                f"do `--{option} {example}`."
            ) from None

    return parse
