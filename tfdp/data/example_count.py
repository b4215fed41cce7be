"""The number of examples of a source, and the check that the options allow it."""

from __future__ import annotations

from tfdp.data.mapping import check_dense
from tfdp.data.memory_budget import check_buffer
from tfdp.data.options import PipelineOptions
from tfdp.data.sources.abstract import AbstractIndexedSource, AbstractSource, AbstractStreamSource


def checked_length(source: AbstractSource, options: PipelineOptions) -> int | None:
    """Returns the number of examples; None: only reading them tells.

    Raises:
      ValueError: There is none, or too few to fill a batch; the shapes of examples vary; the
        examples do not fit into `memory_bytes`.

    >>> from tfdp.data.sources import ArraySource
    >>> checked_length(ArraySource([1, 2, 3]), PipelineOptions(global_batch_size=2, seed=1))
    3
    """
    if options.map_fn is None:
        check_dense(source.element_spec, source.describe())
    if isinstance(source, AbstractIndexedSource):
        length: int | None = len(source)
    else:
        assert isinstance(source, AbstractStreamSource)
        length = source.num_examples
        held = options.shuffle_buffer if options.shuffle else 0
        if options.cache:
            held = max(held, length or 0)
        elif length is not None:
            held = min(held, length)
        check_buffer(held, source.element_spec, options.memory_bytes)
    if length == 0:
        raise empty(source.describe())
    if length is not None and options.drop_remainder and length < options.global_batch_size:
        raise ValueError(
            f"With `drop_remainder` the source must fill a batch of {options.global_batch_size}; "
            f"received {length} examples ({source.describe()}). Use a `global_batch_size` of at "
            f"most {length}, or `drop_remainder=False`."
        )
    return length


def empty(described: str) -> ValueError:
    """Returns the error for a source without examples; `described` is its `describe()`.

    >>> print(empty("arrays of shape [0]"))
    `source` must hold at least one example; received arrays of shape [0], which is empty. ...
    """
    return ValueError(
        f"`source` must hold at least one example; received {described}, which is empty. "
        "Check what made it."
    )
