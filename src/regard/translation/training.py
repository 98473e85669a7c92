"""Training: the loss, the learning rate, one update, validation, and the loop of epochs that can resume."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.checks import accumulation_dtype
from regard.errors import RegardError
from regard.translation import accelerator, checkpoint
from regard.translation.accelerator import CudaGraphUpdate, Processes, matmul_precision
from regard.translation.alignment import UNIFORM, normalized_entropy
from regard.translation.batching import Batch, TrainingTokens, make_batch, plan, tensors_of
from regard.translation.checkpoint import (
    StopSignals,
    check_same_run,
    folder_lock,
    open_in_place,
    run_fingerprint,
    writing_file,
)
from regard.translation.dataset import Corpus, Pair, learn_vocabularies
from regard.translation.metrics import effective_bleu, exact_match
from regard.translation.model import EncoderDecoder
from regard.translation.model_folder import TrainedModel
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
from regard.translation.recipe import Recipe, Training
from regard.translation.search import length_penalty
from regard.translation.text import normalise
from regard.translation.translator import Translation, Translator
from regard.translation.vocabulary import PAD, Vocabulary


class Loss(NamedTuple):
    """Sums over the real target tokens of a batch.

    objective: what is lowered. cross_entropy: -log p of the targets, without smoothing, for the log; no gradient.
    """

    objective: Tensor
    cross_entropy: Tensor


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Loss:
    """Cross entropy against (1 - smoothing) of the target plus smoothing spread evenly over the vocabulary.

    logits: (batch, target, vocabulary); targets: int64 (batch, target), PAD where there is none.
    """
    objective, cross_entropy = _Smoothed.apply(
        logits.to(accumulation_dtype(logits.dtype)).flatten(0, 1), targets.flatten(), smoothing
    )
    return Loss(objective, cross_entropy)


class _Smoothed(torch.autograd.Function):
    """The sums over rows of logits (rows, vocabulary), without a copy of them as log-probabilities.

    Its gradient is softmax(logits) minus the smoothed targets: one pass where autograd takes several.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        real = targets != PAD
        log_mass = logits.logsumexp(-1)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1)
        cross_entropy = (log_mass - chosen).masked_fill(~real, 0.0).sum()
        even = (log_mass - logits.mean(-1)).masked_fill(~real, 0.0).sum() if smoothing else cross_entropy
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(cross_entropy)
        return (1 - smoothing) * cross_entropy + smoothing * even, cross_entropy

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
    """Cross entropy of two passes over the same batch, and what their distributions disagree (arXiv 2106.14448).

    logits: (2 batch, target, vocabulary), the second half from the same inputs under another dropout;
    targets: int64 (batch, target). The sums are the means over the two passes, so a weight of 1 is the paper's
    alpha of 2.
    """
    log_p, log_q = functional.log_softmax(logits.to(accumulation_dtype(logits.dtype)), -1).chunk(2)
    first, second = _smoothed(log_p, targets, smoothing), _smoothed(log_q, targets, smoothing)
    # KL(p|q) + KL(q|p) = sum (p - q)(log p - log q)
    disagreement = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    disagreement = disagreement.masked_fill(targets == PAD, 0.0).sum() / 2
    objective = (first.objective + second.objective) / 2 + weight * disagreement
    return Loss(objective, (first.cross_entropy + second.cross_entropy) / 2)


