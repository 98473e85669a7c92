"""The recipes of the built-in corpora: small models that are learnt within a minute on two cores."""

from regard.errors import RegardError
from regard.translation.model import Architecture
from regard.translation.training.recipe import Data, Recipe, Training

# Every pair of a made corpus is true, and there are as many as one likes: nothing is held back by dropout or smoothing.
_EXACT = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}

_PRESETS = {
    "dates": Recipe(
        Architecture(embedding=64, hidden=64, attention_dim=64, **_EXACT),
        Data("characters", "characters"),
        Training(epochs=3, batch_tokens=1024, learning_rate=6e-3, warmup=60, label_smoothing=0.0, save_seconds=5.0),
    ),
    "numbers": Recipe(
        Architecture(embedding=64, hidden=96, attention_dim=64, **_EXACT),
        Data("characters", "words"),
        Training(epochs=2, batch_tokens=1536, learning_rate=6e-3, warmup=60, label_smoothing=0.0, save_seconds=5.0),
    ),
    "lists": Recipe(
        Architecture(embedding=32, hidden=64, **_EXACT),
        Data("words", "words"),
        Training(epochs=4, batch_tokens=1024, learning_rate=4e-3, warmup=50, label_smoothing=0.0, save_seconds=5.0),
    ),
}


def preset(corpus: str) -> Recipe:
    """The recipe of a built-in corpus; flags and files change it."""
    if corpus not in _PRESETS:
        raise RegardError(
            "corpus", got=repr(corpus), needed=f"one of {', '.join(_PRESETS)}", repair="Other corpora come from files."
        )
    return _PRESETS[corpus]
