"""The source of folders of image files, one sub-folder for each class."""

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource

CHANNELS = {"rgb": 3, "rgba": 4, "grayscale": 1}
INTERPOLATIONS = (
    "bilinear",
    "nearest",
    "bicubic",
    "area",
    "lanczos3",
    "lanczos5",
    "gaussian",
    "mitchellcubic",
)


class ImageDirectorySource(AbstractIndexedSource):
    """The images of a folder, in the order of `keras.utils.image_dataset_from_directory`.

    An example is (image, label). The image has the shape (height, width, channels), uint8 as it is
    stored, or float32 in 0..255 once resized. The label is an int32, the place of its folder's name
    in `class_names`.

    Args:
      directory: A folder with a folder for each class. Files may lie in folders below those; other
        files than .bmp, .gif, .jpeg, .jpg and .png are left out. An animation is its first frame.
      image_size: The (height, width) that every image is resized to, or one number for both. None:
        the images are left as they are, all as large as the first.
      color_mode: "rgb", "rgba" or "grayscale".
      interpolation: The method of resizing: "bilinear", "nearest" (which keeps uint8), "bicubic",
        "area", "lanczos3", "lanczos5", "gaussian" or "mitchellcubic".
      labels: "inferred" from the folders, or None: the images alone, also those of `directory`
        itself.

    Attributes:
      class_names: The names of the folders, sorted; None without labels.
      paths: The path of each image.

    Raises:
      ValueError: An option is not one of these, there is no folder or no image, or the first image
        cannot be decoded where its size is needed. Another image that cannot be decoded, or has
        another size, raises `tf.errors.InvalidArgumentError` when it is read; the pipeline's
        message names its file.

    Cost: lists the folder and asks for the size of each file once. An example reads its own file.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     _ = (folder / name / "1.png").write_bytes(
    ...         tf.io.encode_png(tf.zeros([4, 6, 3], tf.uint8)).numpy()
    ...     )
    >>> source = ImageDirectorySource(folder, image_size=(2, 3))
    >>> image, label = source.row(tf.constant(1, tf.int64))
    >>> image.shape, source.class_names[int(label)]
    (TensorShape([2, 3, 3]), 'dog')
    """

    vectorized = False
    fingerprint_covers = "names and sizes of the files"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        image_size: tuple[int, int] | int | None = None,
        color_mode: str = "rgb",
        interpolation: str = "bilinear",
        labels: str | None = "inferred",
    ) -> None:
        _check_one_of("color_mode", color_mode, tuple(CHANNELS))
        _check_one_of("interpolation", interpolation, INTERPOLATIONS)
        _check_one_of("labels", labels, ("inferred", None))
        self._resized = _size(image_size)
        self._color_mode = color_mode
        self._interpolation = interpolation
        self._directory = os.fspath(directory)
        self.class_names = None if labels is None else class_folders(self._directory)
        names, places = image_names(self._directory, self.class_names)
        self.paths = [os.path.join(self._directory, name) for name in names]
        with tf.init_scope(), tf.device("CPU:0"):
            self._paths = tf.constant(self.paths)
            self._labels = tf.constant(places, tf.int32)
        size = self._resized or _first_size(self.paths[0], color_mode)
        as_stored = self._resized is None or interpolation == "nearest"
        image = tf.TensorSpec([*size, CHANNELS[color_mode]], tf.uint8 if as_stored else tf.float32)
        label = tf.TensorSpec([], tf.int32)
        self.element_spec: Any = image if labels is None else (image, label)
        self._image_spec = image
        self.fingerprint = f"{len(names)} images: {checksum(names, self.paths):08x}"

    def __len__(self) -> int:
        return len(self.paths)

    def describe(self) -> str:
        """Names the number of images, and the folder."""
        return f"{len(self)} images in {self._directory}"

    def rows(self, indices: tf.Tensor) -> Any:
        """Reads the images one by one."""
        return tf.map_fn(self.row, indices, fn_output_signature=self.element_spec)

    def row(self, index: tf.Tensor) -> Any:
        """Reads one file."""
        path = tf.gather(self._paths, index)
        image = _decoded(tf.io.read_file(path), self._color_mode)
        if self._resized is not None:
            image = tf.image.resize(image, self._resized, method=self._interpolation)
        image = tf.ensure_shape(image, self._image_spec.shape)
        return image if self.class_names is None else (image, tf.gather(self._labels, index))

    def explain(self, indices: Iterable[int]) -> str | None:
        """Names the first file that cannot be decoded or is of another size: TensorFlow does not.

        Naming it while it is read would take an example as long as decoding a small image.
        """
        height, width = self._image_spec.shape[:2]
        for index in indices:
            path = self.paths[index]
            try:
                image = _decoded(tf.io.read_file(path), self._color_mode)
            except tf.errors.OpError:
                beginning, end = _unreadable(self._color_mode)
                return f"{beginning}{path}{end}"
            if self._resized is None and image.shape != self._image_spec.shape:
                return (
                    "Without `image_size` every image must be as large as the first, "
                    f"{height} x {width}, but {path} is {image.shape[0]} x {image.shape[1]}. Use "
                    f"image_size=({height}, {width})."
                )
        return None


