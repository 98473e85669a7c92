"""The experiment from its data to its files."""

from dataclasses import dataclass
from pathlib import Path

from regard import plots
from regard.regression.experiment import figures, numbers
from regard.regression.experiment.comparison import Comparison, compare
from regard.regression.experiment.draws import check_count, draw
from regard.regression.experiment.norms import Dropped, measure
from regard.regression.experiment.shown import SEED, Shown, show
from regard.regression.experiment.table import tell

DRAWS = 200


@dataclass(frozen=True)
class Experiment:
    """What was computed: the kernels over all draws, the shown draw, and the cost of dropping the norms."""

    comparison: Comparison
    shown: Shown
    dropped: Dropped


def compute(draws: int = DRAWS) -> Experiment:
    """Points 5 to 7 of the chapter: every kernel on the same draws, one draw in full, and eq. 6 to 8."""
    drawn = draw(draws)
    comparison = compare(drawn)
    own_widths = {kernel: float(row.widths[SEED]) for kernel, row in comparison.at_own.items()}
    return Experiment(comparison, show(drawn, own_widths), measure())


def run(out: Path, draws: int = DRAWS) -> tuple[Path, ...]:
    """Print the table; write the figures (SVG, PNG) and their numbers (CSV) into the folder `out`; return them."""
    check_count(draws)
    plots.make_folder(out)
    with plots.house_style():  # refuses before the work where matplotlib is missing
        experiment = compute(draws)
    print(tell(experiment.comparison, experiment.dropped))
    files = write(experiment, out)
    print("\n".join(f"wrote {file}" for file in files))
    return files


def write(experiment: Experiment, out: Path) -> tuple[Path, ...]:
    """The figures and the numbers behind them."""
    comparison, shown, dropped = experiment.comparison, experiment.shown, experiment.dropped
    drawn = {
        "kernels": figures.draw_kernels(),
        "fits": figures.draw_fits(shown),
        "weights": figures.draw_weights(shown),
        "widths": figures.draw_widths(shown),
        "errors": figures.draw_errors(comparison),
        "errors-by-width": figures.draw_errors_by_width(comparison),
        "norms": figures.draw_norms(dropped),
    }
    saved = [path for name, figure in drawn.items() for path in plots.save(figure, out / name)]
    return (*saved, *numbers.write(comparison, shown, dropped, out))
