"""`regard doctor`: what it says is so, for what is there and for what is missing."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from regard.cli import doctor
from regard.cli.app import run


def report(capsys):
    assert run(["doctor"]) == 0
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[0] != " ")


def test_versions_and_threads(capsys):
    said = report(capsys)
    assert said["regard"].strip() == version("regard")
    assert said["Python"].startswith(platform.python_version())
    assert said["torch"].strip() == torch.__version__
    assert said["threads"].startswith(str(torch.get_num_threads()))


def test_every_extra_a_user_can_ask_for_and_no_other(capsys):
    extras = {name for name in report(capsys) if "[" in name}
    assert extras == {
        f"regard[{extra}]" for extra in ("cli", "distributed", "plots", "regression", "studio", "translation")
    }


def test_a_missing_package_is_named_with_its_repair(capsys, monkeypatch):
    def lacks_matplotlib(package):
        if package == "matplotlib":
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(doctor, "version", lacks_matplotlib)
    said = report(capsys)
    assert said["regard[plots]"].strip() == 'lacks matplotlib; pip install "regard[plots]"'
    assert said["regard[cli]"].startswith("cyclopts")
