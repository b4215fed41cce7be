"""The variables that an option leaves out, by patterns of their paths."""

import logging
import re
from collections.abc import Sequence
from typing import Any

#: Patterns of the paths of biases and of the weights of normalization.
#:
#: Their norms do not show the scale of a layer's output, and pulling them to zero does not
#: regularize. The papers' experiments leave them out, as do the reference programs of MLPerf.
BIAS_AND_NORMALIZATION = (
    r"(^|/)bias$",
    r"(^|/)gamma$",  # of BatchNormalization, LayerNormalization, GroupNormalization
    r"(^|/)beta$",
    r"(^|/)scale$",  # of RMSNormalization
)


def checked(name: str, patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns patterns that can be searched for; None, for the default ones, stays None.

    Raises:
      ValueError: `patterns` is not a sequence of regular expressions.
    """
    if patterns is None:
        return None
    fix = f'Use {name}=["bias$", "layer_norm"], or None for biases and normalization.'
    if isinstance(patterns, (str, bytes)) or not isinstance(patterns, Sequence):
        raise ValueError(f"`{name}` must be a list of patterns, but received {patterns!r}. {fix}")
    for pattern in patterns:
        try:
            if not isinstance(pattern, str):
                raise TypeError("it is no string")
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"`{name}` must hold regular expressions, but received {pattern!r} ({error}). {fix}"
            ) from None
    return tuple(patterns)


def excluded(
    name: str, patterns: tuple[str, ...] | None, variables: Sequence[Any], lenient: bool = False
) -> tuple[bool, ...]:
    """Returns for each variable whether it is left out: whether a pattern is found in its path.

    Args:
      name: The option that `patterns` were given to.
      patterns: Regular expressions, or None for `BIAS_AND_NORMALIZATION`.
      variables: Keras variables, which have a `path`, or TensorFlow's, whose name is taken without
        its ":0".
      lenient: Whether a pattern that is found in no path only gives a warning. Keras may give the
        layers of a loaded model other names than they were trained with.

    Raises:
      ValueError: A pattern is found in no path: it is misspelt, and would be ignored. The patterns
        of `BIAS_AND_NORMALIZATION` may be missing.

    >>> import keras
    >>> kernel = keras.Variable([1.0], name="kernel")
    >>> excluded("exclude_from_weight_decay", ("kern",), [kernel])
    (True,)
    """
    paths = [
        getattr(variable, "path", None) or re.sub(r":\d+$", "", variable.name)
        for variable in variables
    ]
    if patterns is None:
        patterns = BIAS_AND_NORMALIZATION
    for pattern in patterns:
        found = any(re.search(pattern, path) for path in paths)
        if not found and pattern not in BIAS_AND_NORMALIZATION:
            text = (
                f"Every pattern of `{name}` must be found in the path of a variable, but "
                f"{pattern!r} is found in none of {', '.join(paths)}. Mend it or leave it out; "
                "the model's own name and the numbers of unnamed layers change when it is loaded."
            )
            if not lenient:
                raise ValueError(text)
            logging.getLogger("tfdp").warning(text)
    return tuple(any(re.search(pattern, path) for pattern in patterns) for path in paths)
