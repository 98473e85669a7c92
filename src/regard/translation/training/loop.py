"""The training itself: epochs of updates, validated, kept when better, and resumable at any moment."""

import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import torch

from regard.errors import RegardError
from regard.translation import accelerator, checkpoint, folder
from regard.translation.accelerator import CudaGraphUpdate, Processes, matmul_precision
from regard.translation.alignment import UNIFORM
from regard.translation.batching import TrainingTokens, make_batch
from regard.translation.checkpoint import StopSignals, folder_lock, open_in_place, run_fingerprint, writing_file
from regard.translation.dataset import Corpus
from regard.translation.folder import Loaded
from regard.translation.monitoring import (
    Advanced,
    Album,
    Ended,
    EpochEnded,
    Listener,
    Log,
    Started,
    Stopped,
    Warned,
    silence,
)
from regard.translation.recipe import Recipe
from regard.translation.training.divergence import check_loss
from regard.translation.training.optimiser import set_rate
from regard.translation.training.schedule import learning_rate
from regard.translation.training.standing import Best, Standing
from regard.translation.training.state import FORMAT, check_state
from regard.translation.training.trainee import Trainee
from regard.translation.training.update import Update
from regard.translation.training.validation import best_length_penalty, show, validate

STATE = "training"
TELL_EVERY = 0.5  # seconds between two reports of progress
AGREE_EVERY = 64  # updates after which several processes agree whether to write a checkpoint
RANKS_APART = 1_000_003  # between the seeds of two processes
LADDER = 4  # on a GPU lengths are padded to multiples of it


def train(
    recipe: Recipe,
    corpus: Corpus,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    init: Loaded | None = None,
    listen: Listener = silence,
    signals: StopSignals | None = None,
) -> Ended:
    """Train a model into the folder `out`; if a training of the same recipe and data was interrupted there, go on.

    Args:
        recipe: every choice.
        corpus: what to learn from.
        out: the model folder; the state of the training is in its subfolder `training`.
        device: where to train.
        init: a model whose weights and vocabularies are the beginning, for fine-tuning.
        listen: is told of the progress.
        signals: with `StopSignals()`, SIGINT (Ctrl-C) and SIGTERM take effect after the current update or validation,
            when a checkpoint has been written. Without it, and in several processes, they take effect at once, and
            the training resumes from its last checkpoint.
    """
    device = torch.device(device)
    if recipe.training.precision == "bfloat16" and device.type != "cuda":
        raise RegardError(
            "precision", got=f"bfloat16 on {device.type}", needed="a GPU", repair='Write precision = "float32".'
        )
    out = Path(out)
    # Graphs, streams and kernels take the present device, whatever device their tensors are on.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        group = Processes.join(device)
        with folder_lock(out / STATE, group.leads):
            run = None
            try:
                run = _Run(recipe, corpus, out, device, init, group, listen if group.leads else silence, signals)
                return run.run()
            finally:
                if run is not None:
                    run.tokens.close()
                del run  # its model holds the group, which is closed in leaving only if nothing else does
                group.leave()


