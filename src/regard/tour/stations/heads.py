"""Station 8: heads that must do different things: four looks at a handwritten digit (eq. 14)."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import plots
from regard.errors import RegardError
from regard.layers import MultiHeadAttention
from regard.plots.look import COLOURS, WEIGHTS
from regard.tour.budget import Budget
from regard.tour.charts import Bar, Bars
from regard.tour.shares import Share
from regard.tour.station import Station, Table, Tell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS, VALUE_DIM, HEAD_DIM, DIM, CLASSES = 4, 3, 16, 32, 10
SIDE, PIXELS, AROUND = 8, 64, 3
TESTED, BATCH, RATE, SEED = 600, 128, 1e-2, 1


class Reader(nn.Module):
    """One learnt query asks all 64 pixels, and what the heads bring back is read as a digit by a linear map.

    A pixel's key is its place and the ink in and around it; its value is its row, its column and its ink. So a head
    can say where one thing is and how dark it is there, and nothing else: several must look for different things.
    """

    def __init__(self, heads: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.place = nn.Parameter(torch.randn(PIXELS, DIM) / 2)
        self.ink = nn.Parameter(torch.randn(AROUND**2, DIM))
        self.query = nn.Parameter(torch.randn(1, DIM))
        sizes = {"head_dim": HEAD_DIM, "value_dim": VALUE_DIM, "value_head_dim": VALUE_DIM, "output_dim": CLASSES}
        self.layer = MultiHeadAttention(DIM, heads, "additive", **sizes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 64) -> (batch, classes)."""
        return self.layer(*self._asked(images))[:, 0]

    def weights(self, images: Tensor) -> Tensor:
        """(batch, 64) -> (batch, heads, 64)."""
        return self.layer.inspect(*self._asked(images)).weights()[:, :, 0]

    def _asked(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        around = functional.unfold(images.reshape(-1, 1, SIDE, SIDE), AROUND, padding=AROUND // 2).mT
        value = torch.cat([_places().expand(len(images), -1, -1), images[..., None]], -1)
        return self.query.expand(len(images), 1, -1), self.place + around @ self.ink, value


def _places() -> Tensor:
    """(64, 2): row and column of every pixel, from -1 to 1."""
    along = torch.linspace(-1, 1, SIDE)
    return torch.cartesian_prod(along, along)


class Heads(NamedTuple):
    """What was measured on unseen digits.

    accuracy: for each set of heads that are off, as a word such as "" or "02". one_head: of a layer trained with one
    head. images: (10, 64), a digit of each class; weights: (10, heads, 64); said: what is read in each of them, for
    each set. recall: the share of each class that is read, for each set. trained: on how many images.
    """

    accuracy: dict[str, Share]
    one_head: Share
    images: list[list[float]]
    weights: list[list[list[float]]]
    said: dict[str, list[int]]
    recall: dict[str, list[float]]
    trained: int


def work(budget: Budget, tell: Tell) -> Heads:
    """Train four heads, and one; switch off every set of the four."""
    images, digits = load()
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(images), generator=generator)
    tests, trains = order[:TESTED], order[TESTED:]
    parts = (images[trains], digits[trains], budget.head_updates)
    reader = learn(HEADS, *parts, lambda share, words: tell(0.7 * share, words))
    alone = learn(1, *parts, lambda share, words: tell(0.7 + 0.3 * share, words))
    shown = torch.stack([tests[(digits[tests] == digit).nonzero()[0, 0]] for digit in range(CLASSES)])
    accuracy, said, recall = {}, {}, {}
    for off in (set_ for size in range(HEADS + 1) for set_ in combinations(range(HEADS), size)):
        name = "".join(map(str, off))
        read = _read(reader, images[tests], off)
        accuracy[name] = _share(read, digits[tests])
        said[name] = _read(reader, images[shown], off).tolist()
        recall[name] = [float((read == digit)[digits[tests] == digit].double().mean()) for digit in range(CLASSES)]
    with torch.no_grad():
        weights = reader.weights(images[shown]).tolist()
        one_head = _share(alone(images[tests]).argmax(-1), digits[tests])
    return Heads(accuracy, one_head, images[shown].tolist(), weights, said, recall, len(trains))


def load() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, which come with it: images (1797, 64) from 0 to 1, and what they show."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise RegardError(
            "tour",
            got="no module named sklearn",
            needed="scikit-learn, which brings the digits",
            repair='Install it with pip install "regard[regression]".',
        ) from None
    images, digits = cast(tuple[np.ndarray, np.ndarray], load_digits(return_X_y=True))
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)


