"""Every number in the prose of the tour, computed again: in NumPy, from the kept files, or by a second training."""

import json
import math
from importlib.resources import files
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from scipy.stats import t
from statsmodels.stats.proportion import proportion_confint

from regard.experiments.variants import EVERY
from regard.regression.experiment import data, leave_one_out
from regard.tour import QUICK, results
from regard.tour.stations import bottleneck, errata, heads, learning
from regard.tour.trainings.watched import train
from regard.translation.corpora import dates
from regard.translation.dataset import Corpus
from regard.translation.recipe import preset
from regard.translation.training import Trainer

CPU = torch.device("cpu")


def in_percent(hits, count):
    """A share in percent with Wilson's interval by statsmodels."""
    low, high = proportion_confint(hits, count, alpha=0.05, method="wilson")
    return f"{100 * hits / count:.1f}% ({100 * low:.1f} to {100 * high:.1f}, n = {count:,})"


def over_seeds(numbers):
    """Percent with half of Student's interval, by SciPy."""
    half = t.ppf(0.975, len(numbers) - 1) * stdev(numbers) / math.sqrt(len(numbers))
    return f"{100 * fmean(numbers):.1f} ± {100 * half:.1f}"


def rounding(number):
    """A rounding error: another order of operations changes its digits, but not its order of magnitude."""
    return pytest.approx(number, abs=9 * number)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# --- one function for each station: what its facts must be ---------------------------------------------------------


def query(station):
    (x1, _, weight1), (x2, _, weight2) = station.tables[0].rows[30:32]
    # The logarithm of two Gaussian weights differs by the difference of the squared distances over 2 h^2.
    squares = (x2 - 1.5) ** 2 - (x1 - 1.5) ** 2
    return {"width": f"{math.sqrt(squares / (2 * math.log(weight1 / weight2))):g}", "samples": "100"}


def width(station):
    places = data.places().numpy()
    truth = 2 * np.sin(places) + places
    one, own, loo = ({kernel: [] for kernel in KERNEL_OF} for _ in range(3))
    for seed in range(QUICK.draws):
        x, y = (numbers.numpy() for numbers in data.samples(seed=seed))
        for kernel in KERNEL_OF:
            widths = leave_one_out.grid(kernel).tolist()
            best = min(widths, key=lambda h, kernel=kernel, x=x, y=y: left_out_error(kernel, x, y, h))
            loo[kernel].append(best)
            for errors, h in ((one, 1.0), (own, best)):
                errors[kernel].append(np.mean((smooth(kernel, places, x, y, h) - truth) ** 2))
    factors = [max(map(fmean, errors.values())) / min(map(fmean, errors.values())) for errors in (one, own)]
    return {
        "loo": f"{loo['gaussian'][0]:.2f}",
        "best": f"{math.log10(loo['gaussian'][0]):.3f}",
        "draws": str(QUICK.draws),
        "factor.one": f"{factors[0]:.1f}",
        "factor.own": f"{factors[1]:.2f}",
        "low": f"{math.log10(0.02):.3f}",
        "high": f"{math.log10(5):.3f}",
    }


KERNEL_OF = {
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "laplacian": lambda u: np.exp(-u),
    "boxcar": lambda u: (u <= 1) * 1.0,
    "triangular": lambda u: np.maximum(1 - u, 0),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
    "tricube": lambda u: np.maximum(1 - u**3, 0) ** 3,
    "biweight": lambda u: np.maximum(1 - u**2, 0) ** 2,
    "cosine_kernel": lambda u: np.cos(np.pi / 2 * np.minimum(u, 1)),
}


def smooth(kernel, places, x, y, h):
    """Eq. 4; where no sample has a weight, the mean of y."""
    weights = KERNEL_OF[kernel](np.abs(places[:, None] - x) / h)
    total = weights.sum(1)
    return np.where(total > 0, weights @ y / np.where(total > 0, total, 1), y.mean())


def left_out_error(kernel, x, y, h):
    predicted = [smooth(kernel, x[i : i + 1], np.delete(x, i), np.delete(y, i), h)[0] for i in range(len(x))]
    return np.mean((np.array(predicted) - y) ** 2)


def norms(station):
    random = np.random.default_rng(3)
    query, key = (random.normal(size=(count, 8)) for count in (64, 100))
    query, key = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, key))
    distances = ((query[:, None] - key) ** 2).sum(-1)
    exact = np.abs(softmax(-distances) - softmax(2 * query @ key.T - (key**2).sum(1))).max()
    radii = {f"{math.hypot(*token):g}" for token in station.data["queries"] + station.data["keys"]}
    sizes = {name: str(len(station.data[name])) for name in ("keys", "queries")}
    return {"exact": rounding(exact), "radius": radii.pop(), **sizes}


