"""The formulas of the chapter in NumPy float64 loops, one pair at a time; imports nothing of regard.

It judges the reference backend. Written to be checked by eye against the equations, not to be fast.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

# --- Scores of one pair: q (query_dim,), k (key_dim,) -> float ------------------------------------------------


def dot(q, k):
    """q'k (eq. 7 without its factor 2)."""
    return math.fsum(a * b for a, b in zip(q, k, strict=True))


def scaled_dot(q, k):
    """q'k / sqrt(D) (eq. 8)."""
    return dot(q, k) / math.sqrt(len(q))


def cosine(q, k):
    """q'k / (|q| |k|); a zero vector has cosine 0 with everything."""
    norms = math.sqrt(dot(q, q)) * math.sqrt(dot(k, k))
    return dot(q, k) / norms if norms else 0.0


def bilinear(q, k, matrix, scale=None):
    """q'Mk / sqrt(D_k) (eq. 10)."""
    product = math.fsum(q[i] * matrix[i][j] * k[j] for i in range(len(q)) for j in range(len(k)))
    return product * (1 / math.sqrt(len(k)) if scale is None else scale)


def additive(q, k, query_weight, key_weight, weight):
    """w' tanh(Wq q + Wk k) (eq. 12)."""
    hidden = range(len(weight))
    return math.fsum(weight[h] * math.tanh(dot(query_weight[h], q) + dot(key_weight[h], k)) for h in hidden)


def squared_distance(q, k):
    """-|q - k|^2 (eq. 6, with its sign corrected)."""
    return -math.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True))


def softcap(score, cap):
    """A score bent smoothly into (-cap, cap)."""
    return cap * math.tanh(score / cap)


# --- Kernels f(d) at a distance d >= 0 measured in bandwidths (eq. 5 and its corrections) ----------------------

KERNELS: dict[str, Callable[[float], float]] = {
    "gaussian": lambda d: math.exp(-(d**2) / 2),
    "laplacian": lambda d: math.exp(-d),
    "boxcar": lambda d: 1.0 if d <= 1 else 0.0,
    "triangular": lambda d: max(0.0, 1 - d),
    "epanechnikov": lambda d: max(0.0, 1 - d**2),
    "tricube": lambda d: max(0.0, 1 - d**3) ** 3,
    "biweight": lambda d: max(0.0, 1 - d**2) ** 2,
    "cosine_kernel": lambda d: math.cos(math.pi * d / 2) if d < 1 else 0.0,
}


def distance(q, k, bandwidth=1.0):
    """|(q - k) / bandwidth|, the bandwidth one number or one per dimension."""
    widths = np.broadcast_to(np.asarray(bandwidth, dtype=float), (len(q),))
    return math.sqrt(math.fsum(((a - b) / h) ** 2 for a, b, h in zip(q, k, widths, strict=True)))


def log_kernel(name, q, k, bandwidth=1.0):
    """log f(|q - k| / bandwidth), minus infinity outside the support: the score that makes eq. 4 of eq. 3."""
    mass = KERNELS[name](distance(q, k, bandwidth))
    return math.log(mass) if mass > 0 else -math.inf


def rotate(token, position, base=10_000.0):
    """Entries i and i + D/2 turned as a plane by position * base^(-2i/D)."""
    half = len(token) // 2
    turned = np.array(token, dtype=float)
    for i in range(half):
        angle = position * base ** (-2 * i / len(token))
        left, right = token[i], token[i + half]
        turned[i] = left * math.cos(angle) - right * math.sin(angle)
        turned[i + half] = right * math.cos(angle) + left * math.sin(angle)
    return turned


PLAIN = {"dot": dot, "scaled_dot": scaled_dot, "cosine": cosine, "squared_distance": squared_distance}


def named(name, bandwidth=1.0):
    """The score of that name as a function of one pair."""
    return PLAIN[name] if name in PLAIN else lambda q, k: log_kernel(name, q, k, bandwidth)


# --- Pooling ---------------------------------------------------------------------------------------------------


class Pooled(NamedTuple):
    """Everything that attention can be asked for, of one batch element or of all of them."""

    output: np.ndarray
    log_mass: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    entropy: np.ndarray
    key_mass: np.ndarray


