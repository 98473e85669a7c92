"""The walk itself: compute what takes time side by side, present station after station, write page and files."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import plots
from regard.tour import files
from regard.tour.budget import FULL, Budget
from regard.tour.events import Listener, Progressed, silence
from regard.tour.page import assemble
from regard.tour.station import Station
from regard.tour.stations import (
    bottleneck,
    errata,
    heads,
    learning,
    norms,
    query,
    saturation,
    scores,
    speed,
    width,
)
from regard.tour.trainings.side_by_side import Told, Work, run_all

PAGE = "tour.html"
# What is left when all works have ended, as a share of the whole: figures and files.
LEFT = 0.15


@dataclass(frozen=True)
class Visit:
    """What a walk leaves behind. page: the one to open. files: all of them, the page first. seconds: of the walk."""

    page: Path
    files: tuple[Path, ...]
    stations: tuple[Station, ...]
    seconds: float


def run(out: Path, budget: Budget = FULL, listen: Listener = silence) -> Visit:
    """Compute the chapter; write one page and the files behind it (CSV, SVG, PNG) into the folder `out`."""
    begin = time.perf_counter()
    plots.make_folder(out)
    with plots.house_style():  # refuses before the work where matplotlib is missing
        works = _works(budget)
        bar = _Bar(works, listen)
        # First, while nothing else runs: what a score costs is measured.
        costs = scores.cost()
        found = run_all(works, budget.workers, bar.hear)
        stations, written = [], []
        for make in (makers := _stations(budget, found, costs)):
            station = make()
            stations.append(station)
            bar.write(station, len(stations), len(makers))
            written += files.write(station, out)
    page = out / PAGE
    page.write_text(assemble(stations), encoding="utf-8")
    return Visit(page, (page, *written), tuple(stations), time.perf_counter() - begin)


def _works(budget: Budget) -> tuple[Work, ...]:
    """What takes time, with about how many seconds of one core."""
    return (
        Work("lists, attention", 42, partial(bottleneck.work, "additive", budget)),
        Work("lists, fixed state", 34, partial(bottleneck.work, "none", budget)),
        Work("dates", 34, partial(learning.work, budget)),
        Work("rules", 19, partial(scores.work, budget)),
        Work("digits", 14, partial(heads.work, budget)),
        Work("kernels", 11, partial(width.work, budget)),
    )


def _stations(budget: Budget, found: dict[str, Any], costs: Any) -> tuple[Callable[[], Station], ...]:
    """The ten contents, in their order."""
    return (
        query.present,
        partial(width.present, found["kernels"]),
        partial(norms.present, found["kernels"]),
        saturation.present,
        partial(scores.present, costs, found["rules"]),
        partial(bottleneck.present, budget, found["lists, fixed state"], found["lists, attention"]),
        partial(learning.present, found["dates"]),
        partial(heads.present, found["digits"]),
        speed.present,
        errata.present,
    )


class _Bar:
    """From what single works tell to how far the whole is."""

    def __init__(self, works: tuple[Work, ...], listen: Listener) -> None:
        self.seconds = {work.name: work.seconds for work in works}
        self.shares = dict.fromkeys(self.seconds, 0.0)
        self.words: dict[str, str] = {}
        self.listen = listen
        listen(Progressed(0.0, 0, len(works), "timing the scores"))

    def hear(self, told: Told) -> None:
        name, share, words = told
        self.shares[name] = max(self.shares[name], share)  # what ended may still be heard of
        self.words[name] = words
        done = sum(share >= 1 for share in self.shares.values())
        total = sum(self.seconds[name] * share for name, share in self.shares.items()) / sum(self.seconds.values())
        under_way = [f"{name}: {told}" for name, told in self.words.items() if self.shares[name] < 1]
        self.listen(Progressed((1 - LEFT) * total, done, len(self.shares), "; ".join(under_way)))

    def write(self, station: Station, number: int, of: int) -> None:
        share, works = 1 - LEFT * (1 - number / of), len(self.shares)
        self.listen(Progressed(share, works, works, f"drawing {number} of {of}: {station.slug}"))
