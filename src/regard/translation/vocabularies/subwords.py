"""A vocabulary of subwords, by byte-pair encoding in sentencepiece."""

import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from typing import Any, ClassVar, Self

from regard.errors import RegardError
from regard.translation.extras import extra
from regard.translation.symbols import BEGIN, COUNT, END, PAD, UNKNOWN
from regard.translation.text import normalise
from regard.translation.vocabularies.surfaces import BLANK, SPOKEN, SYMBOLS, text_of, words_of
from regard.translation.vocabularies.vocabulary import Unit, VocabularySizeError, check_ids, check_stored_size

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
