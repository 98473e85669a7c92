"""What a training works on: a model with its vocabularies, the optimiser's moments, and the average of its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.translation import folder
from regard.translation.dataset import Corpus, learn_vocabularies
from regard.translation.folder import Loaded
from regard.translation.model import EncoderDecoder
from regard.translation.recipe import Recipe
from regard.translation.training.average import Average
from regard.translation.training.optimiser import make_optimiser, moments, restore
from regard.translation.vocabulary import Vocabulary

MAX_PARAMETERS = 2**30  # 4 GiB of weights, and three times as much for gradients and moments


@dataclass
class Trainee:
    """Everything that updates change, and the words it is about."""

    model: EncoderDecoder
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    optimiser: torch.optim.Optimizer
    average: Average

    @classmethod
    def begin(cls, recipe: Recipe, corpus: Corpus, init: Loaded | None, device: torch.device) -> "Trainee":
        """A model drawn by the recipe's seed with vocabularies of the training data, or a trained one to fine-tune."""
        if init is None:
            source, target = learn_vocabularies(recipe, corpus.train)
            _check_parameters(recipe, len(source), len(target))
            torch.manual_seed(recipe.training.seed)
            model = EncoderDecoder(recipe.model, len(source), len(target))
        else:
            model, source, target = init.model, init.source_vocabulary, init.target_vocabulary
        model = model.to(device).train()
        return cls(model, source, target, make_optimiser(model, recipe.training), Average(recipe.training.average))

    @property
    def parameters(self) -> int:
        """How many numbers are learnt."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def loaded(self) -> Loaded:
        """The model as a translator takes it."""
        return Loaded(self.model, self.source_vocabulary, self.target_vocabulary, {})

    def keep(self, out: Path, facts: dict[str, Any]) -> None:
        """Write the model folder."""
        folder.save(out, self.model, self.source_vocabulary, self.target_vocabulary, facts)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {
            "model": self.model.state_dict(),
            "moments": moments(self.optimiser),
            "average": list(self.average.kept),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self.model.load_state_dict(state["model"])
        restore(self.optimiser, state["moments"])
        self.average.kept.extend(state["average"])


def _check_parameters(recipe: Recipe, source_size: int, target_size: int) -> None:
    """Refuse a model that is too large before memory for it is allocated."""
    with torch.device("meta"):
        model = EncoderDecoder(recipe.model, source_size, target_size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MAX_PARAMETERS:
        raise RegardError(
            "model",
            got=f"{parameters:,} parameters",
            needed=f"at most {MAX_PARAMETERS:,}",
            repair="Lower hidden, embedding or layers.",
        )
