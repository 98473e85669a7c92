"""Refuse a number of positions that is left open while the model is exported."""

from torch.fx.experimental.symbolic_shapes import has_static_value

from regard.errors import RegardError
from regard.torch_compat import is_exporting


def check_length(argument: str, length: int, side: str) -> None:
    """Refuse an open length while `torch.export` or `torch.onnx` traces the model.

    The recurrent layers loop over the positions, and an exported program holds as many steps as the example has. It
    would compute wrong numbers for any other length. `torch.compile` compiles again for another length instead.

    Args:
        argument: the argument of the model that has the positions.
        length: how many positions it has, an integer or a symbolic size.
        side: "source" or "target".
    """
    if is_exporting() and not has_static_value(length):
        raise RegardError(
            argument,
            got=f"a number of {side} positions that dynamic_shapes leaves open",
            needed="a fixed number of positions, because an exported model serves one length only",
            repair="Give dynamic_shapes for the batch only, or none, and pad shorter sentences to the exported length; "
            "or export one step of the decoder.",
        )
