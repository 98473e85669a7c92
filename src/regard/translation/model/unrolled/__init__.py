"""All steps of a decoder with an additive score, one head and gated units as one differentiable function (eq. 13).

Two things make it faster than a loop over `attend`. What does not depend on the step before is taken out of the loop:
the gradient of each matrix is one product over all steps, not a sum of small ones. And on a GPU each step is a few
kernels in either direction: the products, attention, the gated unit. The loop in `Decoder.unroll` is the
specification, and tests judge this by it.
"""

from regard.translation.model.unrolled.function import Conditional, Weights, unroll

__all__ = ["Conditional", "Weights", "unroll"]
