"""Training: the loss, the learning rate, `Trainer`, and `train`, which validates, keeps the best model and resumes.

`Trainer` makes one update after the other and needs no folder. `train` runs it into a model folder: after each epoch it
translates the validation pairs, keeps the model if it is the best so far, and writes checkpoints, so that a training
that is stopped at any moment resumes and ends in the same bits.
"""

import copy
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.checks import accumulation_dtype
from regard.errors import RegardError
from regard.translation import accelerator, checkpoint
from regard.translation.accelerator import CudaGraphUpdate, Processes, matmul_precision
from regard.translation.alignment import UNIFORM
from regard.translation.batching import Batch, EpochBatches, make_batch
from regard.translation.checkpoint import (
    Best,
    StopSignals,
    check_state,
    folder_lock,
    open_in_place,
    run_fingerprint,
    writing_file,
)
from regard.translation.dataset import Corpus, learn_vocabularies
from regard.translation.model import EncoderDecoder
from regard.translation.model_folder import TrainedModel
from regard.translation.monitoring import (
    EpochEnded,
    EpochLog,
    Listener,
    Started,
    Stopped,
    TrainingPlots,
    TrainingProgress,
    TrainingResult,
    TrainingWarning,
)
from regard.translation.recipe import Recipe, Training
from regard.translation.translator import Translation
from regard.translation.validation import Validation, best_length_penalty, check_loss, sample_translation, validate
from regard.translation.vocabulary import PAD, Vocabulary


class Loss(NamedTuple):
    """Sums over the target tokens of a batch.

    Attributes:
        objective: What training minimises.
        cross_entropy: -log p of the targets, without smoothing or gradient, for the log.
    """

    objective: Tensor
    cross_entropy: Tensor


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Loss:
    """Cross entropy against 1 - smoothing on the target plus smoothing spread evenly over the vocabulary.

    Args:
        logits: (batch, target, vocabulary).
        targets: int64 (batch, target), PAD where there is no token.
        smoothing: The share that is spread.
    """
    rows = logits.to(accumulation_dtype(logits.dtype)).flatten(0, 1)
    return Loss(*_SmoothedCrossEntropy.apply(rows, targets.flatten(), smoothing))


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The sums over rows of logits (rows, vocabulary), without a copy of the logits as log-probabilities.

    The gradient is softmax(logits) minus the smoothed targets, in one pass where autograd needs several.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        is_padding = targets == PAD
        log_sum = logits.logsumexp(-1)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1)
        cross_entropy = (log_sum - chosen).masked_fill(is_padding, 0.0).sum()
        uniform = (log_sum - logits.mean(-1)).masked_fill(is_padding, 0.0).sum() if smoothing else cross_entropy
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(cross_entropy)
        return (1 - smoothing) * cross_entropy + smoothing * uniform, cross_entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, d_objective: Tensor, _: Tensor):  # pyrefly: ignore
        logits, targets = ctx.saved_tensors
        gradient = torch.softmax(logits, -1)
        if ctx.smoothing:
            gradient -= ctx.smoothing / logits.shape[-1]
        gradient.scatter_add_(-1, targets[:, None], gradient.new_full((len(targets), 1), ctx.smoothing - 1))
        return gradient.mul_((d_objective * (targets != PAD))[:, None]), None, None


def r_drop(logits: Tensor, targets: Tensor, smoothing: float, weight: float) -> Loss:
    """Cross entropy of two passes over the same batch, and the divergence of their distributions (arXiv 2106.14448).

    The sums are means over the two passes, so a weight of 1 is the paper's alpha of 2.

    Args:
        logits: (2 batch, target, vocabulary), the second half from the same inputs under another dropout.
        targets: int64 (batch, target).
        smoothing: The label smoothing.
        weight: The weight of the divergence.
    """
    log_p, log_q = functional.log_softmax(logits.to(accumulation_dtype(logits.dtype)), -1).chunk(2)
    first, second = (_from_log_probabilities(each, targets, smoothing) for each in (log_p, log_q))
    # KL(p|q) + KL(q|p) = sum (p - q)(log p - log q)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    divergence = divergence.masked_fill(targets == PAD, 0.0).sum() / 2
    objective = (first.objective + second.objective) / 2 + weight * divergence
    return Loss(objective, (first.cross_entropy + second.cross_entropy) / 2)


