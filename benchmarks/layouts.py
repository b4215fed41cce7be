"""The benchmark of derived layouts, beside those that KerasHub's authors wrote by hand."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.layouts_worker import mesh_of
from tfdp.base.command_line import add_command, check, option, require
from tfdp.tools.bench.child_process import ChildFailure, run_for_json

#: KerasHub's backbones that have a `get_layout_map`, and then others of transformers.
BACKBONES = (
    "GemmaBackbone",
    "LlamaBackbone",
    "Llama3Backbone",
    "QwenBackbone",
    "QwenMoeBackbone",
    "Qwen3MoeBackbone",
    "AlbertBackbone",
    "BartBackbone",
    "BertBackbone",
    "BloomBackbone",
    "DebertaV3Backbone",
    "DistilBertBackbone",
    "ESMBackbone",
    "FNetBackbone",
    "FalconBackbone",
    "GPT2Backbone",
    "GPTNeoXBackbone",
    "GptOssBackbone",
    "MistralBackbone",
    "MixtralBackbone",
    "OPTBackbone",
    "Phi3Backbone",
    "Qwen3Backbone",
    "RobertaBackbone",
    "T5Backbone",
    "XLNetBackbone",
)

#: With "auto" a device is sent, and needs, at most so many times what it is with the map.
BOUND = 1.1


@dataclasses.dataclass(frozen=True)
class LayoutsOptions:
    """What is compiled."""

    backbones: tuple[str, ...] = option(BACKBONES, "%(default)s", metavar="NAMES")
    meshes: tuple[str, ...] = option(
        ("1x8", "2x4"), "devices for the batch by devices for a layer (%(default)s)"
    )
    key_value_heads: int = option(8, "for 8 of queries (%(default)s)", at_least=1, at_most=8)
    rows: int = option(16, "of a batch (%(default)s)", at_least=1)
    length: int = option(64, "of a row, in words (%(default)s)", at_least=1, at_most=64)
    explain: bool = option(False, "print the derived layout of each weight")
    timeout_seconds: float = option(3600.0, "of each process (%(default)s)", above=0)

    def __post_init__(self) -> None:
        check(self)
        for mesh in self.meshes:
            mesh_of(mesh)


def add_layouts(commands: argparse._SubParsersAction) -> None:
    """Adds `layouts` to the benchmarks."""
    add_command(
        commands,
        "layouts",
        LayoutsOptions,
        _layouts,
        help='layout_map="auto" beside the layout maps of KerasHub',
        description="Has XLA compile a training step of KerasHub's backbones, with two layers and "
        "random weights, for meshes of eight CPU devices, with the layout map that KerasHub has "
        'for the backbone, if it has one, and with layout_map="auto", and shard="parameters" where '
        "the batch is sharded, as those maps do. Prints what a device keeps, "
        "what a step needs of its memory, and the bytes that the step sends. Nothing runs. Each "
        "backbone has a process of its own.",
        epilog=f'Exit code 0 if with "auto" no device needs or is sent more than {BOUND} times '
        "what it does with the map; else 1.",
    )


def _layouts(options: LayoutsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "jax", "keras_hub"], parser)
    return run(options)


def run(options: LayoutsOptions) -> int:
    """Compiles the steps of each backbone, and prints a table, in MiB.

    Returns:
      The exit code: 0; 1 where a process failed, or a figure is above `BOUND`.
    """
    print(
        "| backbone | mesh | state, full | map | auto "
        "| step's memory, map | auto | ratio | sent, map | auto | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    well = True
    for name in options.backbones:
        sizes = options.key_value_heads, options.rows, options.length
        arguments = [name, ",".join(options.meshes), *map(str, sizes)]
        found = run_for_json("benchmarks.layouts_worker", arguments, options.timeout_seconds)
        if isinstance(found, ChildFailure):
            well = False
            print(f"{name}: {found}", file=sys.stderr, flush=True)
            continue
        for mesh, each in found.items():
            print(row(name, mesh, each), flush=True)
            well = well and is_within_bound(each)
            for how, facts in each.items():
                if "refused" in facts:
                    print(f"{name}, {mesh}, {how}: {facts['refused']}", file=sys.stderr, flush=True)
            if options.explain:
                print(*each["auto"].get("layouts", ()), sep="\n", flush=True)
    return 0 if well else 1


def is_within_bound(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether "auto" compiles, and needs and sends at most `BOUND` times the map's.

    >>> little, much = {"memory": 10, "sent": 10}, {"memory": 10, "sent": 12}
    >>> is_within_bound({"map": little, "auto": much}), is_within_bound({"auto": much})
    (False, True)
    >>> is_within_bound({"map": {"refused": "8 heads"}, "auto": much})
    True
    """
    given, derived = found.get("map", {}), found["auto"]
    if "refused" in derived:
        return False
    return all(derived[what] <= BOUND * given.get(what, derived[what]) for what in _COMPARED)


_COMPARED = ("memory", "sent")


def row(name: str, mesh: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a row of the table.

    >>> given = {"full": 2**22, "state": 2**20, "memory": 2**23, "sent": 2**20}
    >>> derived = {"full": 2**22, "state": 2**19, "memory": 2**22, "sent": 2**21}
    >>> row("GemmaBackbone", "1x8", {"map": given, "auto": derived})
    '| Gemma | 1 x 8 | 4.0 | 1.0 | 0.5 | 8.0 | 4.0 | 0.50 | 1.0 | 2.0 | 2.00 |'
    >>> row("GPT2Backbone", "2x4", {"auto": derived})
    '| GPT2 | 2 x 4 | 4.0 | | 0.5 | | 4.0 | | | 2.0 | |'
    >>> row("GemmaBackbone", "1x8", {"map": {"refused": "8 heads"}, "auto": derived})
    '| Gemma | 1 x 8 | 4.0 | refused | 0.5 | refused | 4.0 | | refused | 2.0 | |'
    """
    given, derived = found.get("map", {}), found["auto"]
    cells = [name.removesuffix("Backbone"), mesh.replace("x", " x "), _mib(derived, "full")]
    cells += [_mib(given, "state"), _mib(derived, "state")]
    for what in _COMPARED:
        both = what in given and what in derived
        ratio = f"{derived[what] / given[what]:.2f}" if both else ""
        cells += [_mib(given, what), _mib(derived, what), ratio]
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def _mib(found: Mapping[str, Any], what: str) -> str:
    if "refused" in found:
        return "refused"
    return f"{found[what] / 2**20:.1f}" if what in found else ""