def saturation(station):
    generator = torch.Generator().manual_seed(0)
    for dim in 2 ** np.arange(1, 11):
        shapes = (8, 256, dim), (8, 64, dim), (8, 64, 1)
        query, key, value = (torch.randn(*shape, generator=generator, dtype=torch.float64).numpy() for shape in shapes)
    assert dim == 1024
    vanished = {}
    for name, scale in (("vanished", 1.0), ("kept", dim**-0.5)):
        weights = softmax(scale * query @ key.swapaxes(1, 2))
        gradients = weights * (value.swapaxes(1, 2) - weights @ value)
        vanished[name] = f"{100 * np.mean(np.linalg.norm(gradients, axis=-1) < 1e-3):.0f}"
    return {"queries": f"{8 * 256:,}", "keys": "64", **vanished}


def scores(station):
    kept = json.loads(files(results).joinpath("lab-comparison.json").read_text(encoding="utf-8"))["trials"]
    trials = {}
    for trial in kept:
        trials.setdefault(trial["model"], []).append(trial)
    facts = {
        "seeds": str(len({trial["seed"] for trial in kept})),
        "lists": f"{sum(group['count'] for group in kept[0]['by_length']):,}",
        "rule_seeds": str(QUICK.seeds),
        "none": over_seeds([trial["exact"] for trial in trials["no attention"]]),
        "sizes": "batch 16, queries 64, keys 64, query size 128, key size 256",
        "threads": "1 thread",
    }
    # Queries of size 128, keys of size 256, and 128 hidden units or all four heads together.
    parameters = dict.fromkeys(("dot", "scaled-dot", "bilinear", "squared-distance"), 128 * 256)
    parameters["additive"] = 128 * 128 + 256 * 128 + 128
    # Four heads: projections of queries, keys and values with biases, 4 heads of 32 hidden units, the output's map.
    parameters["additive-4-heads"] = (128 + 2 * 256) * 128 + 3 * 128 + 4 * 32 + 128 * 256 + 256
    measured = {row[0]: row for row in station.tables[0].rows}
    for one in EVERY[1:]:
        _, _, speed, size, *_ = measured[str(one)]
        facts |= {
            f"{one.folder}.parameters": f"{parameters[one.folder]:,}",
            f"{one.folder}.speed": f"{speed / 1000:,.0f}",
            f"{one.folder}.memory": f"{size / 2**20:.1f}",
            f"{one.folder}.exact": over_seeds([trial["exact"] for trial in trials[str(one)]]),
        }
    return facts


def bottleneck_(station):
    rows, made = station.tables[0].rows, bottleneck.corpus(QUICK)
    kept = json.loads(files(results).joinpath("lab-state-size.json").read_text(encoding="utf-8"))["trials"]
    facts = {
        "each": str(len(rows) // 12),
        "pairs": str(QUICK.lists),
        "seeds": str(len({trial["seed"] for trial in kept})),
        "kept": str(kept[-1]["by_length"][-1]["count"]),
    }
    for place, way in ((2, "none"), (3, "additive")):
        trainer = Trainer(preset("lists").with_flags({"attention": way}), made)
        facts[way] = in_percent(sum(row[place] == row[1] for row in rows), len(rows))
        facts[f"{way}.parameters"] = f"{trainer.parameter_count:,}"
    return facts


def learning_(station):
    """Train again, look once at the end, and find the weights on the right letters here."""
    tests = {
        locale: dates(locales=(locale,), train=1, valid=1, test=QUICK.judged_dates).test for locale in learning.SHOWN
    }
    unseen = {"1987-09-21", *(example.target for part in tests.values() for example in part)}
    made = dates(locales=learning.LOCALES, train=QUICK.dates, valid=1, test=1)
    pairs = tuple(example for example in made.train if example.target not in unseen)
    looked = []
    recipe = preset("dates").with_flags({"epochs": QUICK.dates_epochs})
    arguments = (lambda *_: None, lambda *look: looked.append(look), lambda updates: {updates})
    train(recipe, Corpus("dates", pairs, made.valid), *arguments)
    ((updates, translator),) = looked
    facts = {
        "pairs": str(len(pairs)),
        "updates": str(updates),
        "last": str(len(station.data["updates"]) - 1),
        "tests": str(QUICK.judged_dates),
        "languages": "12",
    }
    for locale, examples in tests.items():
        sources, targets = [example.source for example in examples], [example.target for example in examples]
        read = translator.force(sources, targets)
        masses = [mass_on_the_right_letters(one.weights, example) for one, example in zip(read, examples, strict=True)]
        half = 1.959964 * stdev(masses) / math.sqrt(len(masses))
        facts[f"{locale}.mass"] = f"{100 * fmean(masses):.0f}% ± {100 * half:.0f}"
        said = [one.text for one in translator.translate(sources, beams=1, longest=12)]
        facts[f"{locale}.exact"] = in_percent(sum(map(str.__eq__, said, targets)), len(targets))
    return facts


def mass_on_the_right_letters(weights, example):
    """The mean over the letters of the target that a span explains."""
    rows = [
        sum(float(weights[letter, start:stop].sum()) for start, stop in span.source)
        for span in example.spans
        for letter in range(*span.target)
    ]
    return fmean(rows)


def heads_(station):
    """Train both readers again and count here."""
    images, digits = heads.load()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(1))
    tests, trains = order[:600], order[600:]
    facts = {"n": "600", "trained": "1,197"}
    for name, count in (("whole", 4), ("one", 1)):
        reader = heads.learn(count, images[trains], digits[trains], QUICK.head_updates, lambda *_: None)
        with torch.no_grad():
            read = reader(images[tests]).numpy().argmax(1)
        facts[name] = in_percent(int((read == digits[tests].numpy()).sum()), 600)
    return facts


