"""The models that a sentence can be given to: which there are, how far the others are, and their translators."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.studio.models.cache import NO_LOOKS
from regard.translation import Translator


@dataclass
class Book:
    """One model on the shelf.

    state: "waiting", "training", "ready" or "refused", and then `refusal` says why. held: whether another
    process was training it.
    told: the last numbers of its training. looks: its sentences and frames.
    """

    name: str
    title: str
    state: str = "waiting"
    refusal: str = ""
    held: bool = False
    told: dict[str, Any] = field(default_factory=dict)
    looks: dict[str, Any] = field(default_factory=lambda: {key: list(value) for key, value in NO_LOOKS.items()})
    translator: Translator | None = None
    begun: float = 0.0

    def facts(self) -> dict[str, Any]:
        """What the menu and the progress bar show."""
        told = {key: self.told.get(key) for key in ("update", "updates", "loss", "exact", "parameters", "pairs")}
        left = self._seconds_left() if self.state == "training" else None
        return {"name": self.name, "title": self.title, "state": self.state, "refusal": self.refusal, **told,
                "seconds_left": left, "frames": len(self.looks["frames"]),
                "validated_on": self.told.get("validated_on")}  # fmt: skip

    def _seconds_left(self) -> float | None:
        done, first = self.told.get("update") or 0, self.told.get("first", 0)
        if done <= first:
            return None
        return (time.monotonic() - self.begun) / (done - first) * (self.told["updates"] - done)


class Shelf:
    """The models of one studio: a folder given at the start and nothing else, or those that the plan wants."""

    def __init__(self, books: Sequence[Book]) -> None:
        self.books = {book.name: book for book in books}
        self.lock = threading.Lock()

    @classmethod
    def of_folder(cls, folder: Path) -> "Shelf":
        """One model, read now: a damaged folder is refused before the page opens."""
        translator = Translator.load(folder)
        book = Book("given", folder.resolve().name, "ready", translator=translator)
        book.told = validation_of(translator)
        return cls([book])

    def begin(self) -> None:
        """Nothing is to be trained."""

    def stop(self) -> None:
        """Nothing runs."""

    def facts(self) -> dict[str, Any]:
        """All models, in the order of the menu."""
        with self.lock:
            return {"models": [book.facts() for book in self.books.values()]}

    def looks(self, name: str, first: int) -> dict[str, Any]:
        """The sentences that a training is shown by, and its frames from number `first` on."""
        book = self._book(name)
        with self.lock:
            return {"sentences": book.looks["sentences"], "first": first, "frames": book.looks["frames"][first:]}

    def translator(self, name: str) -> Translator:
        """The model of that name, ready to translate; no name is ever a path."""
        book = self._book(name)
        if book.translator is None:
            raise RegardError(
                "model",
                got=f"{book.title!r}, which is {book.state}",
                needed="a model that has been trained",
                repair=book.refusal or "Wait until the menu says that it is ready, or choose another.",
            )
        return book.translator

    def _book(self, name: str) -> Book:
        if name not in self.books:
            raise RegardError(
                "model",
                got=f"{name!r:.60}",
                needed=f"one of {', '.join(self.books)}",
                repair="Choose one from the menu; another folder is given when the studio is started.",
            )
        return self.books[name]


def validation_of(translator: Translator) -> dict[str, Any]:
    """What the folder says of its own quality, where it says anything that can be believed."""
    told = translator.models[0].metadata.get("validation")
    exact = told.get("exact") if isinstance(told, dict) else None
    fits = isinstance(exact, int | float) and not isinstance(exact, bool) and 0 <= exact <= 100
    parameters = sum(parameter.numel() for parameter in translator.models[0].model.parameters())
    return {"exact": exact if fits else None, "parameters": parameters}
