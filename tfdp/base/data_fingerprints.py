"""The fingerprints of data: what distinguishes them from others, and which part was read."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

# Arrays up to this size are read whole, which takes some 0.2 s; of larger ones, rows of this size.
WHOLE_BYTES = 2**26


def fingerprint(data: Any) -> dict[str, Any] | None:
    """Returns what distinguishes `data` from other data, as far as that is cheap to find out; JSON.

    Args:
      data: A `tfdp.data.Pipeline`, or anything with a method `identify()`; arrays, tensors and
        tuples, lists and dicts of them; a `tf.data.Dataset`; anything else; None.

    Returns:
      `kind`, and `covers`: what the other entries are made from, in words. Equal fingerprints mean
      no more than that these agree.

    Cost: at most 64 MiB of each array are read; nothing is read of a `tf.data.Dataset`.

    >>> import numpy as np
    >>> fingerprint((np.arange(3, dtype="int32"), np.zeros([3, 2], "float32")))["arrays"]
    {'0': 'int32 [3]', '1': 'float32 [3, 2]'}
    >>> fingerprint(object())
    {'kind': 'object', 'covers': 'its class'}
    """
    if data is None:
        return None
    if callable(getattr(data, "identify", None)):
        return dict(data.identify())
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(data, tensorflow.data.Dataset):
        return _of_dataset(data, tensorflow)
    leaves = dict(_leaves(data))
    if leaves and all(_is_array(leaf) for leaf in leaves.values()):
        return {"kind": "arrays", **fingerprint_arrays(leaves)}
    name = type(data).__name__
    if hasattr(data, "__len__"):
        return {"kind": name, "length": len(data), "covers": "its class and length"}
    return {"kind": name, "covers": "its class"}


def fingerprint_arrays(arrays: Mapping[str, Any], whole_bytes: int = WHOLE_BYTES) -> dict[str, Any]:
    """Returns a checksum of arrays.

    Args:
      arrays: The arrays, which have `shape` and `dtype`, by their names.
      whole_bytes: The size up to which an array is read whole.

    Returns:
      `arrays`: dtype and shape of each. `checksum`: SHA-256 of names, dtypes, shapes and content.
      `covers`: which part of the content was read.

    >>> import numpy as np
    >>> fingerprint_arrays({"x": np.zeros([4, 2], "uint8")}, whole_bytes=4)["covers"]
    'names, dtypes and shapes; of x the bytes of 2 of 4 rows, evenly spaced'
    """
    import numpy as np

    checksum = hashlib.sha256()
    # A tensor is in memory already, and cannot be indexed by rows.
    found = {
        name: array.numpy() if hasattr(array, "numpy") else array
        for name, array in sorted(arrays.items())
    }
    described = {name: _described(array) for name, array in found.items()}
    parts = []
    for name, array in found.items():
        checksum.update(f"{name}: {described[name]}\n".encode())
        number = _rows_within(array, whole_bytes)
        if number is None:
            content = np.asarray(array)
        else:
            content = np.asarray(array[np.linspace(0, len(array) - 1, number).astype(int)])
            parts.append(f"of {name} the bytes of {number} of {len(array)} rows, evenly spaced")
        for piece in _bytes_of(content):
            checksum.update(piece)
    covers = "names, dtypes and shapes; " + (", ".join(parts) or "all bytes")
    if parts and len(parts) < len(described):
        covers += ", of the others all"
    return {"arrays": described, "checksum": f"sha256:{checksum.hexdigest()}", "covers": covers}


def _of_dataset(dataset: Any, tensorflow: Any) -> dict[str, Any]:
    number = int(dataset.cardinality())
    names = {
        tensorflow.data.INFINITE_CARDINALITY: "infinite",
        tensorflow.data.UNKNOWN_CARDINALITY: "unknown",
    }
    return {
        "kind": "tf.data.Dataset",
        "cardinality": names.get(number, number),
        "element_spec": str(dataset.element_spec),
        "covers": "element_spec and cardinality; no element was read",
    }


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        items: Any = data.items()
    elif isinstance(data, tuple | list):
        items = enumerate(data)
    else:
        yield path or "data", data
        return
    for key, item in items:
        yield from _leaves(item, f"{path}/{key}" if path else str(key))


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "__array__")


def _described(array: Any) -> str:
    return f"{getattr(array.dtype, 'name', array.dtype)} {[int(size) for size in array.shape]}"


def _rows_within(array: Any, whole_bytes: int) -> int | None:
    """Returns how many rows are read; None: the whole array is read."""
    import numpy as np

    # The size of a string is known only once it is read: each counts as its reference.
    size = int(np.prod(array.shape)) * array.dtype.itemsize
    if size <= whole_bytes or not array.shape:
        return None
    rows = int(array.shape[0])
    number = min(rows, max(2, whole_bytes * rows // size))
    return None if number == rows else number


def _bytes_of(content: Any) -> Iterator[Any]:
    import numpy as np

    if content.dtype == object:
        for item in content.flat:
            text = item if isinstance(item, bytes) else str(item).encode()
            yield f"{len(text)}:".encode() + text
    else:
        yield np.ascontiguousarray(content).reshape(-1).view(np.uint8)
