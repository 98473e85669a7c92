"""A recipe: every choice of a training, read from TOML and flags and stored with the model; presets; fine-tuning."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from regard.errors import RegardError
from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.model_folder import TrainedModel


@dataclass(frozen=True)
class Data:
    """How text becomes tokens.

    Attributes:
        source_unit: The unit of the source vocabulary, "bpe", "characters" or "words".
        target_unit: The unit of the target vocabulary; the same as the source's if the vocabulary is joint.
        vocabulary_size: The number of pieces of a subword vocabulary, or the maximum number of words.
        most_tokens: Pairs with a side longer than this are not used for training.
        bpe_dropout: The probability that a merge of subwords is skipped in training.
        tokenize: How sacrebleu splits text into words: "13a" for plain text, "none" for text that is tokenized already.
    """

    source_unit: Literal["bpe", "characters", "words"] = "bpe"
    target_unit: Literal["bpe", "characters", "words"] = "bpe"
    vocabulary_size: int = 6000
    most_tokens: int = 100
    bpe_dropout: float = 0.0
    tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a"


@dataclass(frozen=True)
class Training:
    """How the weights are trained.

    Attributes:
        seed: The seed of the weights, the order of the data, and dropout.
        epochs: The maximum number of passes over the data.
        batch_tokens: The maximum number of pairs in a batch times its longer padded length. A longer pair is
            a batch of its own.
        learning_rate: The highest learning rate.
        warmup: The number of updates over which the learning rate rises to it.
        decay: What follows: "none", "linear" or "cosine" (to 0 at the last epoch), or "inverse_sqrt".
        weight_decay: The decoupled weight decay of AdamW.
        clip: The maximum norm of the gradient; a longer gradient is scaled down.
        label_smoothing: The share of the target's probability that is spread over the vocabulary.
        r_drop: The weight of the divergence between two passes with different dropout; 0 for one pass.
        precision: The precision of matrix products: "float32", "tf32" (GPU only) or "bfloat16" (GPU only).
        average: The number of last epochs whose weights are averaged for validation and for the model that is kept.
        average_from: The first epoch whose weights are averaged.
        patience: Stop after this number of epochs without a better validation BLEU.
        validate_from: The first epoch that is validated.
        validate_every: The number of epochs between two validations.
        save_every: The number of updates between two checkpoints; 0 to use save_seconds only.
        save_seconds: The maximum age of the last checkpoint in seconds.
    """

    seed: int = 1
    epochs: int = 30
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    warmup: int = 400
    decay: Literal["none", "linear", "cosine", "inverse_sqrt"] = "cosine"
    weight_decay: float = 0.0
    clip: float = 1.0
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    average: int = 1
    average_from: int = 1
    patience: int = 10
    validate_from: int = 1
    validate_every: int = 1
    save_every: int = 0
    save_seconds: float = 30.0

    def validates(self, epoch: int) -> bool:
        """Whether this epoch, from 1, is validated; the last one always is."""
        is_in_turn = epoch >= self.validate_from and epoch % self.validate_every == 0
        return is_in_turn or epoch == self.epochs


MAX_BYTES = 2**20  # of a recipe's file
TABLES = {"model": Architecture, "data": Data, "training": Training}


@dataclass(frozen=True)
class Recipe:
    """All choices of a training: the tables [model], [data] and [training] of a TOML file.

    Attributes:
        model: The architecture.
        data: How text becomes tokens.
        training: How the weights are trained.

    Raises:
        RegardError: If a value is out of range, or if two values do not go together.
    """

    model: Architecture = field(default_factory=Architecture)
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        """Check all values."""
        for table in (self.data, self.training):
            for entry in fields(table):
                _check_value(entry.name, getattr(table, entry.name), entry.default, entry.type)
        if self.training.patience < self.training.validate_every:
            got, needed = str(self.training.patience), f"at least validate_every={self.training.validate_every}"
            _refuse("patience", got, needed, "Without a validation there is nothing to stop for.")
        if self.model.joint and self.data.source_unit != self.data.target_unit:
            got = f"{self.data.source_unit} and {self.data.target_unit}"
            _refuse("source_unit", got, "one unit for both sides where the vocabulary is joint", "Set joint to false.")
        if self.data.bpe_dropout and "bpe" not in (self.data.source_unit, self.data.target_unit):
            _refuse("bpe_dropout", str(self.data.bpe_dropout), "subwords on one side", 'Set source_unit to "bpe".')

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the tables as plain dictionaries."""
        return asdict(self)

    def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> "Recipe":
        """Return the recipe with other values for some names.

        Args:
            changes: For each table its new values, such as {"training": {"epochs": 5}}.

        Raises:
            RegardError: If a table, a name or a value is wrong.
        """
        tables = {}
        for name, values in changes.items():
            needed = "the tables [model], [data] and [training]"
            if not isinstance(values, Mapping):
                _refuse("recipe", f"{name}, which is no table", needed, "Write a name below the line of its table.")
            if name not in TABLES:
                _refuse("recipe", f"the table [{name}]", needed, "Rename it.")
            table = getattr(self, name)
            known = {entry.name for entry in fields(table)}
            for key in values:
                if key not in known:
                    needed = f"one of {', '.join(sorted(known))}"
                    _refuse(f"{name}.{key}", "an unknown name", needed, _hint(key, known))
            tables[name] = replace(table, **values)
        return replace(self, **tables)

    def with_flags(self, flags: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with other values, by their names alone, as on a command line.

        Args:
            flags: The values, such as {"epochs": 5, "hidden": 256}.

        Raises:
            RegardError: If a name or a value is wrong.
        """
        changes: dict[str, dict[str, Any]] = {}
        for key, value in flags.items():
            changes.setdefault(table_of(key), {})[key] = value
        return self.changed(changes)

    @classmethod
    def read(cls, path: Path, base: "Recipe | None" = None, flags: Mapping[str, Any] | None = None) -> "Recipe":
        """Read a TOML file.

        Args:
            path: The file.
            base: Gives the values that the file does not set; by default the defaults.
            flags: Values by their names alone, which override the file's.

        Raises:
            RegardError: If the file cannot be read, or a name or a value is wrong.
        """
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)  # not more: a device has no end
            if len(content) > MAX_BYTES:
                needed = f"a TOML file of at most {MAX_BYTES:,} bytes"
                _refuse("recipe", f"{path}, which is longer", needed, "See recipes/ for examples.")
            tables = tomllib.loads(content.decode("utf-8-sig"))
        except OSError as error:
            _refuse("recipe", f"{path} ({error.strerror})", "a TOML file that can be read", "Check the path.")
        except RegardError:
            raise
        except ValueError as error:  # of the syntax, of the encoding, or of a number with too many digits
            _refuse("recipe", f"{path}: {error}", "a TOML file", "See recipes/ for examples.")
        except RecursionError:
            _refuse("recipe", f"{path}, nested too deeply", "a TOML file", "See recipes/ for examples.")
        for key, value in (flags or {}).items():
            table = tables.setdefault(table_of(key), {})
            if isinstance(table, dict):
                table[key] = value
        return (base or cls()).changed(tables)

    def to_toml(self) -> str:
        """Return the recipe as the text of a TOML file."""
        tables = []
        for name, values in self.to_dict().items():
            lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
            tables.append("\n".join([f"[{name}]", *lines]))
        return "\n\n".join(tables) + "\n"


def _hint(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"Did you mean {near[0]}?" if near else "See `regard train --help`."


def table_of(name: str) -> str:
    """Return the table that has a name; no name is in two tables."""
    names = {entry.name: table for table, kind in TABLES.items() for entry in fields(kind)}
    if name not in names:
        _refuse(name, "an unknown name", "a name of Architecture, Data or Training", _hint(name, names))
    return names[name]


AT_LEAST = {
    "vocabulary_size": 8,
    "most_tokens": 2,
    "epochs": 1,
    "batch_tokens": 1,
    "average": 1,
    "average_from": 1,
    "patience": 1,
    "validate_from": 1,
    "validate_every": 1,
}


# Larger values are mistakes: they would overflow, or need more memory than there is.
AT_MOST = {
    "seed": 2**32 - 1,
    "vocabulary_size": 10**7,
    "most_tokens": 10**5,
    "batch_tokens": 2**20,
    "average": 1000,
}
MAX_COUNT, MAX_NUMBER = 10**9, 1e30  # of every other whole number, of every other number


def _check_value(name: str, value: object, default: object, kind: object) -> None:
    choices = getattr(kind, "__args__", None)
    if choices:
        if value not in choices:
            _refuse(name, repr(value), "one of " + ", ".join(map(str, choices)), f"Write {default!r}.")
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(default, int) and not isinstance(value, int)):
        _refuse(name, repr(value), "a whole number" if isinstance(default, int) else "a number", f"Write {default}.")
    assert isinstance(value, int | float)
    least, most = AT_LEAST.get(name, 0), AT_MOST.get(name, MAX_COUNT if isinstance(default, int) else MAX_NUMBER)
    if not value >= least:
        _refuse(name, repr(value), f"a number of at least {least}", f"Write {default}.")
    if not value <= most:
        _refuse(name, repr(value), f"a number of at most {most:,}", f"Write {default}.")
    if name in ("bpe_dropout", "label_smoothing") and value >= 1:
        _refuse(name, repr(value), "a share below 1", f"Write {default}.")
    if name in ("learning_rate", "clip") and value == 0:
        _refuse(name, repr(value), "a positive number", f"Write {default}.")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _refuse(argument: str, got: str, needed: str, repair: str) -> NoReturn:
    raise RegardError(argument, got=got, needed=needed, repair=repair)


# The pairs of a built-in corpus are correct and unlimited in number, so dropout and label smoothing would only slow the
# training down.
_NO_DROPOUT = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}

_PRESETS = {
    "dates": Recipe(
        Architecture(embedding=64, hidden=64, **_NO_DROPOUT),
        Data("characters", "characters"),
        Training(epochs=3, batch_tokens=1024, learning_rate=6e-3, warmup=60, label_smoothing=0.0, save_seconds=5.0),
    ),
    "numbers": Recipe(
        Architecture(embedding=64, hidden=96, **_NO_DROPOUT),
        Data("characters", "words"),
        Training(epochs=2, batch_tokens=1536, learning_rate=6e-3, warmup=60, label_smoothing=0.0, save_seconds=5.0),
    ),
    "lists": Recipe(
        Architecture(embedding=32, hidden=64, **_NO_DROPOUT),
        Data("words", "words"),
        Training(epochs=4, batch_tokens=1024, learning_rate=4e-3, warmup=50, label_smoothing=0.0, save_seconds=5.0),
    ),
}


def preset(corpus: str) -> Recipe:
    """Return the recipe of a built-in corpus: a small model that learns it within a minute on two cores.

    Args:
        corpus: The name of the corpus.

    Raises:
        RegardError: If there is no such corpus.
    """
    if corpus not in _PRESETS:
        raise RegardError(
            "corpus", got=repr(corpus), needed=f"one of {', '.join(_PRESETS)}", repair="Other corpora come from files."
        )
    return _PRESETS[corpus]


def resolve_recipe(base: Recipe, file: Path | None, flags: Mapping[str, Any]) -> Recipe:
    """Combine defaults, a TOML file and flags.

    Args:
        base: The defaults.
        file: A TOML file, which overrides them.
        flags: Values by their names alone, such as {"epochs": 5}, which override both.
    """
    return base.with_flags(flags) if file is None else Recipe.read(file, base, flags)


def for_fine_tuning(base: Recipe, init: TrainedModel) -> Recipe:
    """Return `base` with the architecture of a trained model and the units of its vocabularies."""
    units = {"source_unit": init.source_vocabulary.unit, "target_unit": init.target_vocabulary.unit}
    bpe_dropout = base.data.bpe_dropout if "bpe" in units.values() else 0.0
    return replace(base, model=init.model.architecture, data=replace(base.data, **units, bpe_dropout=bpe_dropout))


def with_recipe_dropout(folder: Path, recipe: Recipe, init: TrainedModel) -> TrainedModel:
    """Return a trained model with the recipe's dropout; everything else must already be as the recipe says.

    Args:
        folder: The folder of the model, for the error.
        recipe: The recipe of the fine-tuning.
        init: The model of the folder.

    Raises:
        RegardError: If the recipe needs another architecture or other units.
    """
    was, wanted = init.model.architecture, recipe.model
    both = {entry.name: (getattr(was, entry.name), getattr(wanted, entry.name)) for entry in fields(was)}
    both |= {
        "source_unit": (init.source_vocabulary.unit, recipe.data.source_unit),
        "target_unit": (init.target_vocabulary.unit, recipe.data.target_unit),
    }
    for name, (had, asked) in both.items():
        if had != asked and not name.endswith("_dropout"):
            raise RegardError(
                name,
                got=f"{asked}, where --init {folder} has {had}",
                needed="the model as it was trained; only its dropout can be changed",
                repair="Leave it out.",
            )
    if was == wanted:
        return init
    model = EncoderDecoder(wanted, len(init.source_vocabulary), len(init.target_vocabulary))
    model.load_state_dict(init.model.state_dict())
    return replace(init, model=model)


def load_init(folder: Path) -> TrainedModel:
    """Load a model to fine-tune on the CPU; an error names the argument `init`."""
    try:
        return TrainedModel.load(folder, torch.device("cpu"))
    except RegardError as refusal:
        raise refusal.about("init") from None
