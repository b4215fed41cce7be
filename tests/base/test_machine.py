"""What the process runs on."""

import importlib.metadata

import pytest

from tfdp.base import machine


def test_versions_are_those_that_are_installed():
    found = machine.versions()
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert found["tensorflow"].startswith("2.")


def test_gpus_are_those_that_the_driver_shows(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_NVIDIA_GPUS", tmp_path)
    for number, model in enumerate(["NVIDIA H200", "NVIDIA A100"]):
        (tmp_path / f"0000:0{number}").mkdir()
        (tmp_path / f"0000:0{number}" / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    (tmp_path / "0000:09").mkdir()
    assert machine.gpus() == ["NVIDIA H200", "NVIDIA A100", "unknown"]
    monkeypatch.setattr(machine, "_NVIDIA_GPUS", tmp_path / "absent")
    assert machine.gpus() == []


@pytest.mark.parametrize(
    ("text", "name"), [("model name\t: AMD EPYC\nmodel name\t: x\n", "AMD EPYC"), ("", None)]
)
def test_the_processor_has_the_kernel_s_name(text, name, tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    monkeypatch.setattr(machine, "_CPU_INFO", path)
    found = machine.cpu_model()
    assert found == name if name else found != ""


@pytest.mark.parametrize(
    ("installed", "is_for_cpus"),
    [
        (["tensorflow-cpu"], True),
        (["tensorflow"], False),
        (["tensorflow", "tensorflow-cpu"], False),
        ([], False),
    ],
)
def test_the_build_of_tensorflow_is_that_which_is_installed(monkeypatch, installed, is_for_cpus):
    def version(name):
        if name in installed:
            return "2.21.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert machine.tensorflow_is_for_cpus() == is_for_cpus
