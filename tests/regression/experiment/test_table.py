"""The printed table holds what was computed."""

from regard.regression.experiment.comparison import interval
from regard.regression.experiment.table import tell


def test_a_row_for_every_kernel_with_both_errors(experiment):
    lines = tell(experiment.comparison, experiment.dropped).splitlines()
    for kernel, row in experiment.comparison.at_one.items():
        (line,) = [line for line in lines if line.startswith(f"{kernel.removesuffix('_kernel')} ")]
        at_one, at_own = interval(row.errors), interval(experiment.comparison.at_own[kernel].errors)
        assert f"{at_one.mean:.4f} ± {at_one.half:.4f}" in line
        assert f"{at_own.mean:.4f} ± {at_own.half:.4f}" in line


def test_differences_are_paired(experiment):
    own = experiment.comparison.at_own
    found = interval(own["boxcar"].errors - own["gaussian"].errors)
    (line,) = [
        line for line in tell(experiment.comparison, experiment.dropped).splitlines() if line.startswith("boxcar ")
    ]
    assert f"{found.mean:+.4f} ± {found.half:.4f}" in line


def test_says_how_many_draws_and_the_constant(experiment):
    text = tell(experiment.comparison, experiment.dropped)
    assert "3 draws" in text
    (line,) = [line for line in text.splitlines() if line.startswith("constant ")]
    found = interval(experiment.comparison.constant)
    assert line.split()[1:4] == [f"{found.mean:.4f}", "±", f"{found.half:.4f}"]


def test_fits_a_terminal_of_100_columns(experiment):
    assert max(map(len, tell(experiment.comparison, experiment.dropped).splitlines())) <= 100
