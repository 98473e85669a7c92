"""A training that the tour follows: it shows the model at chosen updates and reports progress."""

from collections.abc import Callable

from regard.tour.station import Tell
from regard.translation.dataset import Corpus
from regard.translation.recipe import Recipe
from regard.translation.training import Trainer
from regard.translation.translator import Translator

REPORTS = 50  # of progress in a training

Look = Callable[[int, Translator], None]
"""Called with the number of updates so far and the model at that time."""


def train(recipe: Recipe, corpus: Corpus, tell: Tell, look: Look, moments: Callable[[int], set[int]]) -> Translator:
    """Train on the CPU; nothing is written to disk and nothing is validated.

    Args:
        recipe: All choices of the training.
        corpus: The pairs to train on.
        tell: Called with the share of updates that are done, and a line of text.
        look: Called at the moments.
        moments: From the number of all updates to those after which `look` is called; 0 is before the first.

    Returns:
        The model with its last weights.
    """
    with Trainer(recipe, corpus) as trainer:
        total = trainer.total_updates
        chosen = moments(total)
        if 0 in chosen:
            look(0, Translator([trainer.snapshot(averaged=False)]))
        for _ in range(recipe.training.epochs):
            for update in trainer.updates():
                if update % max(1, total // REPORTS) == 0:
                    tell(update / total, f"update {update:,} of {total:,}, loss {trainer.mean_loss():.2f}")
                if update in chosen:
                    look(update, Translator([trainer.snapshot(averaged=False)]))
        return Translator([trainer.snapshot(averaged=False)])
