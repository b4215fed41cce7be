"""The options of commands: from a frozen dataclass to the words of a command line, and back.

An option is written once, as a field: its type, default, help and limits. Its name on the command
line is the field's, with dashes and without the unit `_seconds`.

>>> @dataclasses.dataclass(frozen=True)
... class Options:
...     rounds: int = option(5, "runs of each side (%(default)s)", at_least=1)
...     timeout_seconds: float = option(60.0, "seconds for each run (%(default)g)", above=0)
...     def __post_init__(self): check(self)
>>> Options(rounds=0)
Traceback (most recent call last):
ValueError: `rounds` must be at least 1; received 0; do `--rounds 5`.
>>> parser = argparse.ArgumentParser()
>>> add_options(parser, Options)
>>> options_of(parser.parse_args(["--timeout", "9"]), Options)
Options(rounds=5, timeout_seconds=9.0)
"""

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

# The command that installs each module that a subcommand may need.
_INSTALL = {
    "tensorflow": "pip install 'tfdp[cpu]' (or 'tfdp[gpu]', or 'tfdp[tensorflow]')",
    "sklearn": "pip install 'tfdp[demo]'",
    "jinja2": "pip install 'tfdp[report]'",
    "matplotlib": "pip install 'tfdp[demo]'",
    "jax": "pip install 'tfdp[tpu]'",
    "keras_hub": "pip install keras-hub",
    "libtpu": "pip install 'tfdp[tpu]'",
    "google_crc32c": "pip install 'tfdp[records]'",
}

_KINDS = {int: "a whole number", float: "a number"}

#: The default of an option that must be given.
REQUIRED: Any = dataclasses.MISSING


