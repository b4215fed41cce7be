"""The commands of `tfdp`, as its parser describes them."""

from __future__ import annotations

import argparse
import functools
import re
import textwrap
from collections.abc import Iterator

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from tfdp.tools.cli import build_parser


class Commands(SphinxDirective):
    """`.. commands::` describes every command in a section of its own."""

    def run(self) -> list[nodes.Node]:
        """What each is for, its usage and its options."""
        lines = []
        for command, (parser, summary) in commands().items():
            lines += [f".. _{label_of(command)}:", "", command, "-" * len(command), ""]
            lines += [f".. program:: {command}", "", _escaped(parser.description or summary), ""]
            lines += [".. code-block:: text", "", textwrap.indent(_usage(parser), "   "), ""]
            for action in parser._actions:
                lines += _option(parser, action)
        text = "\n".join(lines)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


@functools.cache
def commands() -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """The parser and the summary of each command, by its words."""
    parser = build_parser()
    return {parser.prog: (parser, ""), **dict(_below(parser))}


def command_of(text: str) -> str | None:
    """The command that a line such as "tfdp run -n 2 train.py" calls; None if it calls none."""
    words = text.split()
    for end in range(len(words), 1, -1):
        if (command := " ".join(words[:end])) in commands():
            return command
    return None


def label_of(command: str) -> str:
    """Where its section is."""
    return command.replace(" ", "-")


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, tuple]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help for choice in action._choices_actions}
            for name, subparser in action.choices.items():
                yield subparser.prog, (subparser, summaries.get(name) or "")
                yield from _below(subparser)


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = parser.formatter_class(parser.prog, width=88)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help()


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
        return []
    formatter = parser._get_formatter()
    metavar = formatter._get_default_metavar_for_optional(action)
    if isinstance(action, argparse._SubParsersAction):
        names, text = [str(action.metavar)], f"One of {', '.join(action.choices)}."
    else:
        text = formatter._expand_help(action) if action.help else ""
        arguments = "" if action.nargs == 0 else formatter._format_args(action, metavar)
        names = [f"{name} {arguments}".strip() for name in action.option_strings]
    return [f".. option:: {', '.join(names or [arguments])}", "", f"   {_escaped(text)}", ""]


def _escaped(text: str) -> str:
    """As reStructuredText; names in backquotes stay names."""
    return re.sub(r"([*|\\]|_(?!\w))", r"\\\1", " ".join(text.split()))
