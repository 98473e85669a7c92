"""From a file to its table, its figure and its predictions."""

from regard import plots
from regard.errors import RegardError
from regard.regression.report import places, predictions, table, wishes
from regard.regression.report.fitted import Fitted, fit
from regard.regression.report.wishes import Wishes

DRAWN = (1, 2)


def run(asked: Wishes) -> Fitted:
    """Fit a file, write what was asked for, print its table; what is wrong is refused before anything is written.

    Files come first: whoever reads what is printed may leave before its end.
    """
    wishes.check(asked)
    if asked.out is not None:
        plots.check_format(asked.out)
    elsewhere = places.elsewhere(asked)
    fitted = fit(asked)
    said = [table.tell(asked, fitted), *(f"note: {note}" for note in fitted.notes)]
    try:
        if asked.out is not None:
            said.append(_draw(asked, fitted))
        if asked.predictions is not None:
            rows, notes = predictions.write(asked, fitted, elsewhere)
            said += [*(f"note: {note}" for note in notes), f"wrote {asked.predictions}, {rows} rows"]
    finally:
        print("\n".join(said))
    return fitted


def _draw(asked: Wishes, fitted: Fitted) -> str:
    assert asked.out is not None
    if len(asked.x) not in DRAWN:
        return f"no figure: a fit on {len(asked.x)} columns has no picture; predict along one of them with --predict-at"
    from regard.regression.report.figure import draw

    figure = draw(asked, fitted)
    try:
        return f"wrote {plots.save_as(figure, asked.out)}"
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{asked.out} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
