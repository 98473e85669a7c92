"""From a file to its table, its figure and its predictions."""

from typing import TYPE_CHECKING

from regard import plots
from regard.errors import RegardError
from regard.regression.report import places, predictions, table, wishes
from regard.regression.report.fitted import Fitted, fit
from regard.regression.report.wishes import Wishes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = (1, 2)


def run(asked: Wishes) -> Fitted:
    """Fit a file, write what was asked for, print its table; what is wrong is refused before anything is written.

    Files are written before the table is printed: a closed pipe must not lose them.
    """
    wishes.check(asked)
    if asked.out is not None:
        plots.check_format(asked.out)
    elsewhere = places.elsewhere(asked)
    fitted = fit(asked)
    said = [table.tell(asked, fitted), *(f"note: {note}" for note in fitted.notes)]
    # Both may refuse a confidence band, so they are computed before anything is written or printed.
    predicted = None if asked.predictions is None else predictions.predict(asked, fitted, elsewhere)
    figure = None if asked.out is None or len(asked.x) not in DRAWN else _draw(asked, fitted)
    try:
        if asked.out is not None:
            said.append(_save(asked, figure))
        if predicted is not None:
            predictions.write(asked, fitted, predicted)
            said += [f"note: {note}" for note in predicted.notes]
            said.append(f"wrote {asked.predictions}, {len(predicted.places)} rows")
    finally:
        print("\n".join(said))
    return fitted


def _draw(asked: Wishes, fitted: Fitted) -> "Figure":
    from regard.regression.report.figure import draw

    return draw(asked, fitted)


def _save(asked: Wishes, figure: "Figure | None") -> str:
    out = asked.out
    assert out is not None
    if figure is None:
        return f"no figure: a fit on {len(asked.x)} columns has no picture; predict along one of them with --predict-at"
    try:
        return f"wrote {plots.save_as(figure, out)}"
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{out} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
