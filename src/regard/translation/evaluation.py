"""Evaluate translators on sentence pairs: the measurement, its records, and a figure of quality by length."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.plots import canvas, curves, house_style, save_as
from regard.translation.alignment import corpus_span_attention
from regard.translation.dataset import Pair
from regard.translation.metrics import (
    LengthGroup,
    Metric,
    by_length,
    check_count,
    check_tokenizer,
    exact_match,
    score_systems,
)
from regard.translation.text import normalise
from regard.translation.translator import BATCH_SIZE, Translation, Translator, perplexity

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LabelGroup:
    """The pairs with one label, and the share of exact translations among them."""

    label: str
    count: int
    exact: float


@dataclass(frozen=True)
class Evaluation:
    """The quality of one model.

    Attributes:
        system: the name of the model.
        count: number of sentences.
        metrics: BLEU and chrF.
        perplexity: per token of the references, END included.
        exact: the share of translations that equal the reference.
        unfinished: number of translations that were cut off at the maximum length.
        length_unit: of `by_length`: "words" or "characters".
        by_length: quality by the length of the source.
        by_label: quality by the label of the pairs; empty if they have none.
        attention_on_span: the share of attention on the right characters of the source, over all tokens of the
            references that a true span covers; None without true spans or without attention.
        seconds: time of the translation.
        settings: beams, length penalty and whatever else the numbers depend on.
    """

    system: str
    count: int
    metrics: tuple[Metric, ...]
    perplexity: float
    exact: float
    unfinished: int
    length_unit: str
    by_length: tuple[LengthGroup, ...]
    by_label: tuple[LabelGroup, ...]
    attention_on_span: float | None
    seconds: float
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; an infinite perplexity is None."""
        return {**asdict(self), "perplexity": self.perplexity if math.isfinite(self.perplexity) else None}

    def __str__(self) -> str:
        """Return the report."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        lines = [f"{self.system}: {self.count} sentences in {self.seconds:.1f} s ({settings})"]
        rows = [(metric.name, str(metric)) for metric in self.metrics]
        rows += [("perplexity", f"{self.perplexity:.3f} per token"), ("exact", _percent(self.exact))]
        if self.attention_on_span is not None:
            rows.append(("attention on the right span", _percent(self.attention_on_span)))
        if self.unfinished:
            rows.append(("cut off", f"{self.unfinished} translations at the longest length"))
        width = max(len(name) for name, _ in rows)
        lines += [f"  {name:<{width}}  {value}" for name, value in rows]
        lines += ["", *_columns(f"source, in {self.length_unit}", _length_rows(self.by_length))]
        if self.by_label:
            labels = [(group.label, str(group.count), _percent(group.exact)) for group in self.by_label]
            lines += ["", *_columns("kind", [("sentences", "exact"), *((name, *rest) for name, *rest in labels)])]
        lines += ["", *(f"  {metric.name}: {metric.signature}" for metric in self.metrics)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Comparison:
    """Models on the same sentences; the p-values of the later ones are against the first."""

    evaluations: tuple[Evaluation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"evaluations": [evaluation.to_dict() for evaluation in self.evaluations]}

    def to_json(self) -> str:
        """Return everything as JSON, with a line feed at the end."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def __str__(self) -> str:
        """The reports one after another, and the verdict of the paired bootstrap."""
        first, *others = self.evaluations
        lines = [str(evaluation) + "\n" for evaluation in self.evaluations]
        for other in others:
            for mine, its in zip(first.metrics, other.metrics, strict=True):
                gain = its.score - mine.score
                lines.append(
                    f"{other.system} against {first.system}: {its.name} {gain:+.2f}, "
                    f"p = {its.p_value:.4f} (paired bootstrap)"
                )
        return "\n".join(lines).rstrip("\n")


def _length_rows(groups: tuple[LengthGroup, ...]) -> list[tuple[str, ...]]:
    rows = [(group.name, str(group.count), f"{group.bleu:.2f}", _percent(group.exact)) for group in groups]
    return [("sentences", "BLEU", "exact"), *rows]


