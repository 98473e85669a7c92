"""The contract of the command line: every verb's help, its mistakes as one line, and what it does at a tiny size."""

import csv
import dataclasses
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from tests import oracle
from tests.contracts.command import run, train

import regard
from regard import RegardError
from regard.regression import NadarayaWatson, Nearest
from regard.translation import Architecture, Translator
from regard.translation.recipe import Data, Training

pytestmark = pytest.mark.cpu

# The verbs and the options that each of them has; those of a recipe are the fields of its three tables.
VERBS = {
    "tour": "out quick",
    "regress": "x y kernel bandwidth degree weights level variance empty predict-at grid predictions out drop-missing "
    "demo draws json",
    "translate": "input output alignment alignment-of alignment-out nbest beams length-penalty shortest longest "
    "batch-size ensemble device",
    "evaluate": "source target pairs corpus language reverse strict tokenize beams length-penalty batch-size device "
    "out figure json",
    "lab": "corpus seeds quick out device workers",
    "studio": "port browser no-browser cache",
    "doctor": "json",
    "bench": "cuda",
    "train": "out corpus language pairs reverse source target valid-pairs valid-source valid-target valid-share "
    "test-share strict recipe init device threads",
}
OPTIONS = {verb: options.split() for verb, options in VERBS.items()}
for table in (Architecture, Data, Training):
    OPTIONS["train"] += [field.name.replace("_", "-") for field in dataclasses.fields(table)]
# What a verb cannot do without: with it, the first thing wrong is what a test makes wrong.
NEEDED = {"translate": ["no-model", "a sentence"], "evaluate": ["no-model"], "train": ["--out", "model"]}
KINDS = ("STR", "INT", "FLOAT", "PATH", "CHOICE")


