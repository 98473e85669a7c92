"""A model as a folder of files: weights, vocabularies and one page of facts; nothing in it can run."""

from regard.translation.folder.loading import Loaded, load
from regard.translation.folder.saving import save

__all__ = ["Loaded", "load", "save"]
