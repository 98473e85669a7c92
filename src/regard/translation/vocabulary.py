"""Vocabularies: sentences as lists of token ids, by characters, words or subwords (byte-pair encoding).

`Vocabulary` is the interface of all three. Text is normalised before it is cut into tokens, so `decode(encode(text))`
equals `normalise(text)` wherever the training data contained every character (for words, every word).
"""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol, Self, get_args, runtime_checkable

from regard.errors import RegardError
from regard.extras import require
from regard.translation.text import normalise

Unit = Literal["bpe", "characters", "words"]
UNITS: tuple[str, ...] = get_args(Unit)

PAD = 0
"""Fills a row of a batch after the end of its sentence."""
UNKNOWN = 1
"""A piece of text that the training data did not contain."""
BEGIN = 2
"""What the decoder reads before its first word."""
END = 3
"""What the decoder writes after its last word; the encoder reads it too."""
NUM_SPECIAL = 4
"""Number of special tokens; the first token of the text has this id."""

BLANK = "▁"
"""A blank in print, as sentencepiece writes it."""
UNKNOWN_SIGN = "⁇"
SPECIAL_PIECES = ("<pad>", UNKNOWN_SIGN, "<s>", "</s>")
"""The special tokens in print."""
SPECIAL_SURFACES: tuple[str | None, ...] = (None, UNKNOWN_SIGN, None, None)
"""The text that the special tokens stand for; None is no text."""

BPE_SIZE = 6000
"""Size of a subword vocabulary, unless one is given."""
MAX_SENTENCE_BYTES = 1 << 30
"""sentencepiece skips longer sentences without a warning; this is the largest limit it accepts."""
MAX_SEED = 2**32 - 1
"""sentencepiece draws another seed every time for larger ones."""
ERRORS_ONLY = 2
"""sentencepiece's log level."""
PIECE_NAMES = {"pad_piece": "\n<pad>", "unk_piece": "\n<unk>", "bos_piece": "\n<s>", "eos_piece": "\n</s>"}
"""sentencepiece learns nothing from a text that contains a name of its special tokens; normalised text has no "\n"."""
SKIPPED_CHARACTER = "▅"
"""sentencepiece skips every sentence that contains it."""
NOT_LEARNT = f"{BLANK}\0 "
"""Characters that sentencepiece does not learn."""
_TOO_FEW = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")  # its message for fewer ids than characters
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can contain lone surrogates; text cannot