class _Run:
    """One training, from its first update or from its last checkpoint to its end."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        out: Path,
        device: torch.device,
        init: Loaded | None,
        group: Processes,
        listen: Listener,
        signals: StopSignals | None,
    ) -> None:
        self.recipe, self.corpus, self.out, self.device = recipe, corpus, out, device
        self.group, self.listen = group, listen
        self.identity = run_fingerprint(recipe, corpus, init, group.size)
        self.trainee = Trainee.begin(recipe, corpus, init, device)
        self.model, self.optimiser, self.average = self.trainee.model, self.trainee.optimiser, self.trainee.average
        torch.manual_seed(recipe.training.seed + RANKS_APART * group.rank)  # each process drops out its own units
        graphed = device.type == "cuda" and group.size == 1
        vocabularies = self.trainee.source_vocabulary, self.trainee.target_vocabulary
        self.tokens = TrainingTokens(corpus.train, *vocabularies, recipe, LADDER if graphed else 1)
        self.update: Update | CudaGraphUpdate = Update(
            group.wrap(self.model), self.optimiser, recipe.training, group.size
        )
        self.at = Standing()
        self.signals = signals if group.size == 1 else None
        self.saved = time.perf_counter()
        resumed = self._resume()
        if graphed:
            self.update = CudaGraphUpdate(self.update)
        # Without dropout of subwords every epoch has as many batches; with it, the first one tells about how many.
        self.updates = recipe.training.epochs * len(self.tokens.epoch(0).plans)
        self.log = Log(out / STATE, self.at.epoch) if group.leads else None
        self.album = Album(out / STATE, self.listen)
        self.listen(self._started(resumed))

    def run(self) -> Ended:
        """Train to the end."""
        training = self.recipe.training
        if self.group.leads:
            path = self.out / STATE / "recipe.toml"
            with writing_file(path), open_in_place(path, "w") as file:
                file.write(self.recipe.to_toml())
        with matmul_precision(training.precision):
            with self.signals or nullcontext():
                while self.at.epoch < training.epochs and self.at.epoch - self.best_or_first() < training.patience:
                    self._one_epoch()
                    self._stop_if_asked(time.perf_counter())
            return self._end()

    def best_or_first(self) -> int:
        """The epoch that patience counts from."""
        return max(self.at.best.epoch, self.recipe.training.validate_from - 1)

    def _one_epoch(self) -> None:
        epoch = self.tokens.epoch(self.at.epoch)
        begin = told = time.perf_counter()
        tokens_told = 0
        for planned in epoch.plans[self.at.within :]:
            rate = self._rate(self.at.count)
            set_rate(self.optimiser, rate)
            self.update(make_batch(self.group.share(planned), epoch.sources, epoch.targets))
            self.at.within += 1
            self.at.count += 1
            tokens_told += planned.tokens
            now = time.perf_counter()
            if self.group.leads and now - told > TELL_EVERY:
                loss, tokens, _ = self.update.totals.read()
                speed = tokens_told / (now - told)
                self.listen(
                    Advanced(self.at.epoch + 1, self.at.count, self.updates, loss / max(tokens, 1), speed, rate)
                )
                told, tokens_told = now, 0
            self._stop_if_asked(begin)
            if self._is_checkpoint_due():
                self._save(begin)
                begin = time.perf_counter()
        self._end_epoch(begin)

    def _rate(self, update: int) -> float:
        """The learning rate of update number `update`, counted from 0."""
        training = self.recipe.training
        return learning_rate(
            update,
            highest=training.learning_rate,
            warmup=training.warmup,
            decay=training.decay,
            updates=self.updates,
        )

    def _stop_if_asked(self, begin: float) -> None:
        """After SIGINT or SIGTERM: write a checkpoint, and let the signal act. begin: of the time not counted yet."""
        if self.signals is not None and self.signals.received is not None:
            self._save(begin)
            self.listen(Stopped(self.at.count))
            self.signals.act()

    def _is_checkpoint_due(self) -> bool:
        """By the number of updates or by time; all processes have the same answer."""
        training = self.recipe.training
        if training.save_every and self.at.count % training.save_every == 0:
            return True
        if self.group.size > 1 and self.at.count % AGREE_EVERY:
            return False
        return self.group.tell(time.perf_counter() - self.saved >= training.save_seconds)

    def _end_epoch(self, begin: float) -> None:
        training = self.recipe.training
        sums = self.group.gather(self.update.totals.sums())
        loss, tokens, norm = (sum(parts) for parts in zip(*sums, strict=True))
        check_loss(loss / max(tokens, 1), "training")  # here the host waits for the numbers anyway
        if self.at.epoch + 1 >= training.average_from:
            self.average.add(self.model)
        updates = max(self.at.within, 1)
        entry = EpochEnded(
            epoch=self.at.epoch + 1,
            update=self.at.count,
            loss=loss / max(tokens, 1),
            gradient_norm=norm / updates / self.group.size,
            learning_rate=self._rate(max(self.at.count - 1, 0)),
            tokens=int(tokens),
            seconds=0.0,
        )
        is_due = training.validates(entry.epoch)
        if is_due:
            entry = self.group.tell(self._validated(entry) if self.group.leads else None)
        self.at.seconds += time.perf_counter() - begin
        entry = replace(entry, seconds=self.at.seconds)
        if entry.is_best:
            self.at.best = Best.of(entry)
        if self.log is not None:
            self.log.add(entry)
        self.at.next_epoch()
        self.update.totals.restart()
        if self.group.tell(time.perf_counter() - self.saved >= training.save_seconds):
            self._save(time.perf_counter())
        self.listen(entry)
        if self.log is not None and is_due:
            self.album.add(self.log.entries, self.shown)
            self._warn(entry)

    def _validated(self, entry: EpochEnded) -> EpochEnded:
        """Translate the validation pairs with the averaged weights, and keep these if they are the best so far."""
        with self.average.inside(self.model):
            result = validate(self.trainee.loaded(), self.corpus.valid, self.recipe.data.tokenize)
            entry = replace(
                entry, bleu=result.bleu, exact=result.exact, valid_loss=result.loss, flatness=result.flatness
            )
            entry = replace(entry, is_best=Best.of(entry).beats(self.at.best))
            if entry.is_best:
                self._keep(entry)
        self.shown = result.shown
        return entry

    def _keep(self, entry: EpochEnded) -> None:
        facts = {
            "recipe": self.recipe.to_dict(),
            "corpus": self.corpus.name,
            "length_penalty": 1.0,  # until the end, when the best is found
            "target_per_source": self.tokens.target_per_source,
            "validation": asdict(Best.of(entry)),
        }
        self.trainee.keep(self.out, facts)

    def _end(self) -> Ended:
        """Find the length penalty of the model that is kept, and say how good it is."""
        self._save(time.perf_counter())
        strength, best = 1.0, self.at.best
        history = () if self.log is None else tuple(self.log.entries)
        if self.group.leads:
            kept = folder.load(self.out, self.device)
            strength = best_length_penalty(kept, self.corpus.valid, self.recipe.data.tokenize)
            facts = kept.facts | {"length_penalty": strength}
            folder.save(self.out, kept.model, kept.source_vocabulary, kept.target_vocabulary, facts)
            # After a resume that was not bit-identical the folder may hold an epoch of the time before.
            best = Best.read(kept.facts.get("validation"))
            if best is None:
                raise RegardError(
                    "out",
                    got=f"{self.out}, with a model that this training did not write",
                    needed="the best model of this training",
                    repair="Choose another folder, or delete this one to begin anew.",
                )
            self.album.close(history, show(kept, self.corpus.valid), best.epoch)
        best = self.group.tell(best)
        ended = Ended(self.at.epoch, best.epoch, best.bleu, best.exact, strength, self.at.seconds, history)
        self.listen(ended)
        return ended

    def _save(self, begin: float) -> None:
        self.at.seconds += time.perf_counter() - begin
        random = self.group.gather(accelerator.get_rng_state(self.device))
        sums = self.group.gather(self.update.totals.sums())
        if not self.group.leads:
            return
        state = {
            "format": FORMAT,
            "identity": self.identity,
            "machine": accelerator.environment(self.device),
            "trainee": self.trainee.state(),
            "standing": self.at.to_dict(),
            "sums": sums,
            "random": random,
        }
        checkpoint.save(self.out / STATE, state)
        self.saved = time.perf_counter()

    def _resume(self) -> int | None:
        """Take up the last checkpoint; the epoch it stands in, or None where there is none."""
        state = checkpoint.load(self.out / STATE, self.device)
        if state is None:
            return None
        check_state(state, self.identity, self.recipe, self.trainee, self.device, self.out)
        changed = accelerator.describe_changes(state["machine"], accelerator.environment(self.device))
        if changed:
            self.listen(Warned(f"The result will not be bit-identical to an uninterrupted training: {changed}."))
        self.trainee.restore(state["trainee"])
        self.at = Standing.from_dict(state["standing"])
        self.update.totals.restart(tuple(state["sums"][self.group.rank]))
        accelerator.set_rng_state(self.device, state["random"][self.group.rank])
        return self.at.epoch + 1

    def _started(self, resumed: int | None) -> Started:
        return Started(
            updates=self.updates,
            done=self.at.count,
            parameters=self.trainee.parameters,
            pairs=len(self.tokens.pairs),
            left_out=self.tokens.left_out,
            source_size=len(self.trainee.source_vocabulary),
            target_size=len(self.trainee.target_vocabulary),
            resumed_epoch=resumed,
            seconds=self.at.seconds,
        )

    def _warn(self, entry: EpochEnded) -> None:
        late = entry.epoch >= max(3, self.recipe.training.epochs // 4)
        if entry.flatness is not None and entry.flatness > UNIFORM and late:
            self.listen(
                Warned(
                    f"After {entry.epoch} epochs attention is still uniform ({entry.flatness:.2f} of the even "
                    "entropy). Try a higher learning rate, less dropout, smaller batches, or more epochs."
                )
            )
