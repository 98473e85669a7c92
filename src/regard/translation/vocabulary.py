"""Vocabularies: sentences as lists of token ids, by characters, words or subwords (byte-pair encoding)."""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol, Self, get_args, runtime_checkable

from regard.errors import RegardError
from regard.translation.extras import extra
from regard.translation.text import normalise

PAD = 0  # fills a row of a batch after its end
UNKNOWN = 1  # a piece of text that the training data did not have
BEGIN = 2  # what the decoder reads before its first word
END = 3  # what the decoder writes after its last word; the encoder reads it too

COUNT = 4


Unit = Literal["bpe", "characters", "words"]


@runtime_checkable
class Vocabulary(Protocol):
    """Sentences as lists of ids: 0 to 3 are the symbols of `translation/symbols.py`, the text's own tokens follow.

    Text is normalised (`translation/text.py`) before it is cut, so `decode(encode(text)) == normalise(text)` wherever
    every character (every word, for words) was in the training data. Vocabularies do not change once they are made.
    """

    unit: ClassVar[Unit]

    def __len__(self) -> int:
        """How many ids there are, the symbols included."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a sentence, without BEGIN and END; UNKNOWN for what the training data did not have."""
        ...

    def encode_all(self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """The ids of many sentences at once.

        dropout: the probability that a merge of two subwords is left out (BPE-dropout, arXiv 1910.13267), for training
        only; units without merges refuse it. seed: the same seed and texts cut the same way.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: PAD, BEGIN and END left out, UNKNOWN shown as ⁇."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token in print: ▁ is a blank, the symbols are <pad>, ⁇, <s> and </s>."""
        ...

    def words(self, ids: Sequence[int]) -> list[int]:
        """For each token the number of the word of `decode(ids).split()` that it belongs to.

        A blank belongs to the word after it. -1: no word at all (PAD, BEGIN, END, a blank after the last word).
        """
        ...

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each token of `encode(text)` the characters of `normalise(text)` that it covers, from start to end.

        The blank before a word is not part of it; a token that is nothing but the blank covers the blank.
        """
        ...

    def to_bytes(self) -> bytes:
        """The vocabulary as a file; `load(unit, data)` reads it back. JSON, or sentencepiece's own model."""
        ...


class VocabularySizeError(RegardError):
    """A vocabulary of the given size cannot be learned."""


def check_stored_size(found: int, wanted: int | None) -> None:
    """Refuse a stored vocabulary that has another number of ids than the model, before its tokens are looked at."""
    if wanted is not None and found != wanted:
        raise RegardError(
            "vocabulary",
            got=f"{found} ids",
            needed=f"{wanted} ids, as many as the model has",
            repair="Pass the vocabulary that the model was trained with.",
        )


def check_ids(ids: Sequence[int], size: int) -> None:
    """Refuse an id that the vocabulary does not have."""
    for position, token in enumerate(ids):
        if not 0 <= token < size:
            raise RegardError(
                "ids",
                got=f"{token} at position {position}",
                needed=f"ids from 0 to {size - 1}",
                repair="Decode with the vocabulary of the side that the ids were written in.",
            )


BLANK = "▁"  # a blank in print, as sentencepiece writes it
UNKNOWN_SIGN = "⁇"
SYMBOLS = ("<pad>", UNKNOWN_SIGN, "<s>", "</s>")
# What the symbols say in a sentence; None is not a part of it.
SPOKEN: tuple[str | None, ...] = (None, UNKNOWN_SIGN, None, None)

assert len(SYMBOLS) == len(SPOKEN) == COUNT


def text_of(surfaces: Sequence[str | None]) -> str:
    """The sentence, with single blanks whatever the tokens say."""
    return " ".join("".join(filter(None, surfaces)).split())


def words_of(surfaces: Sequence[str | None]) -> list[int]:
    """For each token the number of its word in `text_of(surfaces).split()`; -1 for none.

    >>> words_of([" two", " ", "wo", "rds", None, " "])
    [0, 1, 1, 1, -1, -1]
    """
    numbers, word, between = [], -1, True
    for surface in surfaces:
        if surface is None:
            numbers.append(-1)
            continue
        between = between or surface[:1].isspace()
        if not surface.strip():  # nothing but the blank before a word
            numbers.append(word + 1)
            between = True
            continue
        word += between
        between = surface[-1].isspace()
        numbers.append(word)
    return [number if number <= word else -1 for number in numbers]


_HALF = re.compile("[\ud800-\udfff]")  # JSON can spell half of a character; text cannot


class Listed(ABC):
    """Tokens in order; token number i has the id i + 4.

    tokens: distinct, as `normalise` leaves them.
    """

    unit: ClassVar[Unit]

    def __init__(self, tokens: Sequence[str]) -> None:
        self._check(tokens)
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens, start=COUNT)}

    @classmethod
    def learn(cls, texts: Iterable[str], *, size: int | None = None, least: int = 1) -> Self:
        """The tokens of the texts, the most frequent first, equally frequent ones in alphabetical order.

        size: how many ids to keep, the four symbols included. least: how often a token must occur to be kept.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(cls._cut(normalise(text)))
        kept = sorted((token for token in counts if counts[token] >= least), key=lambda token: (-counts[token], token))
        if not kept:
            raise RegardError(
                "texts",
                got=f"no {cls.unit} that occur {least} times or more",
                needed="sentences to learn a vocabulary from",
                repair="Check the training data." if least == 1 else "Lower `least` or check the training data.",
            )
        return cls(kept if size is None else kept[: size - COUNT])

    @classmethod
    def from_bytes(cls, data: bytes, size: int | None = None) -> Self:
        """Read what `to_bytes` wrote; refuse anything else, and another number of ids than `size`."""
        try:
            stored = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise _refusal("data that are not JSON", cls.unit) from None
        if not isinstance(stored, dict) or stored.keys() != {"unit", "tokens"} or stored["unit"] != cls.unit:
            raise _refusal("JSON of something else", cls.unit)
        tokens = stored["tokens"]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise _refusal("tokens that are not a list of strings", cls.unit)
        check_stored_size(COUNT + len(tokens), size)
        return cls(tokens)

    def to_bytes(self) -> bytes:
        """JSON: the unit and the tokens in order."""
        return json.dumps({"unit": self.unit, "tokens": self.tokens}, ensure_ascii=False, indent=0).encode()

    def __len__(self) -> int:
        return COUNT + len(self.tokens)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} ids)"

    def encode(self, text: str) -> list[int]:
        """See `Vocabulary.encode`."""
        find = self._ids.get
        return [find(token, UNKNOWN) for token in self._cut(normalise(text))]

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
        return text_of(self._surfaces(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `Vocabulary.pieces`."""
        check_ids(ids, len(self))
        return [SYMBOLS[token] if token < COUNT else self.tokens[token - COUNT].replace(" ", BLANK) for token in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        """See `Vocabulary.words`."""
        return words_of(self._surfaces(ids))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See `Vocabulary.spans`."""
        spans, start = [], 0
        for token in self._cut(normalise(text)):
            spans.append((start, start + len(token)))
            start += len(token) + len(self._between)
        return spans

    def _surfaces(self, ids: Sequence[int]) -> list[str | None]:
        check_ids(ids, len(self))
        return [self._surface(token) for token in ids]

    def _surface(self, token: int) -> str | None:
        said = SPOKEN[token] if token < COUNT else self.tokens[token - COUNT]
        return said if said is None else self._between + said

    _between: ClassVar[str]  # what stands between two tokens in a text

    @staticmethod
    @abstractmethod
    def _cut(text: str) -> Sequence[str]:
        """The tokens of a normalised text."""

    @staticmethod
    @abstractmethod
    def _is_token(token: str) -> bool:
        """Whether `_cut` could have made it."""

    @classmethod
    def _check(cls, tokens: Sequence[str]) -> None:
        wrong = next((token for token in tokens if not cls._is_token(token) or _HALF.search(token)), None)
        if wrong is not None:
            raise _refusal(f"the token {wrong!r}", cls.unit)
        if len(set(tokens)) != len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise _refusal(f"the token {twice!r} twice", cls.unit)


def _refusal(got: str, unit: str) -> RegardError:
    return RegardError(
        "vocabulary",
        got=got,
        needed=f"a vocabulary of {unit}: distinct tokens, each one of the {unit}",
        repair="Check the file, or learn the vocabulary again.",
    )


class Characters(Listed):
    """Every character is a token, the blank too.

    >>> letters = Characters.learn(["a cab"])
    >>> letters.pieces(letters.encode("a bad")), letters.decode(letters.encode("a bad"))
    (['a', '▁', 'b', 'a', '⁇'], 'a ba⁇')
    """

    unit: ClassVar[Unit] = "characters"
    _between: ClassVar[str] = ""

    @staticmethod
    def _cut(text: str) -> Sequence[str]:
        return text

    @staticmethod
    def _is_token(token: str) -> bool:
        return len(token) == 1 and (token == " " or not token.isspace())


class Words(Listed):
    """Whatever stands between blanks is a token.

    >>> words = Words.learn(["a cat", "a dog"])
    >>> words.encode("a dog"), words.decode(words.encode("a red dog"))
    ([4, 6], 'a ⁇ dog')
    """

    unit: ClassVar[Unit] = "words"
    _between: ClassVar[str] = " "

    @staticmethod
    def _cut(text: str) -> Sequence[str]:
        return text.split()

    @staticmethod
    def _is_token(token: str) -> bool:
        return token.split() == [token]


SIZE = 6000
# sentencepiece passes over longer sentences without a word; this is as far as it goes.
MOST_BYTES = 1 << 30
SEEDS = 2**32 - 1  # its seeds; one more would mean another seed every time
QUIET = 2  # errors only
# sentencepiece learns nothing of a text that spells one of its symbols; no normalised text has a line feed.
NAMES = {"pad_piece": "\n<pad>", "unk_piece": "\n<unk>", "bos_piece": "\n<s>", "eos_piece": "\n</s>"}
PASSED_OVER = "▅"  # it passes over every sentence that has one
NOT_LEARNT = f"{BLANK}\0 "
TOO_FEW = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")  # its words for fewer ids than characters


class Subwords:
    """Frequent words are tokens, rare ones are made of several; a token that opens a word begins with ▁.

    Made by `Subwords.learn` or `Subwords.from_bytes`. Three characters cannot be learnt, since sentencepiece keeps them
    for itself: ▁ (U+2581) reads as a blank, ▅ (U+2585) and U+0000 as UNKNOWN.

    >>> subwords = Subwords.learn(["low lower lowest", "new newer newest"], size=30)
    >>> subwords.decode(subwords.encode("newer low"))
    'newer low'
    """

    unit: ClassVar[Unit] = "bpe"

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._pieces = (*SYMBOLS, *(processor.id_to_piece(token) for token in range(COUNT, len(processor))))
        self._said = (*SPOKEN, *(piece.replace(BLANK, " ") for piece in self._pieces[COUNT:]))

    @classmethod
    def learn(cls, texts: Iterable[str], *, size: int | None = None) -> Self:
        """Merge the most frequent pairs until there are `size` ids (6,000 without it), or nothing is left to merge."""
        package = extra("sentencepiece", "unit bpe")
        sentences = filter(_is_learnable, map(normalise, texts))
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
                vocab_size=SIZE if size is None else size,
                hard_vocab_limit=False,
                character_coverage=1.0,
                normalization_rule_name="identity",  # `normalise` has done it
                remove_extra_whitespaces=False,
                max_sentence_length=MOST_BYTES,
                num_threads=1,
                minloglevel=QUIET,
                pad_id=PAD,
                unk_id=UNKNOWN,
                bos_id=BEGIN,
                eos_id=END,
                **NAMES,
            )
        except (RuntimeError, OSError) as refusal:
            if too_few := TOO_FEW.search(str(refusal)):
                raise VocabularySizeError(
                    "size",
                    got=str(SIZE if size is None else size),
                    needed=f"at least {too_few[1]}, for the symbols and every different character of the texts",
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
        """Read sentencepiece's model; refuse one that is damaged or does not number its symbols as we do.

        size: how many ids it must have; any number without it.
        """
        package = extra("sentencepiece", "unit bpe")
        processor = package.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(data)
            check_stored_size(len(processor), size)
            vocabulary = cls(processor)
            if vocabulary._is_whole():
                return vocabulary
        except RegardError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError):  # UnicodeDecodeError is a ValueError
            pass  # refused below, with every other damage
        raise RegardError(
            "vocabulary",
            got="data that are not a sentencepiece model of ours, or a damaged one",
            needed="what `Subwords.to_bytes` wrote",
            repair="Check the file, or learn the vocabulary again.",
        )

    def to_bytes(self) -> bytes:
        """sentencepiece's own model."""
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
        clean = list(map(normalise, texts))
        if dropout == 0:
            return self._processor.encode(clean, out_type=int, num_threads=1)
        # sentencepiece seeds a generator when a thread begins: a list is cut in a new thread, so one thread repeats.
        extra("sentencepiece", "unit bpe").set_random_generator_seed(seed % SEEDS)
        return self._processor.encode(
            clean, out_type=int, num_threads=1, enable_sampling=True, alpha=dropout, nbest_size=-1
        )

    def decode(self, ids: Sequence[int]) -> str:
        """See `Vocabulary.decode`."""
        check_ids(ids, len(self))
        return text_of([self._said[token] for token in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `Vocabulary.pieces`."""
        check_ids(ids, len(self))
        return [self._pieces[token] for token in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        """See `Vocabulary.words`."""
        check_ids(ids, len(self))
        return words_of([self._said[token] for token in ids])

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See `Vocabulary.spans`."""
        spans, start = [], -1  # sentencepiece puts a blank before the first word
        for piece in self._processor.encode(normalise(text), out_type=str):
            end = start + len(piece)
            opens = piece.startswith(BLANK) and piece != BLANK
            spans.append((max(start + opens, 0), end))
            start = end
        return spans

    def _is_whole(self) -> bool:
        """Whether the symbols have our numbers, words open with ▁, and every piece can be cut and read back."""
        ours = self._processor
        symbols = (ours.pad_id(), ours.unk_id(), ours.bos_id(), ours.eos_id())
        learnt = self._pieces[COUNT:]  # one of them may look like a symbol: ⁇ is a character too
        if symbols != (PAD, UNKNOWN, BEGIN, END) or not learnt or len(set(learnt)) != len(learnt):
            return False
        said = [text_of([surface]) for surface in self._said[COUNT:]]
        longest = max(said, key=len)
        # Without merges there are only letters: that is BPE, and not one of sentencepiece's other models.
        letters = ours.encode(longest, out_type=str, enable_sampling=True, alpha=1.0, nbest_size=-1)
        return letters == [BLANK, *longest] and all(
            UNKNOWN not in ids and text_of([self._said[token] for token in ids]) == text
            for text, ids in zip(said, ours.encode(said, out_type=int, num_threads=1), strict=True)
        )


def _is_learnable(text: str) -> bool:
    """Whether sentencepiece would find a character to learn in a normalised text."""
    return PASSED_OVER not in text and bool(text.strip(NOT_LEARNT))


UNITS: tuple[str, ...] = get_args(Unit)


def learn(unit: str, texts: Iterable[str], size: int | None = None, *, least: int = 1) -> Vocabulary:
    """Learn a vocabulary from the training data; a joint one is learnt from the sentences of both sides.

    Args:
        unit: "bpe", "characters" or "words".
        texts: sentences; they are normalised here.
        size: how many ids at most, the four symbols included; without it 6,000 for bpe, no limit for the others.
        least: how often a character or word must occur to get an id.

    >>> learn("words", ["one two", "two"])
    Words(6 ids)
    """
    _check_unit(unit)
    if size is not None and size <= COUNT:
        raise VocabularySizeError(
            "size",
            got=str(size),
            needed=f"more than {COUNT}, which the symbols take",
            repair="Some thousands are usual for bpe.",
        )
    if unit == "bpe":
        if least != 1:
            raise RegardError(
                "least",
                got=f"{least} for bpe",
                needed="1: subwords are limited by their number",
                repair="Pass `size` instead.",
            )
        return Subwords.learn(texts, size=size)
    return (Characters if unit == "characters" else Words).learn(texts, size=size, least=least)


def load(unit: str, data: bytes, size: int | None = None) -> Vocabulary:
    """Read what `to_bytes` of a vocabulary of this unit wrote; nothing is executed, and damage is refused.

    size: how many ids it must have; any number without it.
    """
    _check_unit(unit)
    if unit == "bpe":
        return Subwords.from_bytes(data, size)
    return (Characters if unit == "characters" else Words).from_bytes(data, size)


def _check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise RegardError(
            "unit",
            got=repr(unit),
            needed=" or ".join(map(repr, UNITS)),
            repair='"bpe" suits sentences of natural language.',
        )