def learn(heads: int, images: Tensor, digits: Tensor, updates: int, tell: Tell) -> Reader:
    """Train a reader by Adam, its rate falling to 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        reader = Reader(heads)
        optimiser = torch.optim.Adam(reader.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
        for update in range(1, updates + 1):
            rows = torch.randint(len(images), (BATCH,))
            loss = functional.cross_entropy(reader(images[rows]), digits[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            if update % 50 == 0:
                tell(
                    update / updates,
                    f"{heads} head{'s' * (heads > 1)}, update {update} of {updates}, loss {float(loss.detach()):.2f}",
                )
    return reader.eval()


def present(heads: Heads) -> Station:
    """Accuracies of every set of heads, maps of every digit."""
    whole = heads.accuracy[""]
    facts = {
        "whole": whole.text(),
        "one": heads.one_head.text(),
        "n": str(whole.count),
        "trained": f"{heads.trained:,}",
    }
    header = ("heads off", "accuracy", "low", "high", "n", *(f"recall of {digit}" for digit in range(CLASSES)))
    rows = [(off or "none", *share.row(), *heads.recall[off]) for off, share in heads.accuracy.items()]
    rounded = [[[round(weight, 4) for weight in head] for head in image] for image in heads.weights]
    return Station(
        "heads",
        "Heads that do different things",
        facts=facts,
        data={
            "accuracy": {off: share.row() for off, share in heads.accuracy.items()},
            "images": heads.images,
            "weights": rounded,
            "said": heads.said,
        },
        charts={"worth": _chart(heads)},
        tables=(Table("heads", header, rows),),
        figures={"heads": _draw(heads)},
        beats=("digit=3&off0=0&off1=0&off2=0&off3=0", *(f"off{head}=1" for head in range(2)), "off0=0&off1=0&digit=8"),
    )


def _chart(heads: Heads) -> Bars:
    """All heads, each one off, and a layer trained with one head."""
    shares = {"all four heads": (heads.accuracy[""], "c0")}
    shares |= {f"without head {head + 1}": (heads.accuracy[str(head)], "c5") for head in range(HEADS)}
    shares["trained with one"] = (heads.one_head, "c4")
    bars = [
        Bar(name, one.share, *one.interval, f"{100 * one.share:.1f}%", kind) for name, (one, kind) in shares.items()
    ]
    return Bars(bars, 1.0)


def _read(reader: Reader, images: Tensor, off: tuple[int, ...]) -> Tensor:
    reader.layer.switch_on()
    if off:
        reader.layer.switch_off(list(off))
    with torch.no_grad():
        read = reader(images).argmax(-1)
    reader.layer.switch_on()
    return read


def _share(read: Tensor, digits: Tensor) -> Share:
    return Share(int((read == digits).sum()), len(digits))


def _draw(heads: Heads) -> Figure:
    """Left to right: a digit, where each head looks in it, and what the loss of each head costs."""
    figure, panels = plots.canvas(7.2, 2.0, panels=HEADS + 2)
    digit = 3
    with plots.house_style():
        panels[0].imshow(np.reshape(heads.images[digit], (SIDE, SIDE)), cmap="Greys", interpolation="none")
        panels[0].set_title("a digit")
        for head, ax in enumerate(panels[1:-1]):
            map_ = np.reshape(heads.weights[digit][head], (SIDE, SIDE))
            image = ax.imshow(map_, cmap=WEIGHTS, vmin=0, vmax=1, interpolation="none")
            ax.set_title(f"head {head + 1}")
        scale = figure.colorbar(image, ax=panels[1:-1], location="bottom", label="weight", fraction=0.06, pad=0.02)
        scale.outline.set_visible(False)
        for ax in panels[:-1]:
            ax.set(xticks=[], yticks=[])
        lost = [heads.accuracy[""].share - heads.accuracy[str(head)].share for head in range(HEADS)]
        panels[-1].barh(range(1, HEADS + 1), [100 * part for part in lost], color=COLOURS[1])
        panels[-1].set(xlabel="points lost", yticks=range(1, HEADS + 1), title="without head")
        panels[-1].invert_yaxis()
    return figure
