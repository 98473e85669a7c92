"""The records of an evaluation: a plain table for the screen, JSON for everything else."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from regard.translation.evaluation.by_length import LengthGroup
from regard.translation.evaluation.metrics import Metric


@dataclass(frozen=True)
class LabelGroup:
    """The examples of one kind of a built-in corpus, and the share of them that is exact."""

    label: str
    count: int
    exact: float


@dataclass(frozen=True)
class Evaluation:
    """What was found about one model.

    system: the model's name.
    count: how many sentences were translated.
    metrics: BLEU and chrF.
    perplexity: of a token of the references, END included, given the source and the tokens before it.
    exact: the share of translations that are the reference to the letter.
    unfinished: how many translations were cut off at the longest length.
    by_length: by the length of the source, in `length_unit`: "words" or "characters".
    by_label: by the kinds of a built-in corpus; empty for others.
    attention_on_span: the share of attention mass on the right characters of the source, where the truth is known
        and the model has attention: reading the references, over all tokens that a span of the truth explains.
    seconds: how long the translation took.
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
        """Everything, as JSON has it; a perplexity beyond all numbers is None."""
        return {**asdict(self), "perplexity": self.perplexity if math.isfinite(self.perplexity) else None}

    def __str__(self) -> str:
        """The report."""
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
    """Two models or more on the same sentences; the metrics of the later ones tell p against the first."""

    evaluations: tuple[Evaluation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {"evaluations": [evaluation.to_dict() for evaluation in self.evaluations]}

    def to_json(self) -> str:
        """Everything as text, with a line feed at the end."""
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