def _smoothed(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Loss:
    real = targets != PAD
    chosen = -log_probabilities.gather(-1, targets[..., None]).squeeze(-1)
    cross_entropy = chosen.masked_fill(~real, 0.0).sum()
    if not smoothing:
        return Loss(cross_entropy, cross_entropy.detach())
    even = -log_probabilities.mean(-1).masked_fill(~real, 0.0).sum()
    return Loss((1 - smoothing) * cross_entropy + smoothing * even, cross_entropy.detach())


def learning_rate(update: int, *, highest: float, warmup: int, decay: str, updates: int) -> float:
    """The rate of update number `update`, counted from 0.

    Args:
        update: which.
        highest: the rate after the warm-up.
        warmup: the rate rises linearly over so many updates.
        decay: what follows: "none", "linear" or "cosine" towards 0 at the last update, "inverse_sqrt".
        updates: how many there are at most.
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
    """On a GPU the learning rate is a tensor: graphs read it, and setting it does not record them anew."""
    parameters = list(model.parameters())
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, weight_decay=training.weight_decay, fused=True, capturable=on_gpu
    )


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next update."""
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


class Average:
    """The last few weights of a model.

    count: how many are kept.
    """

    def __init__(self, count: int) -> None:
        """Nothing is kept yet."""
        self.kept: deque[list[Tensor]] = deque(maxlen=count)

    def add(self, model: nn.Module) -> None:
        """Keep the model's present weights; the oldest go where there are too many."""
        self.kept.append([parameter.detach().clone() for parameter in model.parameters()])

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Within it the model has the mean of the kept weights, and is in evaluation mode; then its own again."""
        parameters = list(model.parameters())
        own = [parameter.detach().clone() for parameter in parameters]
        was_training = model.training
        means = (torch.stack(tensors).mean(0) for tensors in zip(*self.kept, strict=True))
        _assign(parameters, means if self.kept else own)
        model.eval()
        try:
            yield
        finally:
            _assign(parameters, own)
            model.train(was_training)


@torch.no_grad()
def _assign(parameters, values) -> None:
    # In place: optimisers and graphs hold these very tensors.
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


# In nats per token. A model that knows nothing has the logarithm of the size of its vocabulary: about 10.
MAX_LOSS = 1e6


def check_loss(loss: float, pairs: str) -> None:
    """Raise a RegardError if a training has diverged.

    Args:
        loss: cross entropy per token, in nats.
        pairs: "training" or "validation", the pairs on which the loss was measured.
    """
    if not -MAX_LOSS <= loss <= MAX_LOSS:  # also for NaN
        raise RegardError(
            "learning_rate",
            got=f"a loss that is no number or exceeds {MAX_LOSS:g} nats per token on the {pairs} pairs: "
            "the training has diverged",
            needed="a learning rate at which loss and weights stay finite",
            repair="Lower it, for example to a tenth, and train into a new folder.",
        )


Sums = tuple[float, float, float]


@dataclass
class Totals:
    """Sums of the cross entropy, the target tokens and the gradient norms of an epoch's updates.

    They stay on the device, so that no update waits for the host. Reading them does not change them: the sums of an
    epoch do not depend on how often progress is shown.
    """

    cross_entropy: Tensor
    tokens: Tensor
    norm: Tensor
    last_read: Sums = (0.0, 0.0, 0.0)

    @classmethod
    def zeros(cls, device: torch.device) -> "Totals":
        """Nothing summed yet, in float64 where the device has it."""
        dtype = torch.float32 if device.type == "mps" else torch.float64
        cross_entropy, tokens, norm = (torch.zeros((), device=device, dtype=dtype) for _ in range(3))
        return cls(cross_entropy, tokens, norm)

    def sums(self) -> Sums:
        """The sums since `restart`."""
        cross_entropy, tokens, norm = torch.stack((self.cross_entropy, self.tokens, self.norm)).tolist()
        return cross_entropy, tokens, norm

    def read(self) -> Sums:
        """The sums since the last call of this method."""
        before, now = self.last_read, self.sums()
        self.last_read = now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def restart(self, sums: Sums = (0.0, 0.0, 0.0)) -> None:
        """Begin an epoch with sums of 0, or go on from the sums of a checkpoint."""
        for total, value in zip((self.cross_entropy, self.tokens, self.norm), sums, strict=True):
            total.fill_(value)  # in place: a CUDA graph holds these tensors
        self.last_read = sums


class Update:
    """Forward, backward, clip, step.

    model: in training mode; in several processes, wrapped in torch's DistributedDataParallel.
    processes: how many share each batch.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, training: Training, processes: int = 1
    ) -> None:
        """Keep what an update needs."""
        self.model, self.optimiser, self.training, self.processes = model, optimiser, training, processes
        self.parameters = list(model.parameters())
        self.device = self.parameters[0].device
        self.totals = Totals.zeros(self.device)

    def __call__(self, batch: Batch) -> None:
        """Lower the loss of one batch."""
        self.run(*(part.to(self.device, non_blocking=True) for part in tensors_of(batch)))

    def run(self, source: Tensor, lengths: Tensor, previous: Tensor, target: Tensor, tokens: Tensor) -> None:
        """The update itself: a fixed sequence of operations for given shapes, without a wait for the host.

        tokens: (), the number of real target tokens in the batch of all processes, by which the sum is divided.
        """
        self.optimiser.zero_grad()
        loss = self.loss(source, lengths, previous, target)
        # Where several processes share a batch, the mean of their gradients is taken: it becomes their sum again.
        (loss.objective * (self.processes / tokens)).backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.training.clip)
        self.optimiser.step()
        self.totals.cross_entropy += loss.cross_entropy
        self.totals.tokens += (target != PAD).sum()
        self.totals.norm += norm

    def loss(self, source: Tensor, lengths: Tensor, previous: Tensor, target: Tensor) -> Loss:
        """The sums over a batch."""
        training = self.training
        half = training.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            if training.r_drop:
                twice = (torch.cat((part, part)) for part in (source, lengths, previous))
                return r_drop(self.model(*twice), target, training.label_smoothing, training.r_drop)
            return smoothed_cross_entropy(self.model(source, lengths, previous), target, training.label_smoothing)


