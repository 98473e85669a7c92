"""One run of the laboratory: a competitor trained with one seed, and what it does on the test examples."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.translation.alignment import attention_on_spans, flatness
from regard.translation.dataset import Corpus, Example
from regard.translation.lab.competitors import Competitor
from regard.translation.lab.recipes import Setting
from regard.translation.metrics import LengthGroup, by_length, exact_share
from regard.translation.training import train
from regard.translation.translator import Translation, Translator

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
    def from_dict(cls, page: dict[str, Any]) -> "Trial":
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
        ended = train(recipe, Corpus.of(self.setting.corpus, examples), self.folder, device=self.device)
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


def judge(
    translator: Translator, examples: Sequence[Example], competitor: Competitor, seed: int, seconds: float
) -> Trial:
    """Translate the test examples greedily, and read their references."""
    sources, references = [one.source for one in examples], [one.target for one in examples]
    said = [one.text for one in translator.translate(sources, beams=1)]
    given = translator.force(sources, references)
    lengths = [len(one.source.ids) for one in given]
    return Trial(
        competitor=competitor,
        seed=seed,
        exact=exact_share(said, references),
        by_length=by_length(lengths, said, references, tokenize="none"),
        on_span=attention_on_spans(given, examples),
        sharpness=_sharpness(given),
        parameters=sum(parameter.numel() for parameter in translator.models[0].model.parameters()),
        seconds=seconds,
    )


def _sharpness(given: Sequence[Translation]) -> float | None:
    """The mean over sentences of 1 - flatness."""
    found = [1 - flatness(one.weights) for one in given if one.weights is not None]
    return sum(found) / len(found) if found else None
