"""The command `tfdp data index`, which writes the index file beside each TFRecord file."""

import argparse
import dataclasses
import sys

from tfdp.base.command_line import REQUIRED, add_command, option


@dataclasses.dataclass(frozen=True)
class IndexOptions:
    """The options of `tfdp data index`."""

    files: tuple[str, ...] = option(
        REQUIRED, "a file, or a pattern in quotes", flags=("FILE",), nargs="+"
    )
    force: bool = option(False, "write an index also where there is one")


def add_data(commands: argparse._SubParsersAction) -> None:
    """Adds `data` to the commands, and `index` to the commands of `data`."""
    data = commands.add_parser("data", help="prepare files of training data")
    add_command(
        data.add_subparsers(metavar="TASK", required=True),
        "index",
        IndexOptions,
        _index,
        help="write where the records of TFRecord files are",
        description="Reads TFRecord files once, checks every record and writes FILE.tfdp-index "
        "beside each. With it, TFRecordSource opens at once and knows which records are corrupt.",
        epilog="Exit code 0 if every record is whole; 1 if something is corrupt, which is then "
        "named (and indexed as such, for on_error='skip'); 2 if a file cannot be indexed.",
    )


def _index(options: IndexOptions, parser: argparse.ArgumentParser) -> int:
    from tfdp.data.sources.record_files import spans_of

    try:
        paths = [str(span.path) for span in spans_of(options.files)]
        whole = [_index_file(path, options.force) for path in paths]
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    return 0 if all(whole) else 1


def _index_file(path: str, force: bool) -> bool:
    """Writes the index of a file, prints its numbers, and returns whether the file is whole."""
    from tfdp.data.sources.record_index import build_index, load_index
    from tfdp.data.sources.record_scan import HEADER

    records = None if force else load_index(path)
    done = "already indexed" if records else "indexed"
    if records is None:
        records = build_index(path)
    print(f"{path}: {len(records)} records {done}", flush=True)
    assert records.corrupt is not None
    offsets = (records.offsets[records.corrupt] - HEADER.size).tolist()
    if offsets:
        shown = ", ".join(map(str, offsets[:5])) + ", ..." * (len(offsets) > 5)
        print(f"{path}: {len(offsets)} corrupt records, at bytes {shown}", file=sys.stderr)
    if records.damage:
        offset, reason = records.damage
        print(f"{path}: nothing can be read from byte {offset}: {reason}", file=sys.stderr)
    return not offsets and not records.damage