def _from_log_probabilities(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Loss:
    """`smoothed_cross_entropy`, from log-probabilities that are there already."""
    is_padding = targets == PAD
    chosen = -log_probabilities.gather(-1, targets[..., None]).squeeze(-1)
    cross_entropy = chosen.masked_fill(is_padding, 0.0).sum()
    if not smoothing:
        return Loss(cross_entropy, cross_entropy.detach())
    uniform = -log_probabilities.mean(-1).masked_fill(is_padding, 0.0).sum()
    return Loss((1 - smoothing) * cross_entropy + smoothing * uniform, cross_entropy.detach())


def learning_rate(update: int, *, highest: float, warmup: int, decay: str, updates: int) -> float:
    """Compute the learning rate of an update.

    Args:
        update: The number of the update, from 0.
        highest: The rate after the warm-up.
        warmup: The number of updates over which the rate rises linearly.
        decay: What follows: "none", "linear" or "cosine" (to 0 at the last update), or "inverse_sqrt".
        updates: The number of updates of the training.
    """
    if update < warmup:
        return highest * (update + 1) / warmup
    if decay == "none":
        return highest
    if decay == "inverse_sqrt":
        return highest * math.sqrt(max(warmup, 1) / (update + 1))
    done = min((update - warmup) / max(updates - warmup, 1), 1.0)
    return highest * (1 - done) if decay == "linear" else highest * (1 + math.cos(math.pi * done)) / 2


BETAS = (0.9, 0.98)


def make_optimiser(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """Make a fused AdamW; on a GPU its learning rate is a tensor, which CUDA graphs read at every replay."""
    parameters = list(model.parameters())
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, weight_decay=training.weight_decay, fused=True, capturable=on_gpu
    )


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def moments(optimiser: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """Return the optimiser's state by parameter index, as checkpoints store it."""
    return optimiser.state_dict()["state"]


def restore_moments(optimiser: torch.optim.Optimizer, moments: dict[int, dict[str, Tensor]]) -> None:
    """Load the result of `moments`; the optimiser keeps its own options."""
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})


Sums = tuple[float, float, float]


@dataclass
class RunningTotals:
    """Sums of the cross entropy, the target tokens and the gradient norms over the updates of an epoch.

    They stay on the device, so no update waits for the host. Reading does not change them: the sums of an epoch do not
    depend on how often progress is reported.
    """

    cross_entropy: Tensor
    tokens: Tensor
    norm: Tensor
    last_read: Sums = (0.0, 0.0, 0.0)

    @classmethod
    def zeros(cls, device: torch.device) -> Self:
        """Return sums of 0, in float64 if the device supports it."""
        dtype = torch.float32 if device.type == "mps" else torch.float64
        cross_entropy, tokens, norm = (torch.zeros((), device=device, dtype=dtype) for _ in range(3))
        return cls(cross_entropy, tokens, norm)

    def sums(self) -> Sums:
        """Return the sums since `restart`."""
        cross_entropy, tokens, norm = torch.stack((self.cross_entropy, self.tokens, self.norm)).tolist()
        return cross_entropy, tokens, norm

    def read(self) -> Sums:
        """Return the sums since the last call of this method."""
        before, now = self.last_read, self.sums()
        self.last_read = now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def restart(self, sums: Sums = (0.0, 0.0, 0.0)) -> None:
        """Start from 0, or from the sums of a checkpoint."""
        for total, value in zip((self.cross_entropy, self.tokens, self.norm), sums, strict=True):
            total.fill_(value)  # in place: CUDA graphs hold these tensors
        self.last_read = sums


class EpochSummary(NamedTuple):
    """An epoch that has ended: its loss per target token, mean gradient norm, and number of target tokens."""

    loss: float
    gradient_norm: float
    tokens: int


MAX_PARAMETERS = 2**30  # 4 GiB of weights, and three times that for gradients and optimizer state
RANK_SEED_STRIDE = 1_000_003  # between the seeds of two processes
PAD_TO_MULTIPLE = 4  # of lengths on a GPU, where each shape needs a CUDA graph


