"""Who else looks at a call: before tracers, transforms and modes no number is read, nothing kept, nothing cut short."""

import torch
from torch import Tensor

PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


def is_watched() -> bool:
    """Whether somebody traces, transforms or records what is computed."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or is_intercepted()


def is_intercepted() -> bool:
    """Whether a tensor that is made now belongs to a transform or a mode; one that is kept must not."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH)  # where torch.export keeps its modes
    )


def is_exporting() -> bool:
    """Whether torch.export traces, which wants one program for every length."""
    # Not torch.compiler.is_exporting: before torch 2.13 it is True inside torch.compile, too.
    return torch.compiler._is_exporting_flag


def is_packed() -> bool:
    """Whether somebody packs what is kept for a backward pass, as a checkpoint does: it wants the same kept again."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is torch's own: a subclass watches what becomes of it."""
    return type(tensor) in (Tensor, torch.nn.Parameter)


def is_readable(tensor: Tensor) -> bool:
    """Whether looking at numbers waits for nobody: on a CPU, and unwatched."""
    return tensor.device.type == "cpu" and is_plain(tensor) and not is_watched()
