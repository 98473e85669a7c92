"""Where the decoder's context comes from: attention over the annotations (eq. 13), or one fixed vector."""

import torch
from torch import Tensor, nn

from regard.layers import Attention, MultiHeadAttention
from regard.layers.memory import Memory
from regard.masks import Mask
from regard.scores import Additive, Bilinear
from regard.translation.model.architecture import Architecture


class Attending(nn.Module):
    """c_i = sum_j alpha_ij h_j, alpha_i = softmax_j score(s_{i-1}, h_j) (eq. 13; arXiv 1409.0473, eq. 5 and 6).

    One head pools the annotations themselves; several are a multi-head layer over the same score. A score without
    matrices of its own compares query and key as they are, so the keys are first brought to the query's width.
    """

    def __init__(self, architecture: Architecture) -> None:
        """Make the attention of that name; `width` is the context's."""
        super().__init__()
        hidden, annotation = architecture.hidden, 2 * architecture.hidden
        name, self.heads = architecture.attention, architecture.heads
        self.to_key = nn.Identity()
        if self.heads > 1:
            self.attention = MultiHeadAttention(hidden, self.heads, name, key_dim=annotation, output_dim=annotation)
        elif name == "additive":
            self.attention = Attention(Additive(hidden, annotation, architecture.attention_dim or hidden))
        elif name == "bilinear":
            self.attention = Attention(Bilinear(hidden, annotation))
        else:
            self.attention = Attention(name)
            self.to_key = nn.Linear(annotation, hidden, bias=False)
        self.width = annotation
        self.is_additive = name == "additive" and self.heads == 1

    def remember(self, annotations: Tensor, real: Tensor) -> Memory:
        """Project the keys, once for the sentence.

        annotations: (batch, source, 2 hidden); real: bool (batch, source), False at padding.
        """
        return self.attention.remember(self.to_key(annotations), annotations, Mask.keys(real))

    def read(self, query: Tensor, memory: Memory) -> Tensor:
        """(batch, queries, hidden) -> the contexts, (batch, queries, width)."""
        return self.attention.recall(query, memory)

    def weights(self, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """The contexts, and the alignment (batch, queries, source): the mean over heads."""
        context, weights = self.attention.recall_with_weights(query, memory)
        return context, weights.mean(1) if self.heads > 1 else weights


class Fixed(nn.Module):
    """The encoder-decoder without attention: the last state of each direction is all that the decoder ever gets."""

    def __init__(self, architecture: Architecture) -> None:
        """There is nothing to learn."""
        super().__init__()
        self.width = 2 * architecture.hidden

    def remember(self, annotations: Tensor, real: Tensor) -> "Vector":
        """The state after the last word of the forward direction, after the first of the backward one."""
        hidden = annotations.shape[-1] // 2
        last = (real.sum(-1) - 1).clamp(min=0)
        onward = annotations[torch.arange(len(last), device=last.device), last, :hidden]
        return Vector(torch.cat((onward, annotations[:, 0, hidden:]), -1)[:, None])

    def read(self, query: Tensor, memory: "Vector") -> Tensor:
        """The same vector for every query."""
        return memory.value.expand(-1, query.shape[1], -1)

    def weights(self, query: Tensor, memory: "Vector") -> tuple[Tensor, None]:
        """The same vector, and no alignment."""
        return self.read(query, memory), None


class Vector:
    """One vector for each sentence, (batch, 1, width)."""

    def __init__(self, value: Tensor) -> None:
        """Keep it."""
        self.value = value

    def select(self, rows: Tensor) -> "Vector":
        """The vectors of some of the sentences."""
        return Vector(self.value.index_select(0, rows))


def make_context(architecture: Architecture) -> Attending | Fixed:
    """What the architecture names."""
    return Fixed(architecture) if architecture.attention == "none" else Attending(architecture)