class Trainer:
    """A model in training: its vocabularies, optimizer, averaged weights, and the order of its batches.

    Call `close`, or use it in a `with` statement, when no more updates are made: a thread prepares the batches.

    Args:
        recipe: All choices of the training.
        corpus: The pairs to train and to validate on.
        device: Where to train.
        init: A model to start from, for fine-tuning. It is copied.
        cuda_graphs: Record updates as CUDA graphs; on CUDA and in one process only.
        processes: The processes that share each batch; one by default.

    Attributes:
        model: The model in training.
        source_vocabulary: Learnt from the training pairs, or that of `init`.
        target_vocabulary: Likewise; the same object if the recipe's model is joint.
        epoch: The number of epochs that have ended.
        batch: The number of updates of the present epoch.
        update_count: The number of updates so far.
        token_count: The number of target tokens of the updates of this process's run.
        last_epoch: The figures of the epoch that ended last; None before.

    Raises:
        RegardError: If the recipe and the device or the corpus do not go together, or the model is too large.

    Example:
        >>> from regard.translation import Translator
        >>> from regard.translation.corpora import lists
        >>> from regard.translation.recipe import preset
        >>> recipe = preset("lists").with_flags({"embedding": 8, "hidden": 8, "epochs": 2})
        >>> with Trainer(recipe, lists(train=64, valid=16, test=16)) as trainer:
        ...     for _ in range(recipe.training.epochs):
        ...         for update in trainer.updates():
        ...             loss = trainer.mean_loss()
        ...     quality = trainer.validate()
        >>> update == trainer.total_updates
        True
        >>> len(Translator([trainer.snapshot()]).translate(["two four"]))
        1
    """

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        *,
        device: torch.device | str = "cpu",
        init: TrainedModel | None = None,
        cuda_graphs: bool = True,
        processes: Processes | None = None,
    ) -> None:
        self.recipe, self.corpus, self.device = recipe, corpus, torch.device(device)
        self.processes = processes or Processes()
        if recipe.training.precision == "bfloat16" and self.device.type != "cuda":
            raise RegardError(
                "precision",
                got=f"bfloat16 on {self.device.type}",
                needed="a GPU",
                repair='Write precision = "float32".',
            )
        if init is None:
            source, target = learn_vocabularies(recipe, corpus.train)
            _check_parameters(recipe, len(source), len(target))
            torch.manual_seed(recipe.training.seed)
            model = EncoderDecoder(recipe.model, len(source), len(target))
        else:
            source, target = init.source_vocabulary, init.target_vocabulary
            model = copy.deepcopy(init.model)
        self.source_vocabulary: Vocabulary = source
        self.target_vocabulary: Vocabulary = target
        self.model = model.to(self.device).train()
        torch.manual_seed(recipe.training.seed + RANK_SEED_STRIDE * self.processes.rank)  # for dropout
        self.optimizer = make_optimiser(self.model, recipe.training)
        self.epoch = self.batch = self.update_count = self.token_count = 0
        self.last_epoch: EpochSummary | None = None
        self._wrapped = self.processes.wrap(self.model)
        self._parameters = list(self.model.parameters())
        self._totals = RunningTotals.zeros(self.device)
        self._last_weights: deque[list[Tensor]] = deque(maxlen=recipe.training.average)
        self._use_graphs = cuda_graphs and self.device.type == "cuda" and self.processes.size == 1
        self._graph_update: CudaGraphUpdate | None = None

    def __enter__(self) -> Self:
        """Return the trainer."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the thread that prepares batches."""
        self.close()

    def close(self) -> None:
        """Stop the thread that prepares batches."""
        if "batches" in self.__dict__:
            self.batches.close()

    @cached_property
    def batches(self) -> EpochBatches:
        """The batches of each epoch, encoded when they are first needed."""
        vocabularies = self.source_vocabulary, self.target_vocabulary
        pad_to_multiple = PAD_TO_MULTIPLE if self._use_graphs else 1
        return EpochBatches(self.corpus.train, *vocabularies, self.recipe, pad_to_multiple)

    @property
    def total_updates(self) -> int:
        """The number of updates of the whole training; with BPE-dropout, approximately."""
        return self.recipe.training.epochs * self.batches.per_epoch

    @property
    def parameter_count(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self._parameters)

    def learning_rate(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0."""
        training = self.recipe.training
        return learning_rate(
            update,
            highest=training.learning_rate,
            warmup=training.warmup,
            decay=training.decay,
            updates=self.total_updates,
        )

    def updates(self) -> Iterator[int]:
        """Train to the end of the epoch.

        The loop never waits for the GPU. If it is left early, the next call continues with the next batch. At its end
        the epoch is complete: its figures are in `last_epoch` and its weights enter the average.

        Yields:
            The number of updates so far, after each update.

        Raises:
            RegardError: If the loss of the epoch is not finite.
        """
        epoch = self.batches.epoch(self.epoch)
        for plan in epoch.plans[self.batch :]:
            set_learning_rate(self.optimizer, self.learning_rate(self.update_count))
            self.update(make_batch(self.processes.shard(plan), epoch.sources, epoch.targets))
            self.batch += 1
            self.update_count += 1
            self.token_count += plan.tokens
            yield self.update_count
        self._end_epoch()

    def update(self, batch: Batch) -> None:
        """Make one update on a batch, with the present learning rate."""
        with self._settings():
            if not self._use_graphs:
                self._run_update(*(part.to(self.device, non_blocking=True) for part in batch.tensors()))
                return
            if self._graph_update is None:
                self._graph_update = CudaGraphUpdate(self._run_update, self.optimizer, self.device)
            self._graph_update(batch)

    def _run_update(self, source: Tensor, lengths: Tensor, previous: Tensor, target: Tensor, tokens: Tensor) -> None:
        """Forward, backward, clip, step: a fixed sequence of operations for given shapes, which a CUDA graph can hold.

        tokens: The number of target tokens in the batches of all processes, by which the sum is divided.
        """
        self.optimizer.zero_grad()
        loss = self._loss(source, lengths, previous, target)
        # DistributedDataParallel averages the gradients of the processes; the factor makes it a sum.
        (loss.objective * (self.processes.size / tokens)).backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self.recipe.training.clip)
        self.optimizer.step()
        self._totals.cross_entropy += loss.cross_entropy
        self._totals.tokens += (target != PAD).sum()
        self._totals.norm += norm

    def _loss(self, source: Tensor, lengths: Tensor, previous: Tensor, target: Tensor) -> Loss:
        training = self.recipe.training
        with torch.autocast(self.device.type, torch.bfloat16, enabled=training.precision == "bfloat16"):
            if training.r_drop:
                twice = (torch.cat((part, part)) for part in (source, lengths, previous))
                return r_drop(self._wrapped(*twice), target, training.label_smoothing, training.r_drop)
            return smoothed_cross_entropy(self._wrapped(source, lengths, previous), target, training.label_smoothing)

    def _end_epoch(self) -> None:
        sums = self.processes.gather(self._totals.sums())
        loss, tokens, norm = (sum(parts) for parts in zip(*sums, strict=True))
        mean_loss = loss / max(tokens, 1)
        check_loss(mean_loss, "training")
        self.last_epoch = EpochSummary(mean_loss, norm / max(self.batch, 1) / self.processes.size, int(tokens))
        self.epoch, self.batch = self.epoch + 1, 0
        if self.epoch >= self.recipe.training.average_from:
            self._last_weights.append([parameter.detach().clone() for parameter in self._parameters])
        self._totals.restart()

    def mean_loss(self) -> float:
        """Return the cross entropy per target token since the last call in this epoch; waits for the GPU."""
        loss, tokens, _ = self._totals.read()
        return loss / max(tokens, 1)

    def snapshot(self, averaged: bool = True) -> TrainedModel:
        """Return a copy of the model that can translate; the trainer's own model stays in training mode.

        Args:
            averaged: Take the mean of the weights at the ends of the last epochs, as many as the recipe's `average`
                says; the present weights if no epoch has ended yet.
        """
        model = copy.deepcopy(self.model).eval()
        if averaged and self._last_weights:
            with torch.no_grad():
                for parameter, values in zip(model.parameters(), zip(*self._last_weights, strict=True), strict=True):
                    parameter.copy_(torch.stack(values).mean(0))
        metadata = {
            "recipe": self.recipe.to_dict(),
            "corpus": self.corpus.name,
            "length_penalty": 1.0,
            "target_per_source": self.batches.length_ratio,
        }
        return TrainedModel(model, self.source_vocabulary, self.target_vocabulary, metadata)

    def validate(self, model: TrainedModel | None = None) -> Validation:
        """Translate the validation pairs by greedy search.

        Args:
            model: The model to validate; by default a `snapshot` with averaged weights.

        Raises:
            RegardError: If the loss on the validation pairs is not finite.
        """
        model = self.snapshot() if model is None else model
        with self._settings():
            return validate(model, self.corpus.valid, self.recipe.data.tokenize)

    def best_length_penalty(self, model: TrainedModel) -> float:
        """Return the strength of the length penalty with the highest BLEU on the validation pairs."""
        with self._settings():
            return best_length_penalty(model, self.corpus.valid, self.recipe.data.tokenize)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs to continue with the same bits.

        All processes have to call it; the result holds the random states and sums of all of them.
        """
        return {
            "model": self.model.state_dict(),
            "moments": moments(self.optimizer),
            "average": list(self._last_weights),
            "epoch": self.epoch,
            "batch": self.batch,
            "update": self.update_count,
            "sums": self.processes.gather(self._totals.sums()),
            "random": self.processes.gather(accelerator.get_rng_state(self.device)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`; sets torch's random state."""
        self.model.load_state_dict(state["model"])
        restore_moments(self.optimizer, state["moments"])
        self._last_weights.clear()
        self._last_weights.extend(state["average"])
        self.epoch, self.batch, self.update_count = state["epoch"], state["batch"], state["update"]
        self._totals.restart(tuple(state["sums"][self.processes.rank]))
        self._graph_update = None  # graphs hold the tensors of the optimizer's former state
        accelerator.set_rng_state(self.device, state["random"][self.processes.rank])

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Set the precision of matrix products, and the present device, which graphs, streams and kernels use."""
        with ExitStack() as stack:
            stack.enter_context(matmul_precision(self.recipe.training.precision))
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            yield


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


STATE = "training"  # the subfolder of a model folder with checkpoint, log, lock and pictures
REPORT_SECONDS = 0.5  # between two reports of progress
AGREE_EVERY = 64  # updates after which several processes agree whether to write a checkpoint


def train(
    recipe: Recipe,
    corpus: Corpus,
    out: Path | str,
    *,
    device: torch.device | str = "cpu",
    init: TrainedModel | None = None,
    on_event: Listener | None = None,
    signals: StopSignals | None = None,
) -> TrainingResult:
    """Train a model into a folder; resume if a training of the same recipe and data was interrupted there.

    Args:
        recipe: All choices of the training.
        corpus: The pairs to train and to validate on.
        out: The model folder. Its subfolder `training` holds the checkpoint, the log and the pictures.
        device: Where to train.
        init: A model to start from, for fine-tuning.
        on_event: Called with the events of `regard.translation.monitoring`.
        signals: With `StopSignals()`, SIGINT (Ctrl-C) and SIGTERM take effect after the current update or validation,
            when a checkpoint has been written. Without it, and in several processes, they take effect at once, and the
            training resumes from its last checkpoint.

    Returns:
        The best epoch, its quality on validation, and the history of all epochs.

    Raises:
        RegardError: If the folder belongs to another training or cannot be written, if another process trains in it,
            or if the training diverges.
    """
    device, out = torch.device(device), Path(out)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        processes = Processes.init(device)
        emit = on_event if on_event is not None and processes.is_main else _ignore
        with folder_lock(out / STATE, processes.is_main):
            trainer = run = None
            try:
                fingerprint = run_fingerprint(recipe, corpus, init, processes.size)
                trainer = Trainer(recipe, corpus, device=device, init=init, processes=processes)
                run = _Run(trainer, fingerprint, out, emit, signals if processes.size == 1 else None)
                return run.run()
            finally:
                if trainer is not None:
                    trainer.close()
                trainer = run = None  # their model holds the process group, which closes only when nothing else does
                processes.close()


def _ignore(event: object) -> None:
    """Drop an event."""


class _Run:
    """A training into a folder, from its first update or its last checkpoint to its end."""

    def __init__(
        self,
        trainer: Trainer,
        fingerprint: dict[str, Any],
        out: Path,
        emit: Listener,
        signals: StopSignals | None,
    ) -> None:
        self.trainer, self.fingerprint, self.out, self.emit, self.signals = trainer, fingerprint, out, emit, signals
        self.training, self.processes = trainer.recipe.training, trainer.processes
        total_updates = trainer.total_updates  # refuses pairs that are all too long before anything is written
        self.best, self.seconds = Best(), 0.0
        self.sample: Translation | None = None
        self.saved_at = self.counted_to = time.perf_counter()
        resumed_epoch = self._resume()
        self.log = EpochLog(out / STATE, trainer.epoch) if self.processes.is_main else None
        self.plots = TrainingPlots(out / STATE, emit)
        emit(
            Started(
                updates=total_updates,
                done=trainer.update_count,
                parameters=trainer.parameter_count,
                pairs=len(trainer.batches.pairs),
                skipped=trainer.batches.skipped,
                source_size=len(trainer.source_vocabulary),
                target_size=len(trainer.target_vocabulary),
                resumed_epoch=resumed_epoch,
                seconds=self.seconds,
            )
        )

    def run(self) -> TrainingResult:
        """Train to the end."""
        if self.processes.is_main:
            path = self.out / STATE / "recipe.toml"
            with writing_file(path), open_in_place(path, "w") as file:
                file.write(self.trainer.recipe.to_toml())
        self.counted_to = time.perf_counter()
        with self.signals or nullcontext():
            while self.trainer.epoch < self.training.epochs and not self._is_patience_spent():
                self._run_epoch()
                self._stop_if_asked()
        return self._finish()

    def _is_patience_spent(self) -> bool:
        start = max(self.best.epoch, self.training.validate_from - 1)
        return self.trainer.epoch - start >= self.training.patience

    def _run_epoch(self) -> None:
        """Train for an epoch with checkpoints in between, validate, and keep the model if it is the best so far."""
        trainer, epoch = self.trainer, self.trainer.epoch + 1
        reported_at, reported_tokens = time.perf_counter(), trainer.token_count
        for _ in trainer.updates():
            now = time.perf_counter()
            if self.processes.is_main and now - reported_at > REPORT_SECONDS:
                self._report(epoch, trainer.token_count - reported_tokens, now - reported_at)
                reported_at, reported_tokens = now, trainer.token_count
            self._stop_if_asked()
            if self._is_checkpoint_due():
                self._save()
        self._end_epoch()

    def _report(self, epoch: int, tokens: int, seconds: float) -> None:
        trainer = self.trainer
        self.emit(
            TrainingProgress(
                epoch=epoch,
                update=trainer.update_count,
                updates=trainer.total_updates,
                loss=trainer.mean_loss(),
                speed=tokens / seconds,
                learning_rate=trainer.learning_rate(trainer.update_count - 1),
            )
        )

    def _stop_if_asked(self) -> None:
        """After SIGINT or SIGTERM: write a checkpoint, and let the signal act."""
        if self.signals is not None and self.signals.received is not None:
            self._save()
            self.emit(Stopped(self.trainer.update_count))
            self.signals.act()

    def _is_checkpoint_due(self) -> bool:
        """Decide by the number of updates or by time; all processes get the same answer."""
        update = self.trainer.update_count
        if self.training.save_every and update % self.training.save_every == 0:
            return True
        if self.processes.size > 1 and update % AGREE_EVERY:
            return False
        return self._is_checkpoint_old()

    def _is_checkpoint_old(self) -> bool:
        return self.processes.broadcast(time.perf_counter() - self.saved_at >= self.training.save_seconds)

    def _end_epoch(self) -> None:
        """Validate, write the log, and keep the model if it is the best so far."""
        trainer, summary = self.trainer, cast(EpochSummary, self.trainer.last_epoch)
        entry = EpochEnded(
            epoch=trainer.epoch,
            update=trainer.update_count,
            loss=summary.loss,
            gradient_norm=summary.gradient_norm,
            learning_rate=trainer.learning_rate(max(trainer.update_count - 1, 0)),
            tokens=summary.tokens,
            seconds=0.0,
        )
        is_validated = self.training.validates(entry.epoch)
        if is_validated:
            entry, self.best = self.processes.broadcast(self._validate(entry) if self.processes.is_main else None)
        self._count_seconds()
        entry = replace(entry, seconds=self.seconds)
        if self.log is not None:
            self.log.add(entry)
        if self._is_checkpoint_old():
            self._save()
        self.emit(entry)
        if self.log is not None and self.sample is not None and is_validated:
            self.plots.update(self.log.entries, self.sample)
            self._warn_if_uniform(entry)

    def _validate(self, entry: EpochEnded) -> tuple[EpochEnded, Best]:
        """Complete the entry, and keep the model if it is the best so far."""
        model = self.trainer.snapshot()
        found = self.trainer.validate(model)
        self.sample = found.sample
        this = Best(entry.epoch, found.bleu, found.exact, found.loss)
        is_best = this.beats(self.best)
        if is_best:
            replace(model, metadata=model.metadata | {"validation": asdict(this)}).save(self.out)
        quality = {"bleu": found.bleu, "exact": found.exact, "valid_loss": found.loss, "flatness": found.flatness}
        return replace(entry, **quality, is_best=is_best), this if is_best else self.best

    def _warn_if_uniform(self, entry: EpochEnded) -> None:
        is_late = entry.epoch >= max(3, self.training.epochs // 4)
        if entry.flatness is not None and entry.flatness > UNIFORM and is_late:
            self.emit(
                TrainingWarning(
                    f"After {entry.epoch} epochs attention is still uniform ({entry.flatness:.2f} of the even "
                    "entropy). Try a higher learning rate, less dropout, smaller batches, or more epochs."
                )
            )

    def _finish(self) -> TrainingResult:
        """Choose the length penalty of the model that is kept, and return how good it is."""
        self._save()
        strength, best, device = 1.0, self.best, self.trainer.device
        history = () if self.log is None else tuple(self.log.entries)
        if self.processes.is_main:
            kept = TrainedModel.load(self.out, device)
            strength = self.trainer.best_length_penalty(kept)
            replace(kept, metadata=kept.metadata | {"length_penalty": strength}).save(self.out)
            # The folder may hold a model that was saved after the last checkpoint, before the interruption. Resumed on
            # another machine, the epochs can differ, so read the figures that are stored with that model.
            best = Best.read(kept.metadata.get("validation"))
            if best is None:
                raise RegardError(
                    "out",
                    got=f"{self.out}, with a model that this training did not write",
                    needed="the best model of this training",
                    repair="Choose another folder, or delete this one to begin anew.",
                )
            self.plots.finish(history, sample_translation(kept, self.trainer.corpus.valid), best.epoch)
        best = self.processes.broadcast(best)
        result = TrainingResult(self.trainer.epoch, best.epoch, best.bleu, best.exact, strength, self.seconds, history)
        self.emit(result)
        return result

    def _count_seconds(self) -> None:
        """Add the time since the last call to the time of the training."""
        now = time.perf_counter()
        self.seconds, self.counted_to = self.seconds + now - self.counted_to, now

    def _save(self) -> None:
        """Write a checkpoint; all processes have to call it."""
        self._count_seconds()
        state = {
            "format": checkpoint.FORMAT,
            "fingerprint": self.fingerprint,
            "environment": accelerator.environment(self.trainer.device),
            "trainer": self.trainer.state_dict(),
            "seconds": self.seconds,
            "best": asdict(self.best),
        }
        if self.processes.is_main:
            checkpoint.save(self.out / STATE, state)
        self.saved_at = time.perf_counter()

    def _resume(self) -> int | None:
        """Continue from the last checkpoint; return its epoch, from 1, or None if there is none."""
        trainer = self.trainer
        state = checkpoint.load(self.out / STATE, trainer.device)
        if state is None:
            return None
        check_state(state, self.fingerprint, trainer, self.out)
        changed = accelerator.describe_changes(state["environment"], accelerator.environment(trainer.device))
        if changed:
            text = f"The result will not be bit-identical to an uninterrupted training: {changed}."
            self.emit(TrainingWarning(text))
        trainer.load_state_dict(state["trainer"])
        self.seconds, self.best = state["seconds"], Best(**state["best"])
        return trainer.epoch + 1
