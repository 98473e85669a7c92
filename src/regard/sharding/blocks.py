"""The queries of one rank against the keys of another: pooled by whatever backend suits, differentiated by recomputing.

Shards that are not one run of the sequence are cut at its breaks; what a mask forbids altogether is not computed.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.problem import Bias, Problem
from regard.pooling import Attended, merge
from regard.pooling.attend import pool_inspect
from regard.scores.forms import AdditiveForm, DistanceForm
from regard.shapes import accumulation_dtype
from regard.sharding.restrict import narrow_pairs, restrict
from regard.sharding.shards import Shards, pieces


class Pairing(NamedTuple):
    """Prepared queries of one rank, keys and values of one rank, and which ranks these are."""

    queries_of: int
    query: Tensor
    keys_of: int
    key: Tensor
    value: Tensor


class Arriving(NamedTuple):
    """What the backward pass knows of each query: dO, its log_mass L over all keys, and its mean dO'o - dL.

    grad_output: (*batch, queries, value_dim); log_mass, mean: (*batch, queries, 1).
    """

    grad_output: Tensor
    log_mass: Tensor
    mean: Tensor


class Blocks(NamedTuple):
    """A call laid over all ranks.

    problem: of its form the parameters of the score count; mask and bias are those of the whole sequences.
    """

    shards: Shards
    problem: Problem
    backend: str

    def learning(self, bias: Tensor | None, parameters: Sequence[Tensor]) -> "Blocks":
        """The same with other tensors for the bias, if it is one, and for the parameters of the form."""
        form = self.problem.form
        if isinstance(form, DistanceForm):
            form = form._replace(width=parameters[0])
        elif isinstance(form, AdditiveForm):
            form = form._replace(weight=parameters[0])
        return self._replace(problem=self.problem._replace(form=form, bias=self.problem.bias if bias is None else bias))

    def without_tokens(self) -> "Blocks":
        """The same without this rank's tokens, whose graph would be kept alive: their shapes alone."""
        form, value = self.problem.form, self.problem.value
        query, key, value = (tensor.detach().to("meta") for tensor in (form.query, form.key, value))
        return self._replace(problem=self.problem._replace(form=form._replace(query=query, key=key), value=value))

    def pool(self, pairing: Pairing) -> Attended:
        """Output (*batch, queries, value_dim) and log_mass (*batch, queries), in the accumulation dtype."""
        dtype = accumulation_dtype(pairing.value.dtype)
        parts = [] if pairing.query.shape[-2] else [self._nothing(pairing.value, slice(0, 0), dtype)]
        for here, rows in pieces(self.shards.query_runs[pairing.queries_of]):
            found = [pool_inspect(problem, None, self.backend) for problem in self._problems(pairing, here, rows)]
            found = [Attended(part.output.to(dtype), part.log_mass) for part in found]
            parts.append(merge(found) if found else self._nothing(pairing.value, here, dtype))
        if len(parts) == 1:
            return parts[0]
        return Attended(torch.cat([x.output for x in parts], -2), torch.cat([x.log_mass for x in parts], -1))

    def differentiate(self, pairing: Pairing, wanted: Sequence[Tensor], arriving: Arriving) -> list[Tensor | None]:
        """The gradients of tensors that these pairs depend on; the graph begins at the tokens and at the parameters.

        With o and l the output and log_mass over these keys alone and share = e^(l - L), what arrives at o is share
        dO, and at l it is share (dO'o - mean): that is the derivative of `merge`.
        """
        with torch.enable_grad():
            part = self.pool(pairing)
        if not part.output.requires_grad:
            return [None] * len(wanted)
        grad_output, log_mass, mean = arriving
        share = (part.log_mass.detach().unsqueeze(-1) - log_mass.masked_fill(log_mass == -math.inf, 0.0)).exp()
        into_output = share * grad_output
        into_log_mass = (into_output * part.output.detach()).sum(-1) - (share * mean).squeeze(-1)
        ends = [(part.output, into_output), (part.log_mass, into_log_mass)]
        outputs, grads = zip(*(end for end in ends if end[0].requires_grad), strict=True)
        return list(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))

    def _problems(self, pairing: Pairing, here: slice, rows: slice) -> Iterator[Problem]:
        """One run of queries, here on its rank, against every run of keys that it may see."""
        mask, bias = self.problem.mask, self.problem.bias
        for there, cols in pieces(self.shards.key_runs[pairing.keys_of]):
            covered = None if mask is None else mask.covers(rows, cols)
            if covered is False:
                continue
            query, key = pairing.query[..., here, :], pairing.key[..., there, :]
            yield self.problem._replace(
                form=self.problem.form._replace(query=query, key=key),
                value=pairing.value[..., there, :],
                mask=None if mask is None or covered else restrict(mask, rows, cols),
                bias=_bias_of(bias, rows, cols),
            )

    def _nothing(self, value: Tensor, here: slice, dtype: torch.dtype) -> Attended:
        """The record of queries that see no key."""
        shape = (*self.problem.batch, here.stop - here.start)
        output = value.new_zeros((*shape, value.shape[-1]), dtype=dtype)
        return Attended(output, value.new_full(shape, -math.inf, dtype=dtype))


def _bias_of(bias: Bias | None, rows: slice, cols: slice) -> Bias | None:
    """The bias of a block: a part of a tensor, or the callable at the block's positions."""
    if bias is None or isinstance(bias, Tensor):
        return None if bias is None else narrow_pairs(bias, rows, cols)
    return lambda query, key: bias(query + rows.start, key + cols.start)
