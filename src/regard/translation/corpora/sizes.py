"""How many examples each part of a built-in corpus has."""

from regard.errors import RegardError


def check_sizes(train: int, valid: int, test: int, *, held_out: int | None = None) -> None:
    """Refuse parts that are empty, and more held out than the corpus can spare (`held_out`, None: no limit)."""
    for argument, size in (("train", train), ("valid", valid), ("test", test)):
        if size < 1:
            raise RegardError(
                argument, got=str(size), needed="at least one example", repair="Leave it out to get the usual number."
            )
    if held_out is not None and valid + test > held_out:
        raise RegardError(
            "valid, test",
            got=f"{valid} and {test}",
            needed=f"{held_out} examples or fewer together, so that enough are left to train on",
            repair="Ask for fewer.",
        )
