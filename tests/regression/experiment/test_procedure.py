"""The experiment in one call: what it prints and which files it leaves, figures and numbers that read back."""

import csv

import pytest
import torch
from tests.refuses import refuses

from regard.plots import files as picture_files
from regard.regression.experiment import procedure


@pytest.fixture(scope="module")
def written(experiment, tmp_path_factory):
    out = tmp_path_factory.mktemp("experiment")
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):  # tensors made there have no values
        patch.setattr(picture_files, "RASTER_DPI", 40)  # coarse pictures are written faster
        files = procedure.write(experiment, out)
    return {file.name: file for file in files}, out


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_a_vector_and_a_raster_of_every_figure(written):
    files, out = written
    assert {path.name for path in out.iterdir()} == set(files)
    figures = {"kernels", "fits", "weights", "widths", "errors", "errors-by-width", "norms"}
    assert {file.stem for file in files.values() if file.suffix == ".svg"} == figures
    assert {file.stem for file in files.values() if file.suffix == ".png"} == figures


def test_the_errors_read_back_exactly(experiment, written):
    rows = rows_of(written[0]["errors-by-draw.csv"])
    for kernel, judged in experiment.comparison.at_own.items():
        assert [float(row[f"{kernel} at loo"]) for row in rows] == judged.errors.tolist()
        assert [float(row[f"{kernel} width"]) for row in rows] == judged.widths.tolist()
    assert [float(row["constant"]) for row in rows] == experiment.comparison.constant.tolist()


def test_a_line_of_errors_for_every_kernel_and_width(experiment, written):
    rows = rows_of(written[0]["errors.csv"])
    assert len(rows) == 2 * len(experiment.comparison.at_one) + 1
    assert float(rows[0]["mean error"]) == experiment.comparison.at_one["gaussian"].errors.mean().item()


def test_the_curves_and_weights_read_back_exactly(experiment, written):
    rows = rows_of(written[0]["fits.csv"])
    assert [float(row["gaussian 0.2"]) for row in rows] == experiment.shown.by_width[0.2].curve.tolist()
    weights = rows_of(written[0]["weights.csv"])
    first = [float(weights[0][repr(x)]) for x in experiment.shown.x.tolist()]
    assert first == experiment.shown.at_one["gaussian"].weights[0].tolist()


def test_the_norms_read_back_exactly(experiment, written):
    spreads = [float(row["sd of |k|^2"]) for row in rows_of(written[0]["norms-by-spread.csv"])]
    assert spreads == experiment.dropped.spreads.tolist()
    assert len(rows_of(written[0]["norms-by-dimension.csv"])) == len(experiment.dropped.dimensions)


def test_run_prints_the_table_and_names_its_files(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(procedure, "compute", lambda draws: experiment)
    monkeypatch.setattr(procedure, "write", lambda experiment, out: (out / "errors.csv",))
    procedure.run(tmp_path / "new" / "folder", draws=3)
    printed = capsys.readouterr().out
    assert "at its own width" in printed
    assert f"wrote {tmp_path / 'new' / 'folder' / 'errors.csv'}" in printed


def test_refuses_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "taken").touch()
    with refuses("out", "exists", "taken", "File"):
        procedure.run(tmp_path / "taken")


def test_a_refusal_leaves_no_folder(tmp_path):
    with refuses("draws", "least 2"):
        procedure.run(tmp_path / "new", draws=0)
    assert not list(tmp_path.iterdir())
