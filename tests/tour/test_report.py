"""What the tour prints is what it computed."""

import re

from regard.tour.report import HEAVIEST, TOLD, tell


def test_a_line_for_every_told_query_with_its_numbers(fits):
    text = tell(fits)
    for place in TOLD:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{place:>6.2f}")]
        row = round(place / 0.05)
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", line)]
        assert numbers[1] == round(fits.truth[row].item(), 3)
        assert numbers[2] == round(fits.attended.output[row, 0].item(), 3)
        heaviest = fits.attended.weights()[row].sort(descending=True)
        assert numbers[3::2] == [round(weight, 3) for weight in heaviest.values[:HEAVIEST].tolist()]
        assert numbers[4::2] == [round(fits.x[index].item(), 2) for index in heaviest.indices[:HEAVIEST]]


def test_a_line_for_every_width_with_its_error(fits):
    lines = tell(fits).splitlines()
    for width in fits.by_width:
        assert f"{width:>6g}  {fits.error(width):.4f}" in lines


def test_fits_a_terminal_of_80_columns(fits):
    assert max(len(line) for line in tell(fits).splitlines()) <= 80
