"""The models that are compared, and the settings they have in common."""

from dataclasses import dataclass, replace

from regard.translation.corpora import built_in_corpus
from regard.translation.dataset import Corpus
from regard.translation.model import Architecture
from regard.translation.recipe import Recipe, preset

TITLES = {"none": "no attention", "scaled_dot": "scaled dot", "squared_distance": "squared distance"}
HEADS = 4


@dataclass(frozen=True)
class Competitor:
    """A change of the common architecture.

    attention: a score of the library, or "none".
    heads: how many of it.
    hidden: another size of the state; None for the common one.

    >>> print(Competitor("additive", heads=4))
    additive, 4 heads
    """

    attention: str
    heads: int = 1
    hidden: int | None = None

    def __str__(self) -> str:
        parts = [TITLES.get(self.attention, self.attention)]
        parts += [f"{self.heads} heads"] if self.heads > 1 else []
        parts += [f"state of {self.hidden}"] if self.hidden is not None else []
        return ", ".join(parts)

    @property
    def folder(self) -> str:
        """Its name as that of a folder."""
        return str(self).replace(", ", "-").replace(" ", "-")

    def changed(self, common: Architecture) -> Architecture:
        """The common architecture with this way to the context."""
        hidden = common.hidden if self.hidden is None else self.hidden
        width = common.attention_dim if self.heads == 1 else None  # heads share the width of the state
        return replace(common, attention=self.attention, heads=self.heads, hidden=hidden, attention_dim=width)


NONE = Competitor("none")
ADDITIVE = Competitor("additive")
EVERY = (
    NONE,
    Competitor("dot"),
    Competitor("scaled_dot"),
    Competitor("bilinear"),
    Competitor("squared_distance"),
    ADDITIVE,
    Competitor("additive", heads=HEADS),
)
FEW = (NONE, Competitor("scaled_dot"), ADDITIVE)


def without_attention(hidden: int, common: int) -> Competitor:
    """The model without attention and a state of some size; of the common size it is `NONE` itself."""
    return NONE if hidden == common else replace(NONE, hidden=hidden)


# Characters make long sources: fewer pairs of them take as long.
TRAIN = {"lists": 36_000, "dates": 10_000, "numbers": 12_000}


@dataclass(frozen=True)
class Setting:
    """One corpus, the common recipe, and the models.

    corpus: the name of a built-in one; train, valid, test: how many examples of each part.
    recipe: of all models but for what a competitor changes.
    competitors: what is compared.
    factors: the sizes of the state of the model without attention, as multiples of the common one.
    """

    corpus: str
    train: int
    valid: int
    test: int
    recipe: Recipe
    competitors: tuple[Competitor, ...] = EVERY
    factors: tuple[float, ...] = (0.5, 1, 2)

    def examples(self) -> Corpus:
        """The corpus."""
        return built_in_corpus(self.corpus, train=self.train, valid=self.valid, test=self.test)

    def recipe_of(self, competitor: Competitor, seed: int) -> Recipe:
        """The common recipe with the competitor's attention; only the last epoch is validated."""
        training = self.recipe.training
        return replace(
            self.recipe,
            model=competitor.changed(self.recipe.model),
            training=replace(training, seed=seed, validate_from=training.epochs),
        )

    @property
    def by_size(self) -> tuple[Competitor, ...]:
        """The models without attention, from the smallest state to the largest."""
        common = self.recipe.model.hidden
        return tuple(without_attention(round(factor * common), common) for factor in sorted(self.factors))

    @property
    def everyone(self) -> tuple[Competitor, ...]:
        """All models that are trained, each once."""
        return tuple(dict.fromkeys((*self.competitors, *self.by_size)))


def setting(corpus: str, *, quick: bool = False) -> Setting:
    """The setting of a built-in corpus, by its own recipe; the quick one has fewer models and fewer updates."""
    recipe = preset(corpus)
    full = Setting(corpus, TRAIN[corpus], valid=120, test=1_200, recipe=recipe)
    if not quick:
        return full
    shorter = replace(recipe, training=replace(recipe.training, epochs=max(1, recipe.training.epochs - 1)))
    return replace(full, test=600, recipe=shorter, competitors=FEW, factors=(1, 2))
