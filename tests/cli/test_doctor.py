"""`regard doctor` names versions, devices, extras, and which backend would run."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

import regard
from regard.backends.dispatch import BACKENDS
from regard.cli import doctor
from regard.cli.app import run
from regard.cli.doctor import backend_report, devices, extras, machine


def test_the_table_has_versions_extras_and_backends(capsys, monkeypatch):
    monkeypatch.setattr("regard.cli.doctor.extras", lambda: {"plots": "matplotlib 3"})
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines()[:8] if line and line[0] != " ")
    assert rows["torch"].strip() == torch.__version__
    assert rows["regard[plots]"].strip() == "matplotlib 3"
    assert "\ndot product, 2 x 16 x 16, on cpu: torch\n" in printed
    assert "  not triton: " in printed


def test_as_json_it_says_what_why_says(capsys):
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["torch"] == torch.__version__
    assert set(found) == {"machine", "extras", "backends"}
    large = next(one for one in found["backends"] if one["what"] == "kernel of the distance" and "2048" in one["size"])
    tokens = torch.zeros(4, 2048, 16)
    explained = regard.why(tokens, tokens, tokens, "laplacian")
    assert (large["backend"], large["error"], large["not"]) == (explained.backend, explained.bound, explained.refusals)


def test_it_is_the_verb(capsys):
    doctor.doctor(json=True)
    assert json.loads(capsys.readouterr().out)["machine"]["regard"] == regard.__version__


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

    monkeypatch.setattr(doctor, "version", lacks_matplotlib)
    assert extras()["plots"] == 'lacks matplotlib; pip install "regard[plots]"'
    assert extras()["cli"].startswith("cyclopts")
    assert machine()["triton"].startswith("not installed; regard[gpu] brings it")
    assert extras()["gpu"] == 'lacks triton; pip install "regard[gpu]"'


def test_each_kind_in_two_sizes_on_each_device():
    found = backend_report()
    assert len(found) == 2 * 4 * len(list(devices()))
    for one in found:
        assert {one["backend"], *one["not"]} == set(BACKENDS)
        assert all(reason for reason in one["not"].values())


def test_on_a_cpu_small_and_large_differ_where_tiles_pay():
    kernels = {
        one["size"]: one["backend"]
        for one in backend_report()
        if one["what"].startswith("kernel") and one["device"] == "cpu"
    }
    assert kernels == {"2 x 16 x 16": "reference", "4 x 2048 x 2048": "blocked"}
