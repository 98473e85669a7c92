"""Every way to the context on one corpus: quality over seeds, by length, and where attention looks.

Quality by length is the figure that made attention famous (arXiv 1409.0473, figure 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from regard.translation.lab.competitors import Competitor
from regard.translation.lab.finding import Finding, Table, columns
from regard.translation.lab.intervals import Interval
from regard.translation.lab.recipes import Setting
from regard.translation.lab.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Standing:
    """One competitor over all seeds.

    exact: the share of exact translations. by_length: the same for each length of the source, by its name.
    on_span, sharpness: see `Trial`; None without attention.
    """

    competitor: Competitor
    parameters: int
    exact: Interval
    by_length: dict[str, Interval]
    on_span: Interval | None
    sharpness: Interval | None
    seconds: Interval


@dataclass(frozen=True)
class Comparison(Finding):
    """Competitors trained alike, with the same seeds, and tested on the same examples.

    length_unit: of the sources: "words" or "characters".
    """

    name: ClassVar[str] = "comparison"

    corpus: str
    length_unit: str
    trials: tuple[Trial, ...]

    @property
    def standings(self) -> tuple[Standing, ...]:
        """In the order in which competitors were given."""
        groups: dict[Competitor, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.competitor, []).append(trial)
        return tuple(_standing(competitor, trials) for competitor, trials in groups.items())

    @property
    def seeds(self) -> int:
        """How many."""
        return len({trial.seed for trial in self.trials})

    def __str__(self) -> str:
        standings = self.standings
        longest = list(standings[0].by_length)[-1]
        header = ("model", "parameters", "exact %", f"at length {longest}", "on right span %", "sharpness", "train s")
        rows: list[tuple[str, ...]] = [header]
        for one in standings:
            spans = ("–", "–")
            if one.on_span is not None and one.sharpness is not None:
                spans = (one.on_span.text(1, 100), one.sharpness.text(2))
            quality = (one.exact.text(1, 100), one.by_length[longest].text(1, 100))
            rows.append((str(one.competitor), f"{one.parameters:,}", *quality, *spans, f"{one.seconds.mean:.0f}"))
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds, mean ± half of Student's 95% interval"
        lengths = [("exact %", *standings[0].by_length)]
        lengths += [
            (str(one.competitor), *(f"{100 * found.mean:.0f}" for found in one.by_length.values())) for one in standings
        ]
        title = f"{self.corpus}, {seeds}; greedy search on unseen examples."
        notes = f"  by the length of the source, in {self.length_unit}; attention of several heads is their mean"
        return f"{title}\n{columns(rows)}\n\n{columns(lengths)}\n{notes}"

    def table(self) -> Table:
        """A row for each trial, with its quality at every length."""
        lengths = [f"exact at {group.name}" for group in self.trials[0].by_length]
        header = ("model", "seed", "parameters", "exact", "on span", "sharpness", "seconds", *lengths)
        rows = []
        for trial in self.trials:
            facts = (trial.parameters, trial.exact, trial.on_span, trial.sharpness, trial.seconds)
            rows.append((str(trial.competitor), trial.seed, *facts, *(group.exact for group in trial.by_length)))
        return Table(header, tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """Every trial."""
        trials = [{"model": str(trial.competitor), **trial.to_dict()} for trial in self.trials]
        return {"corpus": self.corpus, "length_unit": self.length_unit, "trials": trials}

    def draw(self) -> Figure:
        """Quality by length, a line for each competitor; beside it, where attention looks."""
        from regard.translation.lab.figures.comparison import draw_comparison

        return draw_comparison(self)


@dataclass(frozen=True)
class StateSizes(Comparison):
    """The model without attention with states of different sizes: what one vector can hold of a sentence.

    common: the size of competitors that name none.
    """

    name: ClassVar[str] = "state-size"

    common: int

    def hidden(self, competitor: Competitor) -> int:
        """The size of its state."""
        return self.common if competitor.hidden is None else competitor.hidden

    def __str__(self) -> str:
        rows = [("state", "parameters", "exact %", *(self.standings[0].by_length))]
        for one in self.standings:
            lengths = (f"{100 * found.mean:.0f}" for found in one.by_length.values())
            rows.append((str(self.hidden(one.competitor)), f"{one.parameters:,}", one.exact.text(1, 100), *lengths))
        return f"Without attention; exact % by the length of the source, in {self.length_unit}.\n{columns(rows)}"

    def draw(self) -> Figure:
        """Quality by length, a line for each size."""
        from regard.translation.lab.figures.comparison import draw_state_sizes

        return draw_state_sizes(self)


def compare(setting: Setting, trials: Sequence[Trial]) -> Comparison:
    """The setting's competitors, from the trials of everyone."""
    return Comparison(setting.corpus, _unit(setting), _of(setting.competitors, trials))


def compare_sizes(setting: Setting, trials: Sequence[Trial]) -> StateSizes:
    """The models without attention, from the smallest state to the largest."""
    return StateSizes(setting.corpus, _unit(setting), _of(setting.by_size, trials), setting.recipe.model.hidden)


def _of(competitors: Sequence[Competitor], trials: Sequence[Trial]) -> tuple[Trial, ...]:
    return tuple(trial for competitor in competitors for trial in trials if trial.competitor == competitor)


def _unit(setting: Setting) -> str:
    return setting.recipe.data.source_unit


def _standing(competitor: Competitor, trials: list[Trial]) -> Standing:
    by_length = {
        group.name: Interval.of([trial.by_length[place].exact for trial in trials])
        for place, group in enumerate(trials[0].by_length)
    }
    on_span = [trial.on_span for trial in trials if trial.on_span is not None]
    sharpness = [trial.sharpness for trial in trials if trial.sharpness is not None]
    return Standing(
        competitor,
        trials[0].parameters,
        Interval.of([trial.exact for trial in trials]),
        by_length,
        Interval.of(on_span) if on_span else None,
        Interval.of(sharpness) if sharpness else None,
        Interval.of([trial.seconds for trial in trials]),
    )
