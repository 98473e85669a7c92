"""What is installed: versions that are so, and what is missing named with its repair."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from regard.cli import installation
from regard.cli.installation import extras, machine


def test_versions_and_threads():
    said = machine()
    assert said["regard"] == version("regard")
    assert said["Python"].startswith(platform.python_version())
    assert said["torch"] == torch.__version__
    assert said["threads"] == f"{torch.get_num_threads()} within an operation, of {os.cpu_count()} cores"


def test_a_gpu_is_described(monkeypatch):
    class Properties:
        name, total_memory, major, minor = "Some GPU", 8 * 2**30, 9, 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    assert machine()["CUDA"] == "Some GPU, 8 GiB, capability 9.0"


def test_every_extra_a_user_can_ask_for_and_no_other():
    assert set(extras()) == {"cli", "distributed", "gpu", "plots", "regression", "studio", "translation"}


def test_a_missing_package_is_named_with_its_repair(monkeypatch):
    def lacks_matplotlib(package):
        if package in ("matplotlib", "triton"):
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(installation, "version", lacks_matplotlib)
    assert extras()["plots"] == 'lacks matplotlib; pip install "regard[plots]"'
    assert extras()["cli"].startswith("cyclopts")
    assert machine()["triton"].startswith("not installed; regard[gpu] brings it")
    assert extras()["gpu"] == 'lacks triton; pip install "regard[gpu]"'
