"""`regard lab`: what attention does for translation, measured."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

EXAMPLES = (
    ("regard lab --quick", "a few minutes"),
    ("regard lab --corpus dates --seeds 5 --out dates-lab", "with intervals over five trainings"),
)


def lab(
    *,
    corpus: str = "lists",
    seeds: int | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    out: Path = Path("lab"),
    device: str = "cpu",
    workers: int | None = None,
) -> None:
    """Train one small model without attention and with every score; print tables, draw figures.

    Quality with intervals, quality by length, the size of the state, parameters, speed, memory and alignment, and
    two claims about scores: that scaling keeps the softmax from saturating, and that additive scores express more.
    Interrupted, the same command goes on where it was.

    Args:
        corpus: lists, dates or numbers: what the models are trained on.
        seeds: how many times each model is trained; 3, or 1 with --quick.
        quick: fewer models and fewer updates: minutes, not a quarter of an hour.
        out: folder for tables (CSV, JSON), figures (SVG, PNG) and the trained models.
        device: cpu, cuda or cuda:1.
        workers: how many models are trained at a time; one for each core by default.
    """
    from regard.experiments.run import run

    run(out, corpus, seeds=seeds, quick=quick, device=device, workers=workers)
