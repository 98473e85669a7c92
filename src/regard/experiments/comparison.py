"""Every variant trained with every seed: quality by length, where attention looks, and sizes of the state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from regard import plots
from regard.errors import RegardError
from regard.experiments.result import Finding, Interval, Table, columns
from regard.experiments.variants import NONE, Competitor, Setting
from regard.plots.look import COLOURS, POINTS
from regard.translation.alignment import corpus_span_attention, normalized_entropy
from regard.translation.corpora import Pair
from regard.translation.metrics import LengthGroup, by_length, exact_match
from regard.translation.training import train
from regard.translation.translator import Translation, Translator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULT = "trial.json"


@dataclass(frozen=True)
class Trial:
    """What one trained model does.

    exact: the share of test examples that it translates to the letter, by greedy search.
    by_length: the same by the length of the source.
    on_span: the share of attention mass on the right words; None without attention.
    sharpness: 1 where every step looks at one word, 0 where it looks at all alike; None without attention. Both are
        of the model reading the references, over the mean of its heads.
    parameters: how many there are. seconds: of training.
    """

    competitor: Competitor
    seed: int
    exact: float
    by_length: tuple[LengthGroup, ...]
    on_span: float | None
    sharpness: float | None
    parameters: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, page: dict[str, Any]) -> Trial:
        """The trial that `to_dict` wrote."""
        groups = tuple(LengthGroup(**group) for group in page["by_length"])
        return cls(**page | {"competitor": Competitor(**page["competitor"]), "by_length": groups})


@dataclass(frozen=True)
class Task:
    """A trial to be run, or taken from its folder where it has been.

    home: the folder of all runs.
    """

    setting: Setting
    competitor: Competitor
    seed: int
    home: Path
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        """The model's own."""
        return self.home / self.competitor.folder / f"seed-{self.seed}"

    def finished(self) -> Trial | None:
        """The trial that the folder holds, or None; one of another recipe is refused."""
        path = self.folder / RESULT
        if not path.exists():
            return None
        page = json.loads(path.read_text(encoding="utf-8"))
        if page["task"] != self.identity():
            raise RegardError(
                "out",
                got=f"{self.folder}, a run with another recipe",
                needed="runs of the same recipe, or none",
                repair="Choose another folder, or delete this one.",
            )
        return Trial.from_dict(page["trial"])

    def run(self) -> Trial:
        """Train, or go on training, and test; the result is kept in the folder."""
        found = self.finished()
        if found is not None:
            return found
        examples = self.setting.examples()
        recipe = self.setting.recipe_of(self.competitor, self.seed)
        ended = train(recipe, examples, self.folder, device=self.device)
        translator = Translator.load(self.folder, device=self.device)
        trial = judge(translator, examples.test, self.competitor, self.seed, ended.seconds)
        page = {"task": self.identity(), "trial": trial.to_dict()}
        incoming = self.folder / f"{RESULT}.incoming"
        incoming.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
        incoming.replace(self.folder / RESULT)
        return trial

    def identity(self) -> dict[str, Any]:
        """What makes it this task and no other, as JSON has it."""
        setting = self.setting
        sizes = {"corpus": setting.corpus, "train": setting.train, "valid": setting.valid, "test": setting.test}
        return sizes | {"recipe": setting.recipe_of(self.competitor, self.seed).to_dict()}


def judge(translator: Translator, examples: Sequence[Pair], competitor: Competitor, seed: int, seconds: float) -> Trial:
    """Translate the test examples greedily, and read their references."""
    sources, references = [one.source for one in examples], [one.target for one in examples]
    said = [one.text for one in translator.translate(sources, beams=1)]
    given = translator.force(sources, references)
    lengths = [len(one.source.ids) for one in given]
    return Trial(
        competitor=competitor,
        seed=seed,
        exact=exact_match(said, references),
        by_length=by_length(lengths, said, references, tokenize="none"),
        on_span=corpus_span_attention(given, examples),
        sharpness=_sharpness(given),
        parameters=sum(parameter.numel() for parameter in translator.models[0].model.parameters()),
        seconds=seconds,
    )