STRENGTHS = tuple(step / 10 for step in range(0, 21, 2))
LOOKED_AT = 100  # pairs among which one is chosen to be shown
BATCH = {"cpu": 64, "cuda": 512}
TOKENS = 4096  # of a batch whose targets are only scored


@dataclass(frozen=True)
class Validated:
    """BLEU and the share of exact translations, in percent, of greedy search; and one pair to look at.

    loss: the cross entropy of a token of the targets, in nats.
    """

    bleu: float
    exact: float
    loss: float
    flatness: float | None
    shown: Translation


def validate(loaded: TrainedModel, pairs: Sequence[Pair], tokenize: str) -> Validated:
    """Translate the validation pairs greedily."""
    loss = cross_entropy(loaded, pairs)
    check_loss(loss, "validation")  # the weights of the last update, whose loss no training pair has shown
    found = _translate(loaded, pairs, beams=1, nbest=1)
    targets = [normalise(pair.target) for pair in pairs]
    texts = [one.text for one in found]
    flat = [
        normalized_entropy(one.weights) for one in found[:LOOKED_AT] if one.weights is not None and len(one.weights)
    ]
    return Validated(
        bleu=effective_bleu(texts, targets, tokenize),
        exact=100 * exact_match(texts, targets),
        loss=loss,
        flatness=sum(flat) / len(flat) if flat else None,
        shown=show(loaded, pairs),
    )


def show(loaded: TrainedModel, pairs: Sequence[Pair]) -> Translation:
    """One validation pair as the model sees it: the same one and the same words each time, so that pictures compare."""
    longest = max(pairs[:LOOKED_AT], key=lambda pair: len(pair.source))
    return Translator([loaded]).force([longest.source], [longest.target])[0]


def best_length_penalty(loaded: TrainedModel, pairs: Sequence[Pair], tokenize: str, beams: int = 5) -> float:
    """The strength whose ranking of the n best translations has the highest BLEU; the weakest of equals."""
    found = _translate(loaded, pairs, beams=beams, nbest=beams)
    targets = [normalise(pair.target) for pair in pairs]

    def ranked(strength: float) -> list[str]:
        return [_best(one, strength).text for one in found]

    return max(STRENGTHS, key=lambda strength: (effective_bleu(ranked(strength), targets, tokenize), -strength))


