"""What a training learns from: pairs to train and to validate on, and the vocabularies of the former."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard.errors import RegardError
from regard.translation.corpora import BuiltIn, Example
from regard.translation.pairs import Pair
from regard.translation.recipe import Recipe
from regard.translation.vocabularies import Vocabulary, VocabularySizeError, learn


@dataclass(frozen=True)
class Corpus:
    """Pairs for training and validation.

    name: of a built-in corpus, or of the file. test: what evaluation may look at once, if the corpus brings its own.
    """

    name: str
    train: Sequence[Pair | Example]
    valid: Sequence[Pair | Example]
    test: Sequence[Pair | Example] = ()

    def __post_init__(self) -> None:
        """Refuse a corpus that nothing can be learnt from."""
        for part, pairs in (("train", self.train), ("valid", self.valid)):
            if not pairs:
                raise RegardError(
                    part,
                    got=f"no pairs in {self.name}",
                    needed="at least one pair to train on and one to validate on",
                    repair="Check the files, or give a larger share to validation.",
                )

    @classmethod
    def of(cls, name: str, built_in: BuiltIn) -> "Corpus":
        """A built-in corpus."""
        return cls(name, built_in.train, built_in.valid, built_in.test)

    def fingerprint(self) -> str:
        """A digest of the training pairs and the validation pairs: a resumed training must have the same of both."""
        digest = hashlib.sha256()
        for pairs in (self.train, self.valid):
            digest.update(f"{len(pairs)}\n".encode())  # a pair that moves from one to the other changes the digest
            for pair in pairs:
                digest.update(f"{pair.source}\t{pair.target}\n".encode())
        return digest.hexdigest()


def learn_vocabularies(recipe: Recipe, train: Iterable[Pair | Example]) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target, from training data only; one object where they are joint."""
    data, pairs = recipe.data, list(train)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    try:
        if recipe.model.joint:
            joint = learn(data.source_unit, sources + targets, data.vocabulary_size)
            return joint, joint
        return learn(data.source_unit, sources, data.vocabulary_size), learn(
            data.target_unit, targets, data.vocabulary_size
        )
    except VocabularySizeError as refusal:
        raise refusal.about("vocabulary_size") from None
