"""From pairs to a trained model: recipes, updates, checkpoints, and the loop around them."""

from regard.translation.checkpoint import StopSignals
from regard.translation.dataset import Corpus
from regard.translation.recipe import Data, Recipe, Training
from regard.translation.training.loop import train

__all__ = ["Corpus", "Data", "Recipe", "StopSignals", "Training", "train"]
