"""What the laboratory trains on, and how: small models that show the differences within a minute each."""

from dataclasses import dataclass, replace

from regard.translation.corpora import BuiltIn, built_in
from regard.translation.lab.competitors import EVERY, FEW, Competitor, without_attention
from regard.translation.model import Architecture
from regard.translation.training import Data, Recipe, Training
from regard.translation.vocabularies.vocabulary import Unit

EMBEDDING, HIDDEN = 32, 64
UNITS: dict[str, tuple[Unit, Unit]] = {"lists": ("words", "words"), "numbers": ("characters", "words")}
# Characters make long sources: fewer pairs of them take as long.
PAIRS = {"lists": 36_000, "dates": 12_000, "numbers": 8_000}
# Nothing is held back by dropout or smoothing: the corpora are made, and every pair of them is true.
MODEL = Architecture(embedding=EMBEDDING, hidden=HIDDEN, embedding_dropout=0.0, state_dropout=0.0, readout_dropout=0.0)
TRAINING = Training(
    epochs=4, batch_tokens=1024, learning_rate=4e-3, warmup=50, decay="cosine", label_smoothing=0.0, patience=1000
)


@dataclass(frozen=True)
class Setting:
    """One corpus, the common recipe, and the models.

    corpus: the name of a built-in one; train, valid, test: how many examples of each part.
    recipe: of all models but for what a competitor changes.
    competitors: what is compared.
    sizes: of the state of the model without attention.
    """

    corpus: str
    train: int
    valid: int
    test: int
    recipe: Recipe
    competitors: tuple[Competitor, ...] = EVERY
    sizes: tuple[int, ...] = (HIDDEN // 2, HIDDEN, 2 * HIDDEN)

    def examples(self) -> BuiltIn:
        """The corpus."""
        return built_in(self.corpus, train=self.train, valid=self.valid, test=self.test)

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
        return tuple(without_attention(hidden, self.recipe.model.hidden) for hidden in sorted(self.sizes))

    @property
    def everyone(self) -> tuple[Competitor, ...]:
        """All models that are trained, each once."""
        return tuple(dict.fromkeys((*self.competitors, *self.by_size)))


def setting(corpus: str, *, quick: bool = False) -> Setting:
    """The setting of a built-in corpus; the quick one has fewer models and fewer updates."""
    source, target = UNITS.get(corpus, ("characters", "characters"))
    recipe = Recipe(MODEL, Data(source_unit=source, target_unit=target), TRAINING)
    full = Setting(corpus, PAIRS.get(corpus, 12_000), valid=120, test=1_200, recipe=recipe)
    if not quick:
        return full
    shorter = replace(recipe, training=replace(TRAINING, epochs=3))
    return replace(full, test=600, recipe=shorter, competitors=FEW, sizes=(HIDDEN, 2 * HIDDEN))