def _decoded(content: tf.Tensor, color_mode: str) -> tf.Tensor:
    return tf.io.decode_image(content, channels=CHANNELS[color_mode], expand_animations=False)


def _first_size(path: str, color_mode: str) -> tuple[int, int]:
    try:
        height, width, _ = _decoded(tf.io.read_file(path), color_mode).shape
    except tf.errors.InvalidArgumentError as error:
        beginning, end = _unreadable(color_mode)
        raise ValueError(f"{beginning}{path}{end}") from error
    return height, width


def _unreadable(color_mode: str) -> tuple[str, str]:
    return (
        f"Every image must be a whole file that can be decoded in color_mode={color_mode!r}, but ",
        " cannot. Save it anew, remove it, or use another color_mode.",
    )


def _size(image_size: Any) -> tuple[int, int] | None:
    if image_size is None:
        return None
    pair = (image_size, image_size) if isinstance(image_size, int) else image_size
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in pair):
        raise ValueError(
            "`image_size` must be (height, width), two whole numbers above 0, but received "
            f"{image_size!r}. Use image_size=(224, 224), or None for images of one size."
        )
    return pair[0], pair[1]


def _check_one_of(name: str, value: Any, choices: tuple[str | None, ...]) -> None:
    if not (value is None or isinstance(value, str)) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(
            f"`{name}` must be one of {listed}, but received {value!r}. Use {name}={choices[0]!r}."
        )


FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


def class_folders(directory: str) -> list[str]:
    """Returns the names of the folders in `directory`, sorted, without hidden ones."""
    if not tf.io.gfile.isdir(directory):
        raise ValueError(
            f"`directory` must be a folder, but received {directory!r}. Check the path, and that "
            "this host can read it."
        )
    names = sorted(name.removesuffix("/") for name in tf.io.gfile.listdir(directory))
    return [
        name
        for name in names
        if not name.startswith(".") and tf.io.gfile.isdir(os.path.join(directory, name))
    ]


def image_names(directory: str, class_names: list[str] | None) -> tuple[list[str], list[int]]:
    """Returns the names of the images relative to `directory`, and their labels."""
    if class_names == []:
        raise ValueError(
            "`directory` must have a folder for each class, but there is no folder in "
            f"{directory!r}. Use labels=None for the images alone."
        )
    if class_names is None:
        class_folders(directory)  # refuses what is no folder
    found = [
        (os.path.normpath(os.path.join(folder, name)), label)
        for label, folder in enumerate(class_names or [""])
        for name in _names_below(os.path.join(directory, folder))
    ]
    if not found:
        raise ValueError(
            f"`directory` must hold images ({', '.join(FORMATS)}), but there is none in "
            f"{directory!r} and the folders below it. Check the path and the files' names."
        )
    return [name for name, _ in found], [label for _, label in found]


def _names_below(folder: str) -> Iterator[str]:
    """Yields names relative to `folder`; like Keras, follows no links on a local disk."""
    walk = tf.io.gfile.walk if "://" in folder else os.walk
    for root, _, names in sorted(walk(folder), key=lambda found: found[0]):
        for name in sorted(names):
            if name.lower().endswith(FORMATS):
                yield os.path.relpath(os.path.join(root, name), folder)


def checksum(names: list[str], paths: list[str]) -> int:
    """Returns a checksum of the names and the sizes of the files."""
    checksum = 0
    for name, path in zip(names, paths, strict=True):
        part = f"{name.replace(os.sep, '/')} {tf.io.gfile.stat(path).length}\n"
        checksum = zlib.crc32(part.encode(), checksum)
    return checksum