@torch.inference_mode()
def cross_entropy(loaded: TrainedModel, pairs: Sequence[Pair]) -> float:
    """-log p of a token of the targets, END included, in nats: the mean over all of them."""
    device = next(loaded.model.parameters()).device
    sources = loaded.source_vocabulary.encode_all([pair.source for pair in pairs])
    targets = loaded.target_vocabulary.encode_all([pair.target for pair in pairs])
    lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    total, tokens = 0.0, 0
    for planned in plan(lengths, TOKENS, torch.Generator().manual_seed(0), 1):
        batch = make_batch(planned, sources, targets)
        logits = loaded.model(*(part.to(device) for part in batch[:3]))
        total += float(smoothed_cross_entropy(logits, batch.target.to(device), 0.0).cross_entropy)
        tokens += batch.tokens
    return total / tokens


def _best(one: Translation, strength: float) -> Translation:
    def rank(candidate: Translation) -> tuple[bool, float]:
        return candidate.finished, candidate.log_probability / length_penalty(candidate.length, strength)

    return max((one, *one.others), key=rank)


def _translate(loaded: TrainedModel, pairs: Sequence[Pair], beams: int, nbest: int) -> list[Translation]:
    device = next(loaded.model.parameters()).device
    translator = Translator([loaded])
    sources = [pair.source for pair in pairs]
    return translator.translate(
        sources, beams=beams, nbest=nbest, length_penalty=1.0, batch_size=BATCH.get(device.type, BATCH["cpu"])
    )


@dataclass
class Best:
    """The epoch whose model is kept; epoch 0 is none."""

    epoch: int = 0
    bleu: float = -1.0
    exact: float = -1.0
    loss: float = math.inf

    @classmethod
    def of(cls, entry: EpochEnded) -> "Best":
        """An epoch that was validated."""
        assert entry.bleu is not None
        assert entry.exact is not None
        assert entry.valid_loss is not None
        return cls(entry.epoch, entry.bleu, entry.exact, entry.valid_loss)

    @classmethod
    def read(cls, values: object) -> "Best | None":
        """Return the epoch described in a checkpoint or model folder, or None if the values have another structure."""
        names = [entry.name for entry in fields(cls)]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            return None
        is_count = type(values["epoch"]) is int and values["epoch"] >= 0
        return cls(**values) if is_count and all(type(values[name]) in (int, float) for name in names[1:]) else None

    def beats(self, other: "Best") -> bool:
        """By BLEU; of equals by exact translations, then by the loss."""
        return (self.bleu, self.exact, -self.loss) > (other.bleu, other.exact, -other.loss)


@dataclass
class Standing:
    """What a checkpoint says beside tensors.

    epoch: how many have ended. within: updates of the present one. count: updates in all. seconds: spent so far.
    """

    epoch: int = 0
    within: int = 0
    count: int = 0
    seconds: float = 0.0
    best: Best = field(default_factory=Best)

    def next_epoch(self) -> None:
        """The present epoch has ended."""
        self.epoch, self.within = self.epoch + 1, 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Standing":
        """What `to_dict` gave."""
        return cls(**values | {"best": Best(**values["best"])})


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
    def begin(cls, recipe: Recipe, corpus: Corpus, init: TrainedModel | None, device: torch.device) -> "Trainee":
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

    def loaded(self) -> TrainedModel:
        """The model as a translator takes it."""
        return TrainedModel(self.model, self.source_vocabulary, self.target_vocabulary, {})

    def keep(self, out: Path, facts: dict[str, Any]) -> None:
        """Write the model folder."""
        TrainedModel(self.model, self.source_vocabulary, self.target_vocabulary, facts).save(out)

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
        restore_moments(self.optimiser, state["moments"])
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


FORMAT = 2


