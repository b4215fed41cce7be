"""Folders of images: the same values in the same order as Keras' own reader gives."""

import os
import re
import shutil

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
import tfdp.keras
from tfdp.data.sources.image_folders import ImageDirectorySource

tfdp.keras.install()  # on one device no strategy does it

ENCODERS = {".png": tf.io.encode_png, ".jpg": tf.io.encode_jpeg, ".JPEG": tf.io.encode_jpeg}
# In another order than sorted, with folders below and names that sort around a "/".
FILES = [
    "dog/2.png",
    "dog/10.jpg",
    "dog/old/1.png",
    "dog-wild/1.png",
    "cat/b.JPEG",
    "cat/a.png",
    "cat/a b/c.png",
]


def pixels(seed, size=(8, 6), channels=3):
    return np.random.default_rng(seed).integers(0, 256, [*size, channels], np.uint8)


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ENCODERS[path.suffix](image).numpy())


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(FILES):
        write(tmp_path / "train" / name, pixels(seed))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "readme.png.md").write_text("no image")
    return tmp_path / "train"


def read(source):
    """All examples, each read by itself in a graph, with the spec checked."""
    dataset = tf.data.Dataset.range(len(source)).map(source.row, num_parallel_calls=2)
    assert dataset.element_spec == source.element_spec
    return list(dataset.as_numpy_iterator())


def by_keras(folder, **options):
    dataset = keras.utils.image_dataset_from_directory(
        folder, shuffle=False, batch_size=None, verbose=False, **options
    )
    return dataset, list(dataset.as_numpy_iterator())


def assert_equal(examples, expected):
    assert len(examples) == len(expected)
    for example, other in zip(examples, expected, strict=True):
        for leaf, wanted in zip(tf.nest.flatten(example), tf.nest.flatten(other), strict=True):
            assert leaf.dtype == wanted.dtype
            np.testing.assert_array_equal(leaf, wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"image_size": (4, 5)},
        {"image_size": (8, 6)},
        {"image_size": 16, "interpolation": "bicubic"},
        {"image_size": (3, 3), "interpolation": "nearest"},
        {"image_size": (3, 3), "interpolation": "area"},
        {"image_size": (3, 3), "interpolation": "lanczos3"},
        {"image_size": (4, 5), "color_mode": "grayscale"},
        {"image_size": (4, 5), "labels": None},
    ],
    ids=str,
)
def test_every_value_is_that_of_keras(folder, options):
    source = ImageDirectorySource(folder, **options)
    dataset, expected = by_keras(folder, **options)
    assert_equal(read(source), expected)
    assert source.paths == dataset.file_paths
    assert source.class_names == dataset.class_names


def test_without_a_size_the_images_are_as_they_are_stored(folder):
    for path in folder.rglob("*"):
        if path.suffix in ENCODERS and path.suffix != ".png":
            path.unlink()
    source = ImageDirectorySource(folder)
    stored = {name: pixels(seed) for seed, name in enumerate(FILES)}
    assert source.element_spec == (
        tf.TensorSpec([8, 6, 3], tf.uint8),
        tf.TensorSpec([], tf.int32),
    )
    names = [os.path.relpath(path, folder) for path in source.paths]
    assert names == ["cat/a.png", "cat/a b/c.png", "dog/2.png", "dog/old/1.png", "dog-wild/1.png"]
    assert_equal(
        read(source),
        [(stored[name], np.int32(source.class_names.index(name.split("/")[0]))) for name in names],
    )


@pytest.mark.parametrize("mode", ["rgb", "rgba", "grayscale"])
def test_pillow_agrees_on_png_of_any_mode(tmp_path, mode):
    Image = pytest.importorskip("PIL.Image")
    pillow = {"rgb": "RGB", "rgba": "RGBA", "grayscale": "L"}[mode]
    channels = {"rgb": 3, "rgba": 4, "grayscale": 1}[mode]
    (tmp_path / "a").mkdir()
    image = Image.fromarray(pixels(1, channels=channels).squeeze(), pillow)
    image.save(tmp_path / "a" / "1.png")
    ((read_image, label),) = read(ImageDirectorySource(tmp_path, color_mode=mode))
    np.testing.assert_array_equal(
        read_image, np.asarray(Image.open(tmp_path / "a" / "1.png")).reshape(read_image.shape)
    )
    assert label == 0


@pytest.mark.parametrize("ending", [".bmp", ".gif"])
def test_other_formats_are_read_too(tmp_path, ending):
    Image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    frames = [Image.fromarray(np.full([4, 6, 3], value, np.uint8)) for value in (0, 255)]
    more = {"save_all": True, "append_images": frames[1:]} if ending == ".gif" else {}
    frames[0].save(tmp_path / "a" / f"1{ending}", **more)
    ((image, _),) = read(ImageDirectorySource(tmp_path))
    np.testing.assert_array_equal(image, np.zeros([4, 6, 3]))  # of an animation, the first


