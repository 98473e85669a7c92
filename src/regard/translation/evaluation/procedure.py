"""From models and sentence pairs to an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from regard.errors import RegardError
from regard.translation.alignment import attention_on_spans
from regard.translation.dataset import Example, Pair
from regard.translation.evaluation.by_length import by_length, exact_share
from regard.translation.evaluation.evaluation import Comparison, Evaluation, LabelGroup
from regard.translation.evaluation.metrics import Metric, check_count, check_tokenizer, measure
from regard.translation.text import normalise
from regard.translation.translated import Translation
from regard.translation.translator import BATCH_SIZE, Translator, perplexity


def evaluate(
    systems: Mapping[str, Translator],
    pairs: Sequence[Pair] | Sequence[Example],
    *,
    tokenize: str = "13a",
    beams: int = 5,
    length_penalty: float | None = None,
    batch_size: int = BATCH_SIZE,
) -> Comparison:
    """Translate with every system and compare with the references; the first system is the baseline.

    Both sides are normalised first, as for training: Moses' escapes are undone before anything is counted.

    Args:
        systems: by name.
        pairs: sentences and their references. Of examples of a built-in corpus the kinds and the true alignment are
            known, and reported on.
        tokenize: how BLEU cuts words, see `measure`.
        beams: of the search.
        length_penalty: of the search; without it each model's own.
        batch_size: how many sentences are translated at a time.
    """
    check_tokenizer(tokenize)
    check_count(len(pairs))
    if not systems:
        raise RegardError("systems", got="none", needed="at least one translator", repair="Load a model folder.")
    trials = {}
    for name, translator in systems.items():
        strength = translator.length_penalty if length_penalty is None else length_penalty
        begun = perf_counter()
        said = translator.translate(
            [pair.source for pair in pairs], beams=beams, length_penalty=strength, batch_size=batch_size
        )
        settings = {"beams": beams, "length penalty": strength}
        trials[name] = _Trial(name, translator, tuple(said), perf_counter() - begun, settings, batch_size)
    references = [normalise(pair.target) for pair in pairs]
    by_characters = next(iter(systems.values())).source_vocabulary.unit == "characters"
    unit = "characters" if by_characters else "words"  # one for all systems, so that their groups are the same
    metrics = measure({name: trial.texts for name, trial in trials.items()}, references, tokenize=tokenize)
    return Comparison(
        tuple(trial.judged(pairs, references, metrics[name], tokenize, unit) for name, trial in trials.items())
    )


@dataclass(frozen=True)
class _Trial:
    """The translations of one system."""

    name: str
    translator: Translator
    said: tuple[Translation, ...]
    seconds: float
    settings: dict[str, float]
    batch_size: int

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.said]

    def judged(
        self,
        pairs: Sequence[Pair] | Sequence[Example],
        references: Sequence[str],
        metrics: tuple[Metric, ...],
        tokenize: str,
        unit: str,
    ) -> Evaluation:
        sources = [one.source.text for one in self.said]
        given = self.translator.force(sources, references, batch_size=self.batch_size)
        lengths = [len(source) if unit == "characters" else len(source.split()) for source in sources]
        examples = [pair for pair in pairs if isinstance(pair, Example)]
        return Evaluation(
            system=self.name,
            count=len(pairs),
            metrics=metrics,
            perplexity=perplexity(given),
            exact=exact_share(self.texts, references),
            unfinished=sum(not one.finished for one in self.said),
            length_unit=unit,
            by_length=by_length(lengths, self.texts, references, tokenize=tokenize),
            by_label=_by_label(examples, self.texts) if examples else (),
            attention_on_span=attention_on_spans(given, examples) if examples else None,
            seconds=self.seconds,
            settings=self.settings,
        )


def _by_label(examples: Sequence[Example], said: Sequence[str]) -> tuple[LabelGroup, ...]:
    right: dict[str, list[bool]] = {}
    for example, text in zip(examples, said, strict=True):
        right.setdefault(example.label, []).append(text == example.target)
    ordered = sorted(right, key=lambda label: (len(label), label) if label.isdecimal() else (0, label))
    return tuple(LabelGroup(label, len(right[label]), sum(right[label]) / len(right[label])) for label in ordered)
