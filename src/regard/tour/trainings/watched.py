"""A training that is looked at: the updates of `regard train`, and a look at the model at chosen moments."""

from collections.abc import Callable

import torch

from regard.tour.station import Tell
from regard.translation.batching import TrainingTokens, make_batch
from regard.translation.dataset import Corpus
from regard.translation.recipe import Recipe
from regard.translation.training import Trainee, Update, learning_rate, set_learning_rate
from regard.translation.translator import Translator

TOLD = 50  # times in a training

Look = Callable[[int, Translator], None]
"""Is shown the model after so many updates."""


def train(recipe: Recipe, corpus: Corpus, tell: Tell, look: Look, moments: Callable[[int], set[int]]) -> Translator:
    """Train on one thread's worth of data; nothing is written to a disk, nothing is validated.

    moments: from the number of all updates to those after which `look` is called, 0 being before the first.
    """
    trainee = Trainee.begin(recipe, corpus, None, torch.device("cpu"))
    tokens = TrainingTokens(corpus.train, trainee.source_vocabulary, trainee.target_vocabulary, recipe, 1)
    try:
        _learn(recipe, trainee, tokens, tell, look, moments)
    finally:
        tokens.close()
    return Translator([trainee.loaded()])


def _learn(
    recipe: Recipe,
    trainee: Trainee,
    tokens: TrainingTokens,
    tell: Tell,
    look: Look,
    moments: Callable[[int], set[int]],
) -> None:
    training = recipe.training
    update = Update(trainee.model, trainee.optimiser, training, 1)
    updates = training.epochs * len(tokens.epoch(0).plans)
    looked_at, count = moments(updates), 0
    _look(look, 0, trainee, looked_at)
    for number in range(training.epochs):
        epoch = tokens.epoch(number)
        for planned in epoch.plans:
            rate = learning_rate(
                count,
                highest=training.learning_rate,
                warmup=training.warmup,
                decay=training.decay,
                updates=updates,
            )
            set_learning_rate(trainee.optimiser, rate)
            update(make_batch(planned, epoch.sources, epoch.targets))
            count += 1
            if count % max(1, updates // TOLD) == 0:
                loss, seen, _ = update.totals.read()
                tell(count / updates, f"update {count:,} of {updates:,}, loss {loss / max(seen, 1):.2f}")
            _look(look, count, trainee, looked_at)


def _look(look: Look, count: int, trainee: Trainee, moments: set[int]) -> None:
    if count in moments:
        look(count, Translator([trainee.loaded()]))  # a translator evaluates ...
        trainee.model.train()  # ... and the training goes on