def check_state(
    state: dict[str, Any], identity: dict[str, Any], recipe: Recipe, trainee: Trainee, device: torch.device, out: Path
) -> None:
    """Refuse a state that another version wrote, that is damaged, or that belongs to another training.

    Args:
        state: what the checkpoint in `out` holds.
        identity: of the training that is to resume.
        recipe: of the same training.
        trainee: its model and optimiser, before they take up the state.
        device: where it trains.
        out: the model folder.
    """
    if state.get("format") != FORMAT:
        raise RegardError(
            "out",
            got=f"{out}, with a checkpoint of another version of regard",
            needed=f"a checkpoint of format {FORMAT}",
            repair="Choose another folder, or finish the training with the version of regard that began it.",
        )
    _check(out, "identity", lambda: bool(json.dumps(state["identity"])) and isinstance(state["identity"], dict))
    check_same_run(state["identity"], identity, out)
    processes = identity["processes"]
    parameters = dict(enumerate(trainee.model.parameters()))
    checks: dict[str, Callable[[], bool]] = {
        "machine": lambda: all(isinstance(word, str) for item in state["machine"].items() for word in item),
        "model": lambda: _are_alike(state["trainee"]["model"], trainee.model.state_dict()),
        "moments": lambda: all(
            _are_alike(moments, {"step": torch.tensor(0.0), "exp_avg": parameters[at], "exp_avg_sq": parameters[at]})
            for at, moments in state["trainee"]["moments"].items()
        ),
        "average": lambda: (
            len(state["trainee"]["average"]) <= recipe.training.average
            and all(_are_alike(dict(enumerate(weights)), parameters) for weights in state["trainee"]["average"])
        ),
        "standing": lambda: _is_standing(state["standing"], recipe.training.epochs),
        "sums": lambda: (
            len(state["sums"]) == processes
            and all(len(sums) == 3 and all(type(one) is float for one in sums) for sums in state["sums"])
        ),
        "random": lambda: (
            len(state["random"]) == processes and all(_are_random_states(one, device) for one in state["random"])
        ),
    }
    for name, check in checks.items():
        _check(out, name, check)


def _check(out: Path, name: str, check: Callable[[], bool]) -> None:
    try:
        fits = check()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError):
        fits = False  # any other structure than the one that is looked up
    if not fits:
        raise RegardError(
            "out",
            got=f"{out}, with a checkpoint whose {name!r} is damaged or was written by another program",
            needed="a checkpoint that regard train wrote",
            repair="Choose another folder, or delete this one to begin anew.",
        )


def _are_alike(found: Mapping[Any, object], wanted: Mapping[Any, Tensor]) -> bool:
    """Whether tensors have the names, shapes and dtypes of others."""
    return found.keys() == wanted.keys() and all(
        isinstance(tensor := found[name], Tensor) and tensor.shape == like.shape and tensor.dtype == like.dtype
        for name, like in wanted.items()
    )


def _is_standing(found: dict[str, Any], epochs: int) -> bool:
    counts = [found[name] for name in ("epoch", "within", "count")]
    return (
        found.keys() == {"epoch", "within", "count", "seconds", "best"}
        and all(type(count) is int and 0 <= count < 2**53 for count in counts)
        and found["within"] <= found["count"]
        and found["epoch"] <= epochs
        and type(found["seconds"]) is float
        and 0 <= found["seconds"] < math.inf
        and Best.read(found["best"]) is not None
        and found["best"]["epoch"] <= found["epoch"]
    )


def _are_random_states(found: dict[str, Any], device: torch.device) -> bool:
    torch.Generator().set_state(found["cpu"].cpu())
    if device.type == "cuda" and "cuda" in found:
        torch.Generator(device).set_state(found["cuda"].cpu())
    return True


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
    init: TrainedModel | None = None,
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
        init: TrainedModel | None,
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
            set_learning_rate(self.optimiser, rate)
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
            kept = TrainedModel.load(self.out, self.device)
            strength = best_length_penalty(kept, self.corpus.valid, self.recipe.data.tokenize)
            replace(kept, metadata=kept.metadata | {"length_penalty": strength}).save(self.out)
            # After a resume that was not bit-identical the folder may hold an epoch of the time before.
            best = Best.read(kept.metadata.get("validation"))
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