def pool(score, query, key, value, allowed=None, bias=None, sink=None) -> Pooled:
    """sum_j softmax_j(score(q, k_j) + bias) v_j over the allowed keys (eq. 1 to 3), one batch element.

    query: (queries, query_dim), key: (keys, key_dim), value: (keys, value_dim); allowed, bias: (queries, keys).
    sink: the logit of a key that everybody sees and whose value is 0.
    """
    queries, keys = len(query), len(key)
    scores = np.full((queries, keys), -math.inf)
    weights = np.zeros((queries, keys))
    log_mass = np.full(queries, -math.inf)
    output = np.zeros((queries, value.shape[-1]))
    for i in range(queries):
        for j in range(keys):
            if allowed is None or allowed[i, j]:
                scores[i, j] = score(query[i], key[j]) + (0.0 if bias is None else bias[i, j])
        logits = [*scores[i], *([] if sink is None else [sink])]
        peak = max(logits, default=-math.inf)
        if peak == -math.inf:
            continue
        mass = math.fsum(math.exp(s - peak) for s in logits)
        log_mass[i] = peak + math.log(mass)
        for j in range(keys):
            weights[i, j] = math.exp(scores[i, j] - peak) / mass
        for d in range(value.shape[-1]):
            output[i, d] = math.fsum(weights[i, j] * value[j, d] for j in range(keys))
    entropy = np.array([-math.fsum(p * math.log(p) for p in row if p > 0) for row in weights])
    key_mass = np.array([math.fsum(weights[:, j]) for j in range(keys)])
    return Pooled(output, log_mass, scores, weights, entropy, key_mass)


def pool_batch(score, query, key, value, allowed=None, bias=None, sink=None) -> Pooled:
    """`pool` for every batch element; axes of size 1 are shared. sink: one logit per entry of the last batch axis.

    score: a function of one pair, or a sequence of them, one per entry of the last batch axis (heads).
    """
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    pairs = (query.shape[-2], key.shape[-2])

    def spread(array, sizes=None):
        return None if array is None else np.broadcast_to(array, (*batch, *(sizes or array.shape[-2:])))

    inputs = [spread(query), spread(key), spread(value), spread(allowed, pairs), spread(bias, pairs)]
    results = []
    for at in np.ndindex(*batch):
        one = score[at[-1]] if isinstance(score, Sequence) else score
        parts = (None if x is None else x[at] for x in inputs)
        results.append(pool(one, *parts, sink=None if sink is None else sink[at[-1]]))
    columns = zip(*results, strict=True)
    return Pooled(*(np.reshape(np.stack(column), (*batch, *column[0].shape)) for column in columns))


def nadaraya_watson(name, query, key, value, bandwidth=1.0):
    """sum_i f(x, x_i) y_i / sum_i f(x, x_i) (eq. 4), written as the fraction; 0 where no kernel reaches."""
    output = np.zeros((len(query), value.shape[-1]))
    for i, q in enumerate(query):
        mass = [KERNELS[name](distance(q, k, bandwidth)) for k in key]
        if total := math.fsum(mass):
            output[i] = [math.fsum(m * y for m, y in zip(mass, column, strict=True)) / total for column in value.T]
    return output


def causal(queries, keys, offset=0):
    """Query i sees key j where j <= i + offset."""
    return np.array([[j <= i + offset for j in range(keys)] for i in range(queries)], dtype=bool)


# --- Gradients -------------------------------------------------------------------------------------------------


def central_difference(function, arrays, step=1e-6):
    """The gradient of a number in every entry of every array, by central differences; error about step^2."""
    gradients = []
    for array in arrays:
        gradient = np.zeros(array.shape)
        for at in np.ndindex(*array.shape):
            kept = array[at]
            array[at] = kept + step
            above = function()
            array[at] = kept - step
            below = function()
            array[at] = kept
            gradient[at] = (above - below) / (2 * step)
        gradients.append(gradient)
    return gradients


def softmax_gradient(weights, value, output, grad_output, grad_log_mass):
    """dS = P (dO'v - dO'o + dlog_mass), the gradient of every score; one batch element."""
    gradient = np.zeros(weights.shape)
    for i, j in np.ndindex(*weights.shape):
        gradient[i, j] = weights[i, j] * (dot(grad_output[i], value[j] - output[i]) + grad_log_mass[i])
    return gradient