def _columns(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    """The first row heads the columns after the title; numbers stand to the right."""
    table = [(title, *rows[0]), *rows[1:]]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for name, *cells in table:
        numbers = [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join(["", f"{name:<{widths[0]}}", *numbers]))
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def evaluate(
    systems: Mapping[str, Translator],
    pairs: Sequence[Pair],
    *,
    tokenize: str = "13a",
    beams: int = 5,
    length_penalty: float | None = None,
    batch_size: int = BATCH_SIZE,
) -> Comparison:
    """Translate with every system and compare with the references; the first system is the baseline.

    Both sides are normalised first, as for training: Moses' escapes are undone before anything is counted.

    Args:
        systems: translators by name.
        pairs: sentences and their references. Labels and true spans are reported on if the pairs have them.
        tokenize: how BLEU cuts words, see `score_systems`.
        beams: of the search.
        length_penalty: of the search; None for each model's own.
        batch_size: number of sentences that are translated at a time.

    Returns:
        The evaluations.

    Raises:
        RegardError: if there are no systems or no pairs, or an option is out of range.
    """
    check_tokenizer(tokenize)
    check_count(len(pairs))
    if not systems:
        raise RegardError("systems", got="none", needed="at least one translator", repair="Load a model folder.")
    runs = {}
    for name, translator in systems.items():
        strength = translator.length_penalty if length_penalty is None else length_penalty
        begin = perf_counter()
        translations = translator.translate(
            [pair.source for pair in pairs], beams=beams, length_penalty=strength, batch_size=batch_size
        )
        settings = {"beams": beams, "length penalty": strength}
        runs[name] = _Run(name, translator, tuple(translations), perf_counter() - begin, settings, batch_size)
    references = [normalise(pair.target) for pair in pairs]
    by_characters = next(iter(systems.values())).source_vocabulary.unit == "characters"
    unit = "characters" if by_characters else "words"  # one for all systems, so that their groups are the same
    metrics = score_systems({name: run.texts for name, run in runs.items()}, references, tokenize=tokenize)
    return Comparison(
        tuple(run.evaluated(pairs, references, metrics[name], tokenize, unit) for name, run in runs.items())
    )


@dataclass(frozen=True)
class _Run:
    """The translations of one system."""

    name: str
    translator: Translator
    translations: tuple[Translation, ...]
    seconds: float
    settings: dict[str, float]
    batch_size: int

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.translations]

    def evaluated(
        self,
        pairs: Sequence[Pair],
        references: Sequence[str],
        metrics: tuple[Metric, ...],
        tokenize: str,
        unit: str,
    ) -> Evaluation:
        sources = [one.source.text for one in self.translations]
        forced = self.translator.force(sources, references, batch_size=self.batch_size)
        lengths = [len(source) if unit == "characters" else len(source.split()) for source in sources]
        has_labels, has_spans = any(pair.label for pair in pairs), any(pair.spans for pair in pairs)
        return Evaluation(
            system=self.name,
            count=len(pairs),
            metrics=metrics,
            perplexity=perplexity(forced),
            exact=exact_match(self.texts, references),
            unfinished=sum(not one.finished for one in self.translations),
            length_unit=unit,
            by_length=by_length(lengths, self.texts, references, tokenize=tokenize),
            by_label=_by_label(pairs, self.texts) if has_labels else (),
            attention_on_span=corpus_span_attention(forced, pairs) if has_spans else None,
            seconds=self.seconds,
            settings=self.settings,
        )


def _by_label(pairs: Sequence[Pair], texts: Sequence[str]) -> tuple[LabelGroup, ...]:
    right: dict[str, list[bool]] = {}
    for pair, text in zip(pairs, texts, strict=True):
        right.setdefault(pair.label, []).append(text == pair.target)
    ordered = sorted(right, key=lambda label: (len(label), label) if label.isdecimal() else (0, label))
    return tuple(LabelGroup(label, len(right[label]), sum(right[label]) / len(right[label])) for label in ordered)


def draw_by_length(comparison: Comparison) -> Figure:
    """BLEU and exact share of every system by source length; under each length, how many sentences it has."""
    figure, (bleu, exact) = canvas(7.2, 2.9, panels=2)
    lengths = comparison.evaluations[0].by_length
    places = list(range(len(lengths)))
    with house_style():
        curves(places, {one.system: [group.bleu for group in one.by_length] for one in comparison.evaluations}, ax=bleu)
        shares = {one.system: [100 * group.exact for group in one.by_length] for one in comparison.evaluations}
        curves(places, shares, ax=exact)
        for axes, name in ((bleu, "BLEU"), (exact, "exact, %")):
            for line in axes.lines:
                line.set(marker="o", markersize=3.5)
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            axes.set_xticks(places, [f"{group.name}\n{group.count}" for group in lengths])
            axes.tick_params(axis="x", labelsize=6.5 if len(lengths) > 8 else 8)
            axes.set_xlabel(f"source, in {comparison.evaluations[0].length_unit}; sentences below")
        if len(comparison.evaluations) > 1:
            bleu.legend(loc="lower left")
    return figure


def save_figure(comparison: Comparison, path: Path) -> Path:
    """Draw and write; the ending chooses the format."""
    try:
        return save_as(draw_by_length(comparison), path)
    except OSError as refusal:
        raise RegardError(
            "figure",
            got=f"{path} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