def _sharpness(given: Sequence[Translation]) -> float | None:
    """The mean over sentences of 1 - flatness."""
    found = [1 - normalized_entropy(one.weights) for one in given if one.weights is not None]
    return sum(found) / len(found) if found else None


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


MARKERS = "osD^vPX"
# One hue from light to dark: sizes are ordered.
SHADES = ("#C6DBEF", "#6BAED6", "#2171B5", "#08306B")


def draw_comparison(comparison: Comparison) -> Figure:
    """Left: exact share by length, the band from the worst to the best seed. Right: attention on the right span."""
    figure, (left, right) = plots.canvas(7.2, 3.2, panels=2)
    colours = colours_of([one.competitor for one in comparison.standings])
    with plots.house_style():
        for place, one in enumerate(comparison.standings):
            name, colour = str(one.competitor), colours[one.competitor]
            dashes = (0, (4, 2)) if one.competitor == NONE else "-"
            _line(left, one, colour, name, MARKERS[place % len(MARKERS)], dashes)
        _name_lengths(left, comparison)
        left.set_title("exact translations by length")
        _dots(right, [one for one in comparison.standings if one.on_span is not None], colours)
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=2.4
        )
    return figure


def draw_state_sizes(sizes: StateSizes) -> Figure:
    """Exact share by length without attention, darker for a larger state."""
    figure, (axes,) = plots.canvas(4.6, 2.9)
    shades = SHADES[-len(sizes.standings) :]
    with plots.house_style():
        for place, one in enumerate(sizes.standings):
            label = str(sizes.hidden(one.competitor))
            _line(axes, one, shades[place % len(shades)], label, MARKERS[place % len(MARKERS)], "-")
        _name_lengths(axes, sizes)
        axes.set_title("without attention")
        axes.legend(title="state", loc="upper right", title_fontsize=8)
    return figure


def colours_of(competitors: list[Competitor]) -> dict[Competitor, str]:
    """Grey without attention, a colour of the house for each other one, in their order."""
    attending = [competitor for competitor in competitors if competitor.attention != "none"]
    chosen = {one: COLOURS[place % len(COLOURS)] for place, one in enumerate(attending)}
    return {one: chosen.get(one, POINTS) for one in competitors}


def _line(axes: Axes, one: Standing, colour: str, label: str, marker: str, dashes: object) -> None:
    places = range(len(one.by_length))
    found = list(one.by_length.values())
    axes.plot(
        places,
        [100 * interval.mean for interval in found],
        color=colour,
        label=label,
        marker=marker,
        markersize=3.5,
        linewidth=1.3,
        linestyle=dashes,
        clip_on=False,
    )
    low, high = ([100 * getattr(interval, end) for interval in found] for end in ("lowest", "highest"))
    axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)


def _name_lengths(axes: Axes, comparison: Comparison) -> None:
    names = list(comparison.standings[0].by_length)
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", labelsize=6.5 if max(map(len, names)) > 2 else 8)
    axes.set(xlabel=f"length of the source, in {comparison.length_unit}", ylabel="exact, %", ylim=(0, 100))
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y", color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)


def _dots(axes: Axes, standings: list[Standing], colours: Mapping[Competitor, str]) -> None:
    """A row for each competitor with attention: the mass on the right span filled, sharpness hollow."""
    for height, one in enumerate(standings):
        colour = colours[one.competitor]
        # The ring is wider than the dot: both are seen where they meet.
        for interval, face, size in ((one.sharpness, "none", 8), (one.on_span, colour, 4.5)):
            if interval is not None:
                axes.plot([100 * interval.lowest, 100 * interval.highest], [height] * 2, color=colour, linewidth=1.0)
                dot = {"marker": "o", "markersize": size, "color": colour, "markerfacecolor": face, "clip_on": False}
                axes.plot(100 * interval.mean, height, **dot)
    axes.set_yticks(range(len(standings)), [str(one.competitor) for one in standings])
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.set(xlim=(0, 100), xlabel="● mass on the right span   ○ sharpness   (%)", title="where attention looks")
    axes.grid(axis="x", color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)
