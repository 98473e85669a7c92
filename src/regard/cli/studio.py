"""`regard studio`: a page on this machine for one's own points, sentences and scores."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

EXAMPLES = (
    ("regard studio", "a page on this machine, opened in the browser"),
    ("regard studio model --port 8100 --no-browser", "with a model of your own"),
)


def studio(
    model: Path | None = None,
    /,
    *,
    port: int = 0,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
    cache: Path | None = None,
) -> None:
    """Serve a page, to this machine only: kernel regression by hand, translation with alignments, scores and masks.

    Without a model folder the translation room trains a small model of dates in front of you, and others with other
    scores after it; they are kept for the next time.

    Args:
        model: the folder of a trained model, for the translation room.
        port: where to listen; 0 takes any port that is free.
        browser: open a browser on the page.
        cache: folder for the models that the studio trains; $XDG_CACHE_HOME/regard/studio by default.
    """
    from regard.studio.start import Wishes, run

    run(Wishes(model=model, port=port, browser=browser, cache=cache))
