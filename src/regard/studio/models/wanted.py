"""What the studio trains by itself: the dates model first, then the same model with every other score."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from regard.experiments.variants import ADDITIVE, EVERY, NONE, Competitor
from regard.translation.recipe import Recipe, preset

CORPUS = "dates"
SIZES = {"train": 10_000, "valid": 1_000, "test": 2_000}
FRAME_EVERY = 8  # updates between two looks at the alignment


@dataclass(frozen=True)
class Wanted:
    """One model to be trained: its name in the menu, its recipe, and the size of its corpus.

    options: of the corpus `dates`, as `corpora` takes them.
    """

    name: str
    title: str
    recipe: Recipe
    options: Mapping[str, Any] = field(default_factory=lambda: dict(SIZES))

    @property
    def validated_on(self) -> int:
        """How many pairs its quality is measured on."""
        return int(self.options.get("valid", SIZES["valid"]))

    @property
    def folder(self) -> str:
        """The folder in the cache: another recipe or corpus is another folder."""
        said = json.dumps([self.recipe.to_dict(), dict(self.options)], sort_keys=True)
        return f"{CORPUS}-{self.name}-{hashlib.sha256(said.encode()).hexdigest()[:10]}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Wanted":
        """What `to_dict` gave."""
        return cls(values["name"], values["title"], Recipe().changed(values["recipe"]), values["options"])


def plan() -> tuple[Wanted, ...]:
    """The additive score of the chapter first; it is shown while it learns, and the others follow."""
    others = [competitor for competitor in EVERY if competitor not in (ADDITIVE, NONE)]
    return tuple(_wanted(competitor) for competitor in (ADDITIVE, *others, NONE))


def _wanted(competitor: Competitor) -> Wanted:
    common = preset(CORPUS)
    recipe = replace(
        common,
        model=competitor.changed(common.model),
        training=replace(common.training, save_every=FRAME_EVERY),
    )
    return Wanted(competitor.folder, f"{CORPUS}, {competitor}", recipe)