def speed(station):
    machines = [results.read(name)["machine"] for name in ("additive", "additive-cuda", "memory")]
    words = dict.fromkeys(f"{machine['processor']}, torch {machine['torch']}" for machine in machines)
    points = np.linspace(-8, 8, 401)
    product = np.exp(2 * points[:, None]) * np.exp(2 * points)
    identity = np.abs(np.tanh(points[:, None] + points) - (product - 1) / (product + 1)).max()
    return {"machines": "; ".join(words), "identity": rounding(identity)} | {
        f"rank.{reach}": str(rank_for_a_thousandth(reach)) for reach in (2, 4, 6, 8)
    }


def rank_for_a_thousandth(reach):
    """How many products the best sum in the mean square needs for an error below 0.001 on Chebyshev points."""
    points = reach * np.cos(np.pi * (np.arange(128) + 0.5) / 128)
    table = np.tanh(points[:, None] + points)
    left, values, right = np.linalg.svd(table)
    return next(r for r in range(128) if np.abs(table - left[:, :r] * values[:r] @ right[:r]).max() < 1e-3)


def errata_(station):
    q, k = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    distance = -((q - k) ** 2).sum()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        query, key = torch.randn(1, 64).numpy(), torch.randn(16, 64).numpy()
    entropies = []
    for scale in (8, 1 / 8):
        weights = softmax(scale * (query @ key.T).astype(float))
        entropies.append(round(float(-(weights * np.log(np.maximum(weights, 1e-300))).sum()), 3))
    found = {
        "a": str([float(x) for x in (distance, q @ q - k @ k + 2 * q @ k, -(q @ q) - k @ k + 2 * q @ k)]),
        "b": str(entropies),
        "c": str([1 - 0.5, 1 - 0.5**2]),
        "d": "(2, 3)",
        "e": "1.0",
        "f": "[1.0], (12, 12)",
        "g": "1.0",
        "h": str(2.0 * 0.0 + -1.0 * 1.0),
        "i": "(2, 5)",
    }
    return {f"{letter}.line": line for letter, line in errata.LINES.items()} | {
        f"{letter}.result": result for letter, result in found.items()
    }


FACTS = {
    "query": query,
    "width": width,
    "norms": norms,
    "saturation": saturation,
    "scores": scores,
    "bottleneck": bottleneck_,
    "learning": learning_,
    "heads": heads_,
    "speed": speed,
    "errata": errata_,
}


@pytest.mark.parametrize("slug", FACTS)
def test_every_number_in_the_prose_is_what_a_second_computation_finds(stations, slug):
    facts, expected = stations[slug].facts, FACTS[slug](stations[slug])
    assert facts.keys() == expected.keys()
    wrong = {
        name: (facts[name], right)
        for name, right in expected.items()
        if (facts[name] if isinstance(right, str) else float(facts[name])) != right
    }
    assert wrong == {}


def test_every_station_has_its_facts_computed_again(stations):
    assert FACTS.keys() == stations.keys()
