"""A shelf that fills itself: models out of the cache, and a process that trains those that are not there."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.studio.models.cache import Cache
from regard.studio.models.shelf import Book, Shelf, validation_of
from regard.studio.models.wanted import Wanted
from regard.translation import Translator

BETWEEN = 2.0  # seconds between two tries for a model that another process is training
LEARNER = "regard.studio.models.learner"


class LearningShelf(Shelf):
    """Models out of the cache; those that are not there are trained one after the other, in a process of their own."""

    def __init__(self, cache: Cache, plan: Sequence[Wanted]) -> None:
        told = [{"validated_on": wanted.validated_on} for wanted in plan]
        books = [Book(wanted.name, wanted.title, told=numbers) for wanted, numbers in zip(plan, told, strict=True)]
        super().__init__(books)
        self.cache, self.plan = cache, plan
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()

    def begin(self) -> None:
        """Read what is kept, train the rest; a second call changes nothing."""
        with self.lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._go_through, name="regard-studio-models", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the training; the next studio goes on from its last checkpoint."""
        self._stopping.set()
        with self.lock:
            process = self._process
        if process is not None:
            process.terminate()
        if self._thread is not None:
            self._thread.join(10)

    def _go_through(self) -> None:
        missing = [wanted for wanted in self.plan if not self._take(wanted)]
        for wanted in missing:
            while not self._stopping.is_set() and not self._train(wanted):
                self._stopping.wait(BETWEEN)

    def _take(self, wanted: Wanted) -> bool:
        """Load a model that is kept; one that is damaged is thrown away and trained anew."""
        if not self.cache.has(wanted):
            return False
        book = self.books[wanted.name]
        looks = self.cache.looks(wanted)
        try:
            translator = Translator.load(self.cache.kept(wanted)) if looks is not None else None
        except RegardError:
            translator = None
        if looks is None or translator is None:
            self.cache.drop(wanted)
            return False
        with self.lock:
            book.translator, book.state, book.looks, book.refusal = translator, "ready", looks, ""
            book.told |= validation_of(translator)
        return True

    def _train(self, wanted: Wanted) -> bool:
        """Train one model; False where another studio is at it and we should look again."""
        if self._take(wanted):
            return True
        book = self.books[wanted.name]
        try:
            self.cache.check()
            ended = self._run_learner(wanted, book)
        except (RegardError, OSError) as refusal:
            self._refuse(book, str(refusal))
            return True
        if self._stopping.is_set() or self._take(wanted):
            return True
        if book.held:
            with self.lock:
                book.state, book.refusal, book.held = "waiting", "", False
            return False
        self._refuse(book, book.refusal or f"The training ended unexpectedly ({ended}); see {self._log(wanted)}.")
        return True

    def _run_learner(self, wanted: Wanted, book: Book) -> int:
        with self._log(wanted).open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", LEARNER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) - 1))},
            )
            with self.lock:
                self._process = process
                book.state, book.begun = "training", time.monotonic()
            assert process.stdin is not None
            assert process.stdout is not None
            with process:
                process.stdin.write(json.dumps({"wanted": wanted.to_dict(), "cache": str(self.cache.folder)}))
                process.stdin.close()
                if self._stopping.is_set():
                    process.terminate()
                for line in process.stdout:
                    self._hear(book, json.loads(line))
            with self.lock:
                self._process = None
            return process.returncode

    def _hear(self, book: Book, said: dict[str, Any]) -> None:
        kind = said.pop("kind")
        with self.lock:
            if kind == "sentences":
                book.looks = {"sentences": said["sentences"], "frames": []}
            elif kind == "frame":
                book.looks["frames"].append(said["frame"])
            elif kind == "refused":
                book.refusal, book.held = said["sentence"], said["held"]
            else:
                if kind == "started":
                    book.begun = time.monotonic()
                    book.told["first"] = said["update"]
                book.told |= said

    def _refuse(self, book: Book, sentence: str) -> None:
        with self.lock:
            book.state, book.refusal = "refused", sentence

    def _log(self, wanted: Wanted) -> Path:
        return self.cache.folder / f"{wanted.folder}.log"
