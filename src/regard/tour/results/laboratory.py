"""Comparisons of the laboratory out of its result files."""

from regard.experiments.comparison import Comparison, Trial
from regard.tour.results import read


def compared(name: str) -> Comparison:
    """A comparison on lists, as it was kept under that name."""
    page = read(name)
    trials = tuple(Trial.from_dict({key: one[key] for key in one if key != "model"}) for one in page["trials"])
    return Comparison(page["corpus"], page["length_unit"], trials)