@pytest.fixture(autouse=True)
def _wide_and_elsewhere(monkeypatch, tmp_path):
    """A terminal that breaks no option, and a folder in which relative paths lead to nothing."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def help_of(capsys, *verb):
    assert run(*verb, "--help") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def assert_one_line(capsys, status, *words):
    """The command said in one line on standard error what is wrong, and nothing else; the line."""
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.startswith("regard: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    missing = [word for word in words if str(word) not in printed.err]
    assert not missing, printed.err
    return printed.err


# --- Help ------------------------------------------------------------------------------------------------------------


def test_help_lists_every_verb_with_what_it_does(capsys):
    shown = help_of(capsys)
    listed = re.findall(r"^[│ ]? ?([a-z]+) {2,}\S", shown, re.MULTILINE)
    assert sorted(listed) == sorted(VERBS)
    assert run() == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_names_every_option_and_describes_it(verb, capsys):
    shown = help_of(capsys, verb)
    assert f"regard {verb}" in shown
    assert "Examples:" in shown
    shown = shown.partition("\n")[2].partition("Examples:")[0]  # without the line of its usage
    listed = set(re.findall(r"(?<=[ │*])--([a-z-]+)", shown))
    # Negative forms of switches are listed beside them.
    negative = {name for name in listed if name.startswith("no-") and name.removeprefix("no-") in listed}
    assert listed - negative == set(OPTIONS[verb]) - negative
    for option in OPTIONS[verb]:
        row = re.search(rf"--{option}(?: --no-{option})?(?: --[a-z-]+)?(?: \w+(?:\.\.\.)?)? +(\S.*)", shown)
        assert row is not None, option
        assert re.search(r"[a-z]{2}", row[1]), option


def test_version_is_that_of_the_library(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == regard.__version__


def test_module_is_the_command():
    """In a process of its own, as a shell runs it."""
    asked = subprocess.run(
        [sys.executable, "-m", "regard", "nonsense"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr.startswith("regard: ")
    assert asked.stderr.count("\n") == 1


# --- Mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["nonsense", "--nonsense", "Train", "regres"])
def test_unknown_verb_is_one_line(word, capsys):
    assert_one_line(capsys, run(word), word, "regard --help")


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_option_is_one_line(verb, capsys):
    assert_one_line(capsys, run(verb, *NEEDED.get(verb, []), "--nonsense"), "--nonsense", f"regard {verb} --help")


@pytest.mark.parametrize("verb", VERBS)
def test_option_that_is_mistyped_is_corrected(verb, capsys):
    option = max(OPTIONS[verb], key=len)
    assert_one_line(capsys, run(verb, *NEEDED.get(verb, []), f"--{option}x"), f"--{option}x", f"--{option}")


@pytest.mark.parametrize("verb", ["tour", "lab", "doctor"])
def test_argument_of_a_verb_that_takes_none_is_one_line(verb, capsys):
    assert_one_line(capsys, run(verb, "extra"), "extra")


def options_with_values(capsys, verb):
    """The kind of value of each option, from the help."""
    shown = help_of(capsys, verb).partition("Examples:")[0]
    found = re.findall(rf"--([a-z-]+) ({'|'.join(KINDS)})\b", shown)
    assert {name for name, _ in found} <= set(OPTIONS[verb])
    return [(option, kind) for option, kind in found if f"--{option}" not in NEEDED.get(verb, [])]


@pytest.mark.parametrize("verb", VERBS)
def test_option_without_its_value_is_one_line(verb, capsys):
    for option, _ in options_with_values(capsys, verb):
        assert_one_line(capsys, run(verb, *NEEDED.get(verb, []), f"--{option}"), f"--{option}", "requires an argument")


@pytest.mark.parametrize("verb", VERBS)
def test_value_of_the_wrong_kind_is_one_line(verb, capsys):
    wrong = {"INT": ("many", "1.5", ""), "FLOAT": ("many", ""), "CHOICE": ("nonsense",), "PATH": ("",), "STR": ()}
    for option, kind in options_with_values(capsys, verb):
        for value in wrong[kind]:
            status = run(verb, *NEEDED.get(verb, []), f"--{option}", value)
            # A refusal of the library names an argument as Python does.
            assert re.search(option.replace("-", "[-_]"), assert_one_line(capsys, status))


@pytest.mark.parametrize(
    "arguments",
    [
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--kernel", "parzen"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--bandwidth", "-1"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--bandwidth", "wide"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--bandwidth", "nearest:0"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--degree", "2"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--level", "1.5"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--variance", "none"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--empty", "zero"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--grid", "0", "--predictions", "p.csv"],
        ["regress", "data.csv", "--x", "times", "--y", "speed"],
        ["regress", "data.csv", "--x", "space", "--y", "accel"],
        ["regress", "data.csv", "--x", "words", "--y", "accel"],
        ["regress", "data.csv", "--x", "times", "--y", "accel", "--out", "fit.gif"],
        ["regress", "data.csv", "--y", "accel"],
        ["regress", "data.csv", "--x", "times"],
        ["regress"],
        ["regress", "--demo", "--draws", "0"],
        ["translate"],
        ["evaluate"],
        ["evaluate", "no-model", "--corpus", "letters"],
        ["train", "--corpus", "dates"],
        ["train", "--out", "model"],
        ["train", "--out", "model", "--corpus", "letters"],
        ["train", "--out", "model", "--corpus", "dates", "--pairs", "data.csv"],
        ["train", "--out", "model", "--corpus", "dates", "--attention", "softmax"],
        ["train", "--out", "model", "--corpus", "dates", "--hidden", "0"],
        ["train", "--out", "model", "--corpus", "dates", "--epochs", "0"],
        ["train", "--out", "model", "--corpus", "dates", "--learning-rate", "-1"],
        ["train", "--out", "model", "--corpus", "dates", "--device", "abacus"],
        ["train", "--out", "model", "--source", "data.csv"],
        ["lab", "--corpus", "letters"],
        ["lab", "--seeds", "0"],
        ["studio", "--port", "99999", "--no-browser"],
        ["bench", "nonsense"],
    ],
    ids=" ".join,
)
def test_value_that_cannot_be_is_one_line_and_writes_nothing(arguments, tmp_path, capsys):
    (tmp_path / "data.csv").write_text("times,accel,words\n1,2,a\n2,3,b\n3,1,c\n4,4,d\n", encoding="utf-8")
    assert_one_line(capsys, run(*arguments))
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


READ = [
    ["regress", "{}", "--x", "a", "--y", "b"],
    ["regress", "{data}", "--x", "a", "--y", "b", "--predict-at", "{}", "--predictions", "p.csv"],
    ["translate", "{}", "a sentence"],
    ["translate", "{model}", "--input", "{}"],
    ["evaluate", "{}", "--pairs", "{pairs}"],
    ["evaluate", "{model}", "--pairs", "{}"],
    ["evaluate", "{model}", "--source", "{}", "--target", "{pairs}"],
    ["evaluate", "{model}", "{}", "--pairs", "{pairs}"],
    ["train", "--out", "new", "--pairs", "{}"],
    ["train", "--out", "new", "--source", "{pairs}", "--target", "{}"],
    ["train", "--out", "new", "--pairs", "{pairs}", "--valid-pairs", "{}"],
    ["train", "--out", "new", "--pairs", "{pairs}", "--recipe", "{}"],
    ["train", "--out", "new", "--pairs", "{pairs}", "--init", "{}"],
    ["studio", "{}", "--no-browser"],
]


@pytest.mark.parametrize("what", ["missing", "folder", "loop"])
@pytest.mark.parametrize("arguments", READ, ids=" ".join)
def test_file_that_cannot_be_read_is_one_line(arguments, what, model, tmp_path, capsys):
    (tmp_path / "data.csv").write_text("a,b\n1,2\n2,3\n3,5\n4,4\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    places = {"data": "data.csv", "pairs": "pairs.tsv", "model": model}
    status = run(*(word.format(what, **places) for word in arguments))
    assert_one_line(capsys, status, what)
    assert not (tmp_path / "new" / "model.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["regress", "data.csv", "--x", "a", "--y", "b", "--bandwidth", "1", "--out", "{}.svg"],
        ["regress", "data.csv", "--x", "a", "--y", "b", "--bandwidth", "1", "--predictions", "{}.csv"],
        ["translate", "{model}", "one", "--output", "{}.txt"],
        ["translate", "{model}", "one", "--alignment", "json", "--alignment-out", "{}.json"],
        ["evaluate", "{model}", "--pairs", "pairs.tsv", "--out", "{}.json"],
    ],
    ids=" ".join,
)
def test_result_in_a_folder_that_does_not_exist_is_one_line(arguments, model, tmp_path, capsys):
    (tmp_path / "data.csv").write_text("a,b\n1,2\n2,3\n3,5\n4,4\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("one\t1\n", encoding="utf-8")
    status = run(*(word.format("nowhere/result", model=model) for word in arguments))
    assert_one_line(capsys, status, "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_debug_shows_where_an_error_came_from(capsys):
    with pytest.raises(RegardError, match="no-model"):
        regard_debug("translate", "no-model", "a sentence", "--debug")
    assert capsys.readouterr().out == ""


def regard_debug(*arguments):
    """The command with --debug, whose error is not turned into a status."""
    import regard.cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["regard", *arguments])
        regard.cli.main()


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_says_what_would_run(capsys):
    assert run("doctor", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"machine", "extras", "backends"}
    assert any(regard.__version__ in str(value) for value in told["machine"].values())
    assert {finding["backend"] for finding in told["backends"]} <= {"torch", "reference", "blocked", "triton"}
    assert run("doctor") == 0
    shown = capsys.readouterr().out
    assert all(f"regard[{extra}]" in shown for extra in told["extras"])
    assert all(finding["what"] in shown for finding in told["backends"])


# --- regress ---------------------------------------------------------------------------------------------------------

ROWS = 20


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(3)
    columns = np.column_stack([rng.uniform(0, 4, (ROWS, 2)), rng.standard_normal(ROWS), rng.integers(1, 4, ROWS)])
    path = tmp_path / "data.csv"
    lines = [",".join(map(repr, row)) for row in columns.tolist()]
    path.write_text("\n".join(["east,north,height,times", *lines]) + "\n", encoding="utf-8")
    return path, columns


def read_table(path):
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    return names, np.array(rows, dtype=float)


@pytest.mark.parametrize("kernel", oracle.KERNELS)
@pytest.mark.parametrize("degree", [0, 1])
def test_regress_writes_the_predictions_of_the_estimator(data, tmp_path, capsys, kernel, degree):
    path, columns = data
    out = tmp_path / "p.csv"
    options = ["--kernel", kernel, "--bandwidth", "2.5", "--degree", degree, "--grid", 7, "--predictions", out]
    assert run("regress", path, "--x", "east", "--y", "height", *options) == 0
    assert "height" in capsys.readouterr().out
    names, table = read_table(out)
    assert names[0] == "east"
    at, found = table[:, :1], table[:, 1]
    assert len(at) == 7
    np.testing.assert_allclose(at[:, 0], np.linspace(columns[:, 0].min(), columns[:, 0].max(), 7), rtol=1e-9)
    model = NadarayaWatson(kernel, 2.5, degree=degree).fit(columns[:, :1], columns[:, 2])
    np.testing.assert_allclose(found, model.predict(at), rtol=1e-9)
    band = model.confidence_band(at)
    np.testing.assert_allclose(table[:, 2:4], np.column_stack([band.lower, band.upper]), rtol=1e-7)


@pytest.mark.parametrize(
    ("bandwidth", "meant"),
    [
        ("loo", "loo"),
        ("aicc", "aicc"),
        ("gcv", "gcv"),
        ("scott", "scott"),
        ("silverman", "silverman"),
        ("1.5", 1.5),
        ("nearest:5", Nearest(5)),
        ("nearest:loo", Nearest("loo")),
    ],
)
@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
def test_regress_reports_the_width_of_the_estimator_as_json(data, capsys, bandwidth, meant):
    path, columns = data
    assert run("regress", path, "--x", "east", "--y", "height", "--bandwidth", bandwidth, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    model = NadarayaWatson("gaussian", meant).fit(columns[:, :1], columns[:, 2])
    width = told["bandwidth"]
    if isinstance(meant, Nearest):
        assert width == {"nearest": model.bandwidth_.k}
    else:
        assert width == pytest.approx(model.bandwidth_)
    assert (told["rows"], told["x"], told["y"]) == (ROWS, ["east"], "height")


def test_regress_takes_several_columns_weights_and_places(data, tmp_path, capsys):
    path, columns = data
    places = tmp_path / "places.csv"
    places.write_text("north,east\n1.0,2.0\n2.0,1.0\n3.0,2.5\n", encoding="utf-8")
    out = tmp_path / "p.csv"
    given = ["--x", "east", "--x", "north", "--y", "height", "--bandwidth", "2,3", "--weights", "times"]
    assert run("regress", path, *given, "--predict-at", places, "--predictions", out) == 0
    names, table = read_table(out)
    assert names[:2] == ["east", "north"]
    at = np.array([[2.0, 1.0], [1.0, 2.0], [2.5, 3.0]])
    np.testing.assert_allclose(table[:, :2], at)
    model = NadarayaWatson("gaussian", [2.0, 3.0]).fit(columns[:, :2], columns[:, 2], columns[:, 3])
    np.testing.assert_allclose(table[:, 2], model.predict(at), rtol=1e-9)


@pytest.mark.parametrize(("name", "start"), [("fit.svg", b"<?xml"), ("fit.png", b"\x89PNG"), ("fit.pdf", b"%PDF")])
def test_regress_draws_a_figure(data, tmp_path, capsys, name, start):
    assert run("regress", data[0], "--x", "east", "--y", "height", "--bandwidth", "1", "--out", tmp_path / name) == 0
    assert (tmp_path / name).read_bytes().startswith(start)


def test_regress_refuses_blank_cells_or_leaves_them_out(tmp_path, capsys):
    path = tmp_path / "blank.csv"
    path.write_text("x,y\n1,2\n2,\n3,5\n4,4\n5,1\n", encoding="utf-8")
    given = ["regress", path, "--x", "x", "--y", "y", "--bandwidth", "1"]
    assert_one_line(capsys, run(*given), "blank.csv")
    assert run(*given, "--drop-missing", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 4


# --- train, translate, evaluate --------------------------------------------------------------------------------------

NUMBERS = ["one", "two", "three", "four", "five"]
PAIRS = [(f"{a} {b}", f"{i} {j}") for i, a in enumerate(NUMBERS) for j, b in enumerate(NUMBERS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has learnt enough to say something."""
    folder = tmp_path_factory.mktemp("models") / "numbers"
    learning = ["--epochs", 12, "--learning-rate", 0.03, "--validate-from", 12]
    return train(folder, PAIRS, "--source-unit", "words", "--target-unit", "words", *learning)


