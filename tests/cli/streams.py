"""Standard input and output as a shell would set them up."""

import io


class Keyboard(io.TextIOWrapper):
    """Standard input with somebody in front of it."""

    def isatty(self):
        return True


def standard_input(content, keyboard=False):
    return (Keyboard if keyboard else io.TextIOWrapper)(io.BytesIO(content), encoding="ascii")
