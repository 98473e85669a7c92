"""Backends: ways to run one problem. The reference specifies the results; optimised backends do not import each other.

The backends by name, and where they are:

- "torch": `sdpa.py` and `varlen.py`
- "triton": `triton/`
- "reference": `reference.py`
- "blocked": `blocked/` and `row_blocks.py`

`base.py` has their interface, `dispatch.py` chooses one of them, and `custom_op.py` turns a forward and a backward
function into an operator of torch.
"""