def test_rows_are_the_same_images(folder):
    source = ImageDirectorySource(folder, image_size=(4, 5))
    images, labels = tf.function(source.rows)(tf.constant([5, 0, 5], tf.int64))
    singly = read(source)
    np.testing.assert_array_equal(images, [singly[index][0] for index in (5, 0, 5)])
    np.testing.assert_array_equal(labels, [singly[index][1] for index in (5, 0, 5)])


def test_an_image_of_another_size_is_named_with_the_fix(folder):
    write(folder / "dog" / "3.png", pixels(9, (7, 6)))
    source = ImageDirectorySource(folder)
    path = str(folder / "dog" / "3.png")
    message = f"8 x 6, but {path} is 7 x 6. Use image_size=(8, 6)."
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        for _ in tfdp.data.pipeline(source, 2, seed=3):
            pass
    assert len(read(ImageDirectorySource(folder, image_size=(8, 6)))) == len(FILES) + 1


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"<html>"],
    ids=["cut", "empty", "another format"],
)
@pytest.mark.parametrize("name", ["dog/2.png", "dog/10.jpg"])
def test_a_corrupt_image_is_named(folder, name, damage):
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    source = ImageDirectorySource(folder, image_size=(4, 5))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"but {re.escape(str(path))} cannot"):
        for _ in tfdp.data.pipeline(source, 2, seed=3):
            pass
    assert source.explain(range(len(source))).count(name) == 1


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_corrupt_image_is_named_in_fit_and_under_a_strategy(folder, replicas):
    path = folder / "dog" / "2.png"
    path.write_bytes(b"")
    source = ImageDirectorySource(folder, image_size=(4, 5))
    named = pytest.raises(
        tf.errors.InvalidArgumentError, match=f"but {re.escape(str(path))} cannot"
    )

    def build():
        layers = [keras.Input((4, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(4)]
        model = keras.Sequential(layers)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    model = harness.build_in_scope(build, replicas)
    with named:
        model.fit(tfdp.data.pipeline(source, 2, seed=3), verbose=0)
    with named:
        model.evaluate(tfdp.data.pipeline(source, 2, seed=3), verbose=0)
    if replicas:
        strategy = model.distribute_strategy
        with named:
            for _ in strategy.experimental_distribute_dataset(
                tfdp.data.pipeline(source, 2, seed=3)
            ):
                pass


def test_a_corrupt_first_image_is_named_where_its_size_is_needed(folder):
    path = folder / "cat" / "a.png"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=f"but {re.escape(str(path))} cannot"):
        ImageDirectorySource(folder)


def test_a_file_that_went_away_is_named(folder):
    source = ImageDirectorySource(folder, image_size=(4, 5))
    (folder / "dog" / "2.png").unlink()
    with pytest.raises(tf.errors.NotFoundError, match=r"dog/2\.png"):
        read(source)


def test_a_class_without_images_keeps_its_label(folder):
    (folder / "bird").mkdir()
    source = ImageDirectorySource(folder, image_size=(4, 5))
    assert source.class_names == ["bird", "cat", "dog", "dog-wild"]
    assert sorted({int(label) for _, label in read(source)}) == [1, 2, 3]


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be a folder, but received '.*missing'"):
        ImageDirectorySource(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"must be a folder"):
        ImageDirectorySource(tmp_path / "missing", labels=None)
    with pytest.raises(ValueError, match=r"no folder in .* Use labels=None"):
        ImageDirectorySource(tmp_path)
    with pytest.raises(ValueError, match="must hold images"):
        ImageDirectorySource(tmp_path, labels=None)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"must hold images \(.bmp, .gif, .jpeg, .jpg, .png\)"):
        ImageDirectorySource(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"color_mode": "cmyk"}, "'rgb', 'rgba', 'grayscale', but received 'cmyk'. Use color_mode"),
        ({"interpolation": "cubic"}, "`interpolation` must be one of 'bilinear', "),
        ({"labels": [0, 1]}, "`labels` must be one of 'inferred', None, but received [0, 1]."),
        ({"image_size": (4,)}, "`image_size` must be (height, width), two whole numbers above 0"),
        ({"image_size": (4, 0)}, "but received (4, 0). Use image_size=(224, 224)"),
        ({"image_size": 2.5}, "but received 2.5."),
        ({"image_size": True}, "but received True."),
    ],
    ids=str,
)
def test_options_are_checked(folder, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ImageDirectorySource(folder, **options)


def test_the_fingerprint_is_of_names_and_sizes_and_not_of_the_place(folder, tmp_path):
    first = ImageDirectorySource(folder).fingerprint
    shutil.copytree(folder, tmp_path / "copy")
    assert ImageDirectorySource(tmp_path / "copy").fingerprint == first
    (tmp_path / "copy" / "dog" / "2.png").rename(tmp_path / "copy" / "dog" / "3.png")
    renamed = ImageDirectorySource(tmp_path / "copy").fingerprint
    write(tmp_path / "copy" / "dog" / "3.png", pixels(9, (8, 6)) // 64)
    assert len({first, renamed, ImageDirectorySource(tmp_path / "copy").fingerprint}) == 3


def test_it_says_what_it_is(folder):
    assert ImageDirectorySource(folder).describe() == f"{len(FILES)} images in {folder}"
