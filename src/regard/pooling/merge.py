"""The exact union of poolings over disjoint sets of keys."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.pooling.attended import Attended
from regard.shapes import describe


def merge(parts: Sequence[Attended]) -> Attended:
    """What one pooling over all keys of all parts would have given, from the parts alone.

    Each part has pooled the same queries over its own keys; its share of the whole is exp(log_mass - total). Keys
    of the merged record are numbered part after part.
    """
    parts = _check_parts(parts)
    log_masses = torch.stack([part.log_mass for part in parts])
    # logsumexp that stays differentiable where every part is empty.
    peak = log_masses.detach().amax(0)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    masses = (log_masses - peak).exp()
    total = masses.sum(0)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    shares = (masses / total).unsqueeze(-1)
    outputs = torch.stack([part.output for part in parts])
    output = (outputs.to(shares.dtype) * shares).sum(0).to(outputs.dtype)
    log_mass = (total.log() + peak).masked_fill(empty, -math.inf)
    known = all(part._sources for part in parts)
    sources = tuple(problem for part in parts for problem in part._sources) if known else ()
    return Attended(output, log_mass, sources)


def _check_parts(parts: Sequence[Attended]) -> list[Attended]:
    given = parts
    parts = list(parts) if isinstance(parts, Iterable) else []
    if not parts:
        raise RegardError(
            "parts",
            got="no records" if isinstance(given, Iterable) else f"one {type(given).__name__}",
            needed="a sequence of at least one Attended",
            repair="Collect the records of regard.inspect over each set of keys.",
        )
    first = parts[0]
    for part in parts:
        if not isinstance(part, Attended):
            raise RegardError(
                "parts",
                got=f"{type(part).__name__}",
                needed="records of regard.inspect",
                repair="Use inspect instead of attend: an output alone does not know its mass.",
            )
        if not isinstance(part.output, Tensor) or not isinstance(part.log_mass, Tensor):
            raise RegardError(
                "parts",
                got=f"output {describe(part.output)} with log_mass {describe(part.log_mass)}",
                needed="tensors",
                repair="Convert them with torch.as_tensor.",
            )
        if part.output.shape[:-1] != part.log_mass.shape:
            raise RegardError(
                "parts",
                got=f"output {describe(part.output)} with log_mass {describe(part.log_mass)}",
                needed="one mass for each row of the output",
                repair="Of a multi-head layer's records merge the heads: merge([r.heads for r in records]).",
            )
        if part._has_sink:
            raise RegardError(
                "parts",
                got="a record whose score has a sink",
                needed="records without one: merging would count it once for each part",
                repair="Pool each part without a sink; its logit is a part of its own, with output 0.",
            )
        one, other = part.output, first.output
        if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
            raise RegardError(
                "parts",
                got=f"outputs {describe(first.output)} and {describe(part.output)}",
                needed="poolings of the same queries, of one shape and dtype, on one device",
                repair="Pool the same queries over each set of keys.",
            )
    return parts
