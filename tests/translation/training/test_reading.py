"""From flags to a corpus: what goes together, what is split off, and which lines were bad."""

import gzip

import pytest
from tests.refuses import refuses
from tests.translation.training.toys import make_pairs, write_tsv

from regard.translation.training.reading import Sources, check, read

PAIRS = make_pairs(300, longest=6)


@pytest.fixture
def file(tmp_path):
    return write_tsv(tmp_path / "pairs.tsv", PAIRS)


def test_pairs_are_split_by_source_sentence_and_alike_each_time(file):
    corpus = read(Sources(pairs=file, valid_share=0.1, test_share=0.1))
    parts = [{pair.source for pair in part} for part in (corpus.train, corpus.valid, corpus.test)]
    assert all(parts)
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert sorted([*corpus.train, *corpus.valid, *corpus.test]) == sorted(PAIRS)
    assert read(Sources(pairs=file, valid_share=0.1, test_share=0.1)) == corpus
    assert corpus.name == "pairs.tsv"


def test_files_for_validation_leave_all_pairs_to_train(file, tmp_path):
    valid = write_tsv(tmp_path / "valid.tsv", PAIRS[:7])
    corpus = read(Sources(pairs=file, valid_pairs=valid))
    assert (corpus.train, corpus.valid, corpus.test) == (PAIRS, PAIRS[:7], ())


def test_two_files_and_two_more_gzipped_or_not(tmp_path):
    paths = {}
    for side in ("source", "target"):
        text = "".join(f"{getattr(pair, side)}\n" for pair in PAIRS)
        paths[side] = tmp_path / f"train.{side}"
        paths[side].write_text(text, encoding="utf-8")
        paths[f"valid_{side}"] = tmp_path / f"valid.{side}.gz"
        paths[f"valid_{side}"].write_bytes(gzip.compress(text.encode()))
    corpus = read(Sources(**paths))
    assert corpus.train == corpus.valid == PAIRS


def test_the_second_column_may_be_the_source(file, tmp_path):
    valid = write_tsv(tmp_path / "valid.tsv", PAIRS[:2])
    corpus = read(Sources(pairs=file, reverse=True, valid_pairs=valid))
    assert corpus.train[0] == (PAIRS[0].target, PAIRS[0].source)
    assert corpus.valid[0] == (PAIRS[0].target, PAIRS[0].source)


def test_bad_lines_are_told_one_by_one_and_then_in_all(file, capsys):
    with file.open("a", encoding="utf-8") as more:
        more.write("no tab\n" * 6 + "\tempty\n")
    told = []
    read(Sources(pairs=file, valid_share=0.1, test_share=0.1), told.append)
    assert len(told) == 6
    assert told[0] == "skipped pairs.tsv, line 301: no tab between source and target ('no tab')"
    assert told[-1].startswith(
        "7 lines skipped: 6 with no tab between source and target (first: line 301 of pairs.tsv)"
    )
    read(Sources(pairs=file, valid_share=0.1, test_share=0.1))
    assert capsys.readouterr().err.splitlines() == [f"regard: {line}" for line in told]
    with refuses("pairs", "301"):
        read(Sources(pairs=file, strict=True))


def test_few_bad_lines_need_no_summary(file):
    with file.open("a", encoding="utf-8") as more:
        more.write("no tab\n")
    told = []
    read(Sources(pairs=file, valid_share=0.1, test_share=0.1), told.append)
    assert len(told) == 1


def test_a_built_in_corpus_brings_its_parts():
    corpus = read(Sources(corpus="lists"))
    assert corpus.name == "lists"
    assert len(corpus.train) > len(corpus.test) > 0


@pytest.mark.parametrize(
    ("given", "argument", "word"),
    [
        ({}, "train", "nothing to train on"),
        ({"corpus": "dates", "pairs": "a"}, "train", "several corpora"),
        ({"pairs": "a", "source": "b", "target": "c"}, "train", "several corpora"),
        ({"source": "a"}, "target", "none"),
        ({"target": "a"}, "source", "none"),
        ({"pairs": "a", "valid_source": "b"}, "valid_target", "none"),
        (
            {"pairs": "a", "valid_pairs": "b", "valid_source": "c", "valid_target": "d"},
            "valid_pairs",
            "--valid-source too",
        ),
        ({"corpus": "dates", "language": "de"}, "language", "the corpus numbers"),
        ({"source": "a", "target": "b", "reverse": True}, "reverse", "no --pairs"),
        ({"corpus": "dates", "valid_pairs": "a"}, "valid_pairs", "the corpus dates"),
        ({"corpus": "dates", "valid_share": 0.5}, "valid_share", "the corpus dates"),
        ({"corpus": "dates", "valid_target": "a"}, "valid_target", "the corpus dates"),
        (
            {"pairs": "a", "valid_share": 0},
            "valid_share",
            "a share of the pairs, or",
        ),
    ],
)
def test_what_does_not_go_together_is_named(given, argument, word):
    with refuses(argument, word):
        check(Sources(**given))


@pytest.mark.parametrize("missing", ["pairs", "source", "target"])
def test_a_missing_file_to_validate_on_is_not_blamed_on_the_pairs_to_train_on(file, tmp_path, missing):
    given = ("valid_pairs",) if missing == "pairs" else ("valid_source", "valid_target")
    paths = {name: tmp_path / name for name in given}
    for name, path in paths.items():
        if name != f"valid_{missing}":
            path.write_text("one\n", encoding="utf-8")
    with refuses(f"valid_{missing}", "No such file"):
        read(Sources(pairs=file, **paths))


def test_files_without_a_pair_to_validate_on_are_named_with_their_flags(file, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    other.touch()
    for given, files in (
        ({"valid_pairs": one}, f"{one}"),
        ({"valid_source": one, "valid_target": other}, f"{one} and {other}"),
    ):
        with refuses(", ".join(given), f"no pairs in {files}"):
            read(Sources(pairs=file, **given))


@pytest.mark.parametrize(
    ("shares", "argument", "word"),
    [
        ({"valid_share": -0.1}, "valid_share", "-0.1"),
        ({"test_share": 1.0}, "test_share", "a share from 0"),
        ({"valid_share": 0.5, "test_share": 0.5}, "valid_share, test_share", "0.5 and 0.5"),
        ({"valid_share": 1e-9}, "valid_share", "no pair for valid out of 300"),
    ],
)
def test_shares_that_make_no_sense_are_named_by_their_flags(file, shares, argument, word):
    with refuses(argument, word):
        read(Sources(pairs=file, **shares))


def test_a_corpus_that_is_not_built_in():
    with refuses("corpus", "'poems'", "'dates'", "'numbers'"):
        read(Sources(corpus="poems"))
