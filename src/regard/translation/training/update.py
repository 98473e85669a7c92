"""One update of the weights, in eager mode: what every faster way must equal."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.translation.batching import Batch
from regard.translation.recipe import Training
from regard.translation.training.loss import Loss, r_drop, smoothed_cross_entropy
from regard.translation.vocabulary import PAD

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


def tensors_of(batch: Batch) -> tuple[Tensor, ...]:
    """What `Update.run` takes of a batch."""
    return (*batch[:4], torch.tensor(float(batch.tokens)))