@runtime_checkable
class Vocabulary(Protocol):
    """Sentences as lists of ids: 0 to 3 are the special tokens, the tokens of the text follow.

    A vocabulary does not change once it is made.
    """

    unit: ClassVar[Unit]

    def __len__(self) -> int:
        """Return the number of ids, the special tokens included."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a sentence, without BEGIN and END; UNKNOWN for what the training data did not contain."""
        ...

    def encode_all(self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Return the ids of many sentences.

        Args:
            texts: the sentences.
            dropout: the probability that a merge of two subwords is left out (BPE-dropout, arXiv 1910.13267), for
                training only. Units without merges refuse it.
            seed: the same seed and texts give the same ids.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids: PAD, BEGIN and END are left out, UNKNOWN is ⁇."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each token in print: ▁ is a blank, the special tokens are <pad>, ⁇, <s> and </s>."""
        ...

    def word_indices(self, ids: Sequence[int]) -> list[int]:
        """Return for each token the number of its word in `decode(ids).split()`.

        A blank belongs to the word after it. -1 is no word: PAD, BEGIN, END, or a blank after the last word.
        """
        ...

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return for each token of `encode(text)` its first character in `normalise(text)`, and that after its last.

        The blank before a word is not part of it; a token that is only the blank covers the blank.
        """
        ...

    def to_bytes(self) -> bytes:
        """Return the vocabulary as a file, which `load_vocabulary(unit, data)` reads: JSON, or sentencepiece's own."""
        ...


class VocabularySizeError(RegardError):
    """A vocabulary of the given size cannot be learned."""


def learn_vocabulary(unit: str, texts: Iterable[str], size: int | None = None) -> Vocabulary:
    """Learn a vocabulary from the training data; a joint one is learnt from the sentences of both sides.

    Args:
        unit: "bpe", "characters" or "words".
        texts: sentences; they are normalised here.
        size: maximum number of ids, the special tokens included; None for 6,000 (bpe) or no limit (the others).

    Returns:
        The vocabulary.

    Raises:
        RegardError: if the unit is unknown, or nothing can be learnt from the texts.
        VocabularySizeError: if the size is too small.

    >>> learn_vocabulary("words", ["one two", "two"])
    Words(6 ids)
    """
    vocabulary = _class_of(unit)
    if size is not None and size <= NUM_SPECIAL:
        raise VocabularySizeError(
            "size",
            got=str(size),
            needed=f"more than {NUM_SPECIAL}, which the special tokens take",
            repair="Some thousands are usual for bpe.",
        )
    return vocabulary.learn(texts, size=size)


def load_vocabulary(unit: str, data: bytes, size: int | None = None) -> Vocabulary:
    """Read what `to_bytes` of a vocabulary wrote. Nothing is executed.

    Args:
        unit: of the vocabulary.
        data: the file.
        size: number of ids that it must have; None for any number.

    Returns:
        The vocabulary.

    Raises:
        RegardError: if the data are damaged, or the size is another one.
    """
    return _class_of(unit).from_bytes(data, size)


class TokenList(ABC):
    """A vocabulary that is a list of tokens: what characters and words have in common.

    Args:
        tokens: distinct and normalised; token number i has the id i + 4.
    """

    unit: ClassVar[Unit]
    _separator: ClassVar[str]  # between two tokens of a text

    def __init__(self, tokens: Sequence[str]) -> None:
        self._check(tokens)
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens, start=NUM_SPECIAL)}

    @staticmethod
    @abstractmethod
    def _split(text: str) -> Sequence[str]:
        """Return the tokens of a normalised text."""

    @staticmethod
    @abstractmethod
    def _is_token(token: str) -> bool:
        """Return whether `_split` could have returned it."""

    @classmethod
    def learn(cls, texts: Iterable[str], *, size: int | None = None) -> Self:
        """Return the tokens of the texts, the most frequent first, equally frequent ones in alphabetical order.

        Args:
            texts: sentences; they are normalised here.
            size: maximum number of ids, the special tokens included.

        Raises:
            RegardError: if the texts contain no token.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(cls._split(normalise(text)))
        if not counts:
            raise RegardError(
                "texts",
                got=f"no {cls.unit}",
                needed="sentences to learn a vocabulary from",
                repair="Check the training data.",
            )
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        return cls(ranked if size is None else ranked[: size - NUM_SPECIAL])

    @classmethod
    def from_bytes(cls, data: bytes, size: int | None = None) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            RegardError: for anything else, and for another number of ids than `size`.
        """
        try:
            stored = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise _bad_token_list("data that are not JSON", cls.unit) from None
        if not isinstance(stored, dict) or stored.keys() != {"unit", "tokens"} or stored["unit"] != cls.unit:
            raise _bad_token_list("JSON of something else", cls.unit)
        tokens = stored["tokens"]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise _bad_token_list("tokens that are not a list of strings", cls.unit)
        check_stored_size(NUM_SPECIAL + len(tokens), size)
        return cls(tokens)

    def to_bytes(self) -> bytes:
        """Return JSON: the unit, and the tokens in order."""
        return json.dumps({"unit": self.unit, "tokens": self.tokens}, ensure_ascii=False, indent=0).encode()

    def __len__(self) -> int:
        return NUM_SPECIAL + len(self.tokens)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} ids)"

    def encode(self, text: str) -> list[int]:
        """See `Vocabulary.encode`."""
        find = self._ids.get
        return [find(token, UNKNOWN) for token in self._split(normalise(text))]

    def encode_all(self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """See `Vocabulary.encode_all`; nothing here is random, so any dropout is refused."""
        if dropout != 0:
            raise RegardError(
                "dropout",
                got=f"{dropout} for {self.unit}",
                needed="0: only subwords have merges to leave out",
                repair='Learn a vocabulary of unit "bpe", or leave BPE-dropout out.',
            )
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Vocabulary.decode`."""
        return join_surfaces(self._surfaces(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `Vocabulary.pieces`."""
        check_ids(ids, len(self))
        return [
            SPECIAL_PIECES[token] if token < NUM_SPECIAL else self.tokens[token - NUM_SPECIAL].replace(" ", BLANK)
            for token in ids
        ]

    def word_indices(self, ids: Sequence[int]) -> list[int]:
        """See `Vocabulary.word_indices`."""
        return word_indices(self._surfaces(ids))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See `Vocabulary.spans`."""
        spans, start = [], 0
        for token in self._split(normalise(text)):
            spans.append((start, start + len(token)))
            start += len(token) + len(self._separator)
        return spans

    def _surfaces(self, ids: Sequence[int]) -> list[str | None]:
        check_ids(ids, len(self))
        return [self._surface(token) for token in ids]

    def _surface(self, token: int) -> str | None:
        surface = SPECIAL_SURFACES[token] if token < NUM_SPECIAL else self.tokens[token - NUM_SPECIAL]
        return None if surface is None else self._separator + surface

    @classmethod
    def _check(cls, tokens: Sequence[str]) -> None:
        wrong = next((token for token in tokens if not cls._is_token(token) or _SURROGATE.search(token)), None)
        if wrong is not None:
            raise _bad_token_list(f"the token {wrong!r}", cls.unit)
        if len(set(tokens)) != len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise _bad_token_list(f"the token {twice!r} twice", cls.unit)


class Characters(TokenList):
    """Every character is a token, blanks included.

    >>> letters = Characters.learn(["a cab"])
    >>> letters.pieces(letters.encode("a bad")), letters.decode(letters.encode("a bad"))
    (['a', '▁', 'b', 'a', '⁇'], 'a ba⁇')
    """

    unit: ClassVar[Unit] = "characters"
    _separator: ClassVar[str] = ""

    @staticmethod
    def _split(text: str) -> Sequence[str]:
        return text

    @staticmethod
    def _is_token(token: str) -> bool:
        return len(token) == 1 and (token == " " or not token.isspace())


class Words(TokenList):
    """Every word between blanks is a token.

    >>> words = Words.learn(["a cat", "a dog"])
    >>> words.encode("a dog"), words.decode(words.encode("a red dog"))
    ([4, 6], 'a ⁇ dog')
    """

    unit: ClassVar[Unit] = "words"
    _separator: ClassVar[str] = " "

    @staticmethod
    def _split(text: str) -> Sequence[str]:
        return text.split()

    @staticmethod
    def _is_token(token: str) -> bool:
        return token.split() == [token]


class BPE:
    """Subwords by byte-pair encoding in sentencepiece: frequent words are tokens, rare ones consist of several.

    A token that starts a word begins with ▁. Made by `BPE.learn` or `BPE.from_bytes`. Three characters cannot be
    learnt, because sentencepiece reserves them: ▁ (U+2581) reads as a blank, ▅ (U+2585) and U+0000 as UNKNOWN.

    >>> subwords = BPE.learn(["low lower lowest", "new newer newest"], size=30)
    >>> subwords.decode(subwords.encode("newer low"))
    'newer low'
    """

    unit: ClassVar[Unit] = "bpe"

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        learnt = (processor.id_to_piece(token) for token in range(NUM_SPECIAL, len(processor)))
        self._pieces = (*SPECIAL_PIECES, *learnt)
        self._surfaces = (*SPECIAL_SURFACES, *(piece.replace(BLANK, " ") for piece in self._pieces[NUM_SPECIAL:]))

    @classmethod
    def learn(cls, texts: Iterable[str], *, size: int | None = None) -> Self:
        """Merge the most frequent pairs until there are `size` ids (None for 6,000), or nothing is left to merge.

        Raises:
            RegardError: if sentencepiece cannot learn from the texts.
            VocabularySizeError: if there are more different characters than ids.
        """
        package = require("sentencepiece", "translation", "unit bpe")
        sentences = filter(_can_be_learnt, map(normalise, texts))
        first = next(sentences, None)
        if first is None:
            raise RegardError(
                "texts",
                got="nothing that can be learnt",
                needed="sentences with other characters than blanks, ▁, ▅ and U+0000",
                repair="Check the training data.",
            )
        written = BytesIO()
        try:
            package.SentencePieceTrainer.train(
                sentence_iterator=chain([first], sentences),
                model_writer=written,
                model_type="bpe",
                vocab_size=BPE_SIZE if size is None else size,
                hard_vocab_limit=False,
                character_coverage=1.0,
                normalization_rule_name="identity",  # `normalise` has done it
                remove_extra_whitespaces=False,
                max_sentence_length=MAX_SENTENCE_BYTES,
                num_threads=1,
                minloglevel=ERRORS_ONLY,
                pad_id=PAD,
                unk_id=UNKNOWN,
                bos_id=BEGIN,
                eos_id=END,
                **PIECE_NAMES,
            )
        except (RuntimeError, OSError) as refusal:
            if too_few := _TOO_FEW.search(str(refusal)):
                raise VocabularySizeError(
                    "size",
                    got=str(BPE_SIZE if size is None else size),
                    needed=f"at least {too_few[1]}, for the special tokens and every different character of the texts",
                    repair="Raise it; some thousands are usual.",
                ) from None
            raise RegardError(
                "texts, size",
                got=f"what sentencepiece refuses ({' '.join(str(refusal).split())})",
                needed="sentences, and more ids than they have different characters",
                repair="Check the training data, or raise the size of the vocabulary.",
            ) from None
        return cls.from_bytes(written.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes, size: int | None = None) -> Self:
        """Read sentencepiece's model.

        Args:
            data: the file.
            size: number of ids that it must have; None for any number.

        Raises:
            RegardError: if it is damaged, was not written by `to_bytes`, or has another size.
        """
        processor = require("sentencepiece", "translation", "unit bpe").SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(data)
            check_stored_size(len(processor), size)
            vocabulary = cls(processor)
            if vocabulary._is_valid():
                return vocabulary
        except RegardError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError):  # UnicodeDecodeError is a ValueError
            pass  # refused below
        raise RegardError(
            "vocabulary",
            got="data that are not a sentencepiece model of ours, or a damaged one",
            needed="what `BPE.to_bytes` wrote",
            repair="Check the file, or learn the vocabulary again.",
        )

    def to_bytes(self) -> bytes:
        """Return sentencepiece's own model."""
        return self._processor.serialized_model_proto()

    def __len__(self) -> int:
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} ids)"

    def encode(self, text: str) -> list[int]:
        """See `Vocabulary.encode`."""
        return self._processor.encode(normalise(text), out_type=int)

    def encode_all(self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """See `Vocabulary.encode_all`."""
        if not 0.0 <= dropout <= 1.0:
            raise RegardError(
                "dropout", got=str(dropout), needed="a probability", repair="0.1 is what the paper of BPE-dropout used."
            )
        normalised = list(map(normalise, texts))
        if dropout == 0:
            return self._processor.encode(normalised, out_type=int, num_threads=1)
        # sentencepiece seeds a generator when a thread starts, and encodes a list in a new thread: with one thread,
        # the same seed gives the same result.
        require("sentencepiece", "translation", "unit bpe").set_random_generator_seed(seed % MAX_SEED)
        return self._processor.encode(
            normalised, out_type=int, num_threads=1, enable_sampling=True, alpha=dropout, nbest_size=-1
        )

    def decode(self, ids: Sequence[int]) -> str:
        """See `Vocabulary.decode`."""
        check_ids(ids, len(self))
        return join_surfaces([self._surfaces[token] for token in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `Vocabulary.pieces`."""
        check_ids(ids, len(self))
        return [self._pieces[token] for token in ids]

    def word_indices(self, ids: Sequence[int]) -> list[int]:
        """See `Vocabulary.word_indices`."""
        check_ids(ids, len(self))
        return word_indices([self._surfaces[token] for token in ids])

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See `Vocabulary.spans`."""
        spans, start = [], -1  # sentencepiece puts a blank before the first word
        for piece in self._processor.encode(normalise(text), out_type=str):
            end = start + len(piece)
            starts_word = piece.startswith(BLANK) and piece != BLANK
            spans.append((max(start + starts_word, 0), end))
            start = end
        return spans

    def _is_valid(self) -> bool:
        """Return whether the special tokens have our ids, words start with ▁, and every piece encodes to itself."""
        processor = self._processor
        special = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        learnt = self._pieces[NUM_SPECIAL:]  # one of them may look like a special token: ⁇ is a character too
        if special != (PAD, UNKNOWN, BEGIN, END) or not learnt or len(set(learnt)) != len(learnt):
            return False
        texts = [join_surfaces([surface]) for surface in self._surfaces[NUM_SPECIAL:]]
        longest = max(texts, key=len)
        # Without merges only letters are left: that is so for BPE, and not for sentencepiece's other models.
        letters = processor.encode(longest, out_type=str, enable_sampling=True, alpha=1.0, nbest_size=-1)
        return letters == [BLANK, *longest] and all(
            UNKNOWN not in ids and join_surfaces([self._surfaces[token] for token in ids]) == text
            for text, ids in zip(texts, processor.encode(texts, out_type=int, num_threads=1), strict=True)
        )


_CLASSES: dict[str, type[BPE] | type[TokenList]] = {"bpe": BPE, "characters": Characters, "words": Words}


def _class_of(unit: str) -> type[BPE] | type[TokenList]:
    if unit not in _CLASSES:
        raise RegardError(
            "unit",
            got=repr(unit),
            needed=" or ".join(map(repr, UNITS)),
            repair='"bpe" suits sentences of natural language.',
        )
    return _CLASSES[unit]


def join_surfaces(surfaces: Sequence[str | None]) -> str:
    """Return the sentence that the surfaces of tokens make, with single blanks."""
    return " ".join("".join(filter(None, surfaces)).split())


def word_indices(surfaces: Sequence[str | None]) -> list[int]:
    """Return for each token the number of its word in `join_surfaces(surfaces).split()`; -1 for none.

    >>> word_indices([" two", " ", "wo", "rds", None, " "])
    [0, 1, 1, 1, -1, -1]
    """
    indices, word, is_between = [], -1, True
    for surface in surfaces:
        if surface is None:
            indices.append(-1)
            continue
        is_between = is_between or surface[:1].isspace()
        if not surface.strip():  # only the blank before a word
            indices.append(word + 1)
            is_between = True
            continue
        word += is_between
        is_between = surface[-1].isspace()
        indices.append(word)
    return [index if index <= word else -1 for index in indices]


def check_stored_size(found: int, wanted: int | None) -> None:
    """Raise if a stored vocabulary has another number of ids than the model; called before its tokens are read."""
    if wanted is not None and found != wanted:
        raise RegardError(
            "vocabulary",
            got=f"{found} ids",
            needed=f"{wanted} ids, as many as the model has",
            repair="Pass the vocabulary that the model was trained with.",
        )


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raise if an id is not in a vocabulary of this size."""
    for position, token in enumerate(ids):
        if not 0 <= token < size:
            raise RegardError(
                "ids",
                got=f"{token} at position {position}",
                needed=f"ids from 0 to {size - 1}",
                repair="Decode with the vocabulary of the side that the ids were written in.",
            )


def _can_be_learnt(text: str) -> bool:
    """Return whether sentencepiece would find a character to learn in a normalised text."""
    return SKIPPED_CHARACTER not in text and bool(text.strip(NOT_LEARNT))


def _bad_token_list(got: str, unit: str) -> RegardError:
    return RegardError(
        "vocabulary",
        got=got,
        needed=f"a vocabulary of {unit}: distinct tokens, each one of the {unit}",
        repair="Check the file, or learn the vocabulary again.",
    )