def option(
    default: Any,
    help: str,
    *,
    flags: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: Sequence[str] = (),
    writes: Sequence[str] | None = None,
    example: str = "",
    parse: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Any:
    """Declares a field that is an option; a field without this is only set by programs.

    A `tuple[X, ...]` is given with commas between, or as several words where there is `nargs`.

    Args:
      default: The field's default; :data:`REQUIRED` for none. With None the option may be left out.
      help: The text for `--help`, with `%(default)s` where the default is to stand.
      flags: The option's names; by default `--` and the field's name. A name without dashes is that
        of a word that is known by its place.
      at_least, at_most, above: The limits of a number, or of each number in a tuple.
      choices: The strings that are allowed; for a tuple of them `all` means every one.
      writes: The suffixes that the path of a file to write may have, or () for any.
      example: The value that the errors recommend; by default the default.
      parse: Makes a value of a word, or raises ValueError with the whole message; by default the
        field's type.
      settings: Other arguments of `ArgumentParser.add_argument`, such as `metavar`.
    """
    told = types.SimpleNamespace(**locals())  # all arguments, by their names
    return dataclasses.field(default=default, metadata={"option": told})


def check(options: Any) -> None:
    """Checks each option against its limits; for a dataclass' `__post_init__`.

    Raises:
      ValueError: An option is out of its limits; the error says what must hold and the fix.
    """
    for field in _fields(type(options)):
        value = getattr(options, field.name)
        if value is not None:
            _check(field, value)


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Adds every option of a dataclass to a parser."""
    hints = typing.get_type_hints(kind)
    for field in _fields(kind):
        told, flags = field.metadata["option"], _flags(field)
        element, several = _element(hints[field.name])
        # The default is the dataclass' own: argparse shows it, and extends no tuple.
        default = None if field.default in (REQUIRED, ()) else field.default
        settings = {"help": told.help, "default": default}
        if element is bool:
            settings["action"] = "store_true"
        else:
            settings["metavar"] = _metavar(field)
            settings["type"] = _parser(field, element, several and "nargs" not in told.settings)
        if flags[0].startswith("-"):
            settings |= {"dest": field.name, "required": field.default is REQUIRED}
        else:
            flags = (field.name,)
        parser.add_argument(*flags, **settings | told.settings)


def options_of(parsed: argparse.Namespace, kind: Callable[..., Any]) -> Any:
    """Returns the dataclass of the options that a parser with them has read.

    Raises:
      ValueError: An option is out of its limits.
    """
    given = {field.name: getattr(parsed, field.name) for field in _fields(kind)}
    for name, value in given.items():
        if isinstance(value, list):
            # The `--` before a command is not one of its words.
            given[name] = tuple(value[value[:1] == ["--"] :])
    return kind(**{name: value for name, value in given.items() if value is not None})


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    kind: type,
    run: Callable[[Any, argparse.ArgumentParser], int],
    **words: Any,
) -> None:
    """Adds a command with the options of a dataclass; its function is left in `handler`.

    Args:
      commands: The subparsers to add it to.
      name: The name of the command.
      kind: The dataclass of its options.
      run: Called with the options, and the parser for errors of use; returns the exit code. It
        imports the modules that are slow to import.
      words: Other arguments of the parser, such as `help` and `description`.
    """
    parser = commands.add_parser(name, **words)
    add_options(parser, kind)

    def handle(parsed: argparse.Namespace) -> int:
        try:
            options = options_of(parsed, kind)
        except ValueError as error:
            parser.error(str(error))
        return run(options, parser)

    parser.set_defaults(handler=handle)


def require(modules: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Ends the command with the parser's error if a module cannot be imported."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            parser.error(
                f"`{parser.prog}` must be able to import {module}; received an environment "
                f"without it; do `{_INSTALL[module]}`."
            )


def set_environment() -> None:
    """Sets the variables that TensorFlow and Keras read when they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # The default number of inter-op threads can starve the iterators of several devices on two
    # cores.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")
    os.environ["KERAS_BACKEND"] = "tensorflow"


def _fields(kind: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if "option" in field.metadata]


def _flags(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    name = field.name.removesuffix("_seconds").replace("_", "-")
    return field.metadata["option"].flags or (f"--{name}",)


def _name(field: dataclasses.Field[Any]) -> str:
    """Returns the option's name in errors: `timeout`, `-n`."""
    return _flags(field)[0].removeprefix("--")


def _metavar(field: dataclasses.Field[Any]) -> str:
    choices = field.metadata["option"].choices
    name = _flags(field)[-1].lstrip("-").upper().replace("-", "_")
    return f"{{{','.join(choices)}}}" if choices else name


def _element(hint: Any) -> tuple[Any, bool]:
    """Returns the type of one value, int of `tuple[int, ...] | None`, and if it is a tuple's."""
    inner = [part for part in typing.get_args(hint) if part not in (type(None), ...)]
    if typing.get_origin(hint) is tuple:
        return inner[0], True
    return _element(inner[0]) if inner else (hint, False)


def _parser(field: dataclasses.Field[Any], element: Any, listed: bool) -> Callable[[str], Any]:
    told = field.metadata["option"]

    def parse(text: str) -> Any:
        if listed and told.choices and text == "all":
            return tuple(told.choices)
        try:
            words = text.split(",") if listed else [text]
            values = tuple((told.parse or element)(word) for word in words)
        except ValueError as error:
            if told.parse:
                raise argparse.ArgumentTypeError(str(error)) from None
            must_be = "numbers with commas between" if listed else _KINDS[element]
            raise argparse.ArgumentTypeError(_refusal(field, must_be, repr(text))) from None
        return values if listed else values[0]

    return parse


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    told = field.metadata["option"]
    each = value if isinstance(value, tuple) else (value,)
    if told.choices and not (each and set(each) <= set(told.choices)):
        names = ", ".join(told.choices)
        must_be = f"some of {names}, or all" if isinstance(value, tuple) else f"one of {names}"
        raise ValueError(_refusal(field, must_be, repr(",".join(each))))
    if told.at_most is not None:
        must_be = f"from {told.at_least} to {told.at_most}"
    else:
        must_be = f"above {told.above}" if told.at_least is None else f"at least {told.at_least}"
    # The condition is written so that NaN is refused, too.
    if not all(
        (told.at_least is None or number >= told.at_least)
        and (told.at_most is None or number <= told.at_most)
        and (told.above is None or number > told.above)
        for number in each
    ):
        raise ValueError(_refusal(field, must_be, value))
    if told.writes is not None:
        _check_file(field, value)


def _check_file(field: dataclasses.Field[Any], path: pathlib.Path) -> None:
    suffixes, flag = field.metadata["option"].writes, _flags(field)[0]
    received = f"received {str(path)!r}"
    if path.is_dir() or (suffixes and path.suffix.lower() not in suffixes):
        end = suffixes[0] if suffixes else ".json"
        fixed = path / f"tfdp{end}" if path.is_dir() else path.with_suffix(end)
        raise ValueError(
            f"`{_name(field)}` must be a file{f' that ends in {end}' if suffixes else ''}; "
            f"{received}{', a directory' if path.is_dir() else ''}; do `{flag} {fixed}`."
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"`{_name(field)}` must be in a directory that exists; {received}; "
            f"do `mkdir -p {path.parent}`."
        )


def _refusal(field: dataclasses.Field[Any], must_be: str, received: Any) -> str:
    told, default = field.metadata["option"], field.default
    if isinstance(received, tuple):
        received = repr(",".join(map(str, received)))
    elif isinstance(received, float):
        received = f"{received:g}"
    several = told.choices and isinstance(default, tuple)
    example = told.example or ("all" if several else default)
    if isinstance(example, tuple):
        example = ",".join(map(str, example))
    shown = f"{example:g}" if isinstance(example, float) else example
    left_out = ", or leave it out" if default is None else ""
    return (
        f"`{_name(field)}` must be {must_be}; received {received}; "
        f"do `{_flags(field)[0]} {shown}`{left_out}."
    )