def test_train_says_where_the_model_is_and_its_commands_work(tmp_path, capsys):
    folder = train(tmp_path / "model", PAIRS, "--source-unit", "words", "--target-unit", "words", "--attention", "dot")
    printed = capsys.readouterr()
    assert str(folder) in printed.out
    assert "epoch 1" in printed.err
    assert Translator.load(folder).models[0].model.architecture.attention == "dot"
    command = next(line.split() for line in printed.out.splitlines() if line.strip().startswith("regard translate"))
    assert command[:3] == ["regard", "translate", str(folder)]
    assert run(*command[1:3], "one two") == 0


def test_recipe_file_gives_what_no_flag_says(tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[model]\nattention = "gaussian"\n\n[data]\nsource_unit = "words"\n', encoding="utf-8")
    folder = train(tmp_path / "model", PAIRS, "--recipe", recipe, "--target-unit", "characters")
    translator = Translator.load(folder)
    assert translator.models[0].model.architecture.attention == "gaussian"
    assert (translator.models[0].model.architecture.embedding, translator.source_vocabulary.unit) == (6, "words")
    assert translator.target_vocabulary.unit == "characters"


@pytest.mark.parametrize(
    "text", ["[model]\nwidth = 3\n", "[speed]\n", "epochs = 3\n", "[model\n", "[training]\nepochs = 0\n"]
)
def test_wrong_recipe_is_one_line(text, tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    assert_one_line(capsys, run("train", "--corpus", "dates", "--out", "model", "--recipe", "recipe.toml"))


def test_training_again_goes_on_where_it_ended(tmp_path, capsys):
    options = ["--source-unit", "words", "--target-unit", "words"]
    folder = train(tmp_path / "model", PAIRS, *options)
    before = (folder / "model.safetensors").read_bytes()
    capsys.readouterr()
    train(tmp_path / "model", PAIRS, *options)
    assert "trained to the end already" in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == before


def test_translate_prints_the_translations_of_the_translator(model, tmp_path, capsys, monkeypatch):
    sentences = ["one two", "five", "four four one"]
    expected = [one.text for one in Translator.load(model).translate(sentences, longest=6)]
    assert run("translate", model, *sentences, "--longest", 6) == 0
    assert capsys.readouterr().out.splitlines() == expected
    (tmp_path / "in.txt").write_text("".join(f"{one}\n" for one in sentences), encoding="utf-8")
    assert run("translate", model, "--input", "in.txt", "--output", "out.txt", "--longest", 6, "--batch-size", 1) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == expected
    lines = io.TextIOWrapper(io.BytesIO((tmp_path / "in.txt").read_bytes()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", lines)
    assert run("translate", model, "--longest", 6) == 0
    assert capsys.readouterr().out.splitlines() == expected
    assert run("translate", model, *sentences, "--longest", 6, "--ensemble", model) == 0
    assert capsys.readouterr().out.splitlines() == expected


def test_translate_prints_n_best_with_their_scores(model, capsys):
    (best,) = Translator.load(model).translate(["one two"], beams=4, nbest=3, shortest=2, longest=6)
    assert run("translate", model, "one two", "--beams", 4, "--nbest", 3, "--shortest", 2, "--longest", 6) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [text for _, text, _ in rows] == [one.text for one in (best, *best.others)]
    assert [float(score) for *_, score in rows] == pytest.approx([one.score for one in (best, *best.others)], abs=1e-3)
    assert len({number for number, *_ in rows}) == 1


@pytest.mark.parametrize("form", ["pharaoh", "json"])
def test_translate_writes_alignments_as_text(model, tmp_path, capsys, form):
    given = ["translate", model, "one two three", "--shortest", 3, "--longest", 6, "--alignment", form]
    (found,) = Translator.load(model).translate(["one two three"], shortest=3, longest=6)
    assert run(*given) == 0
    text, _, alignment = capsys.readouterr().out.rstrip("\n").partition("\t")
    assert text == found.text
    assert run(*given, "--alignment-out", tmp_path / "a.txt") == 0
    assert (tmp_path / "a.txt").read_text(encoding="utf-8").rstrip("\n") == alignment
    if form == "pharaoh":
        links = [tuple(map(int, link.split("-"))) for link in alignment.split()]
        assert all(0 <= source < 3 and 0 <= target < len(text.split()) for source, target in links)
    else:
        json.loads(alignment)


def test_translate_draws_an_alignment(model, tmp_path, capsys):
    given = ["--alignment", "svg", "--alignment-out", tmp_path / "look.svg"]
    assert run("translate", model, "one two", "--shortest", 3, *given) == 0
    drawn = (tmp_path / "look.svg").read_text(encoding="utf-8")
    assert "<svg" in drawn


def test_sentence_that_begins_with_a_dash_follows_two_dashes(model, capsys):
    assert run("translate", model, "--longest", 5, "--", "- one") == 0
    expected = Translator.load(model).translate(["- one"], longest=5)[0].text
    assert capsys.readouterr().out.splitlines() == [expected]


def test_evaluate_counts_what_the_translator_says(model, tmp_path, capsys):
    translator = Translator.load(model)
    words = ("one", "two", "three", "four", "five")
    candidates = translator.translate(f"{first} {second}" for first in words for second in words)
    sources, said = zip(*[(one.source.text, one.text) for one in candidates if one.text][:3], strict=True)
    targets = [said[0], "nothing like it", said[2]]
    (tmp_path / "test.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(sources, targets, strict=True)))
    assert run("evaluate", model, "--pairs", "test.tsv", "--json", "--out", "report.json") == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == told
    (report,) = told["evaluations"]
    assert report["count"] == 3
    assert report["exact"] == pytest.approx(2 / 3)
    assert report["perplexity"] == pytest.approx(translator.perplexity(sources, targets), rel=1e-4)
    scores = {metric["name"]: metric["score"] for metric in report["metrics"]}
    assert scores["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(said, [targets]).score, abs=1e-6)
    assert scores["chrF2"] == pytest.approx(sacrebleu.corpus_chrf(said, [targets]).score, abs=1e-6)
    assert run("evaluate", model, "--pairs", "test.tsv") == 0
    assert "BLEU" in capsys.readouterr().out


def test_bad_lines_are_named_and_left_out_or_refused(tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("one\t1\nno tab\ntwo\t2\n", encoding="utf-8")
    (tmp_path / "valid.tsv").write_text("one\t1\n", encoding="utf-8")
    given = ["train", "--pairs", "pairs.tsv", "--valid-pairs", "valid.tsv", "--out", "model", "--epochs", 1]
    small = ["--embedding", 4, "--hidden", 4, "--source-unit", "words", "--target-unit", "words", "--device", "cpu"]
    assert_one_line(capsys, run(*given, *small, "--strict"), "pairs.tsv", "line 2")
    assert run(*given, *small) == 0
    assert "line 2" in capsys.readouterr().err
