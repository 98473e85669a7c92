"""The one error: four parts in one sentence, a ValueError, and the same after a journey between processes."""

import copy
import pickle

import pytest

from regard import RegardError

ERROR = RegardError("key", got="dim 3", needed="dim 4", repair="Project it.")


def test_the_sentence_names_argument_got_needed_and_repair():
    assert str(ERROR) == "key: got dim 3; needed dim 4. Project it."


def test_the_parts_can_be_read():
    assert (ERROR.argument, ERROR.got, ERROR.needed, ERROR.repair) == ("key", "dim 3", "dim 4", "Project it.")


def test_it_is_a_value_error():
    with pytest.raises(ValueError, match="key: got"):
        raise ERROR


@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_it_survives_pickling_and_copying(travel):
    back = travel(ERROR)
    assert type(back) is RegardError
    assert str(back) == str(ERROR)
    assert back.repair == ERROR.repair


def test_a_refusal_may_be_said_of_the_name_that_the_user_knows():
    told = RegardError("out", got="taken", needed="a folder", repair="Choose another.").about("alignment_out")
    assert str(told) == "alignment_out: got taken; needed a folder. Choose another."
    assert told.argument == "alignment_out"


class NarrowError(RegardError):
    """A subclass, as the packages above have them."""


def test_about_keeps_the_class_of_the_error():
    told = NarrowError("out", got="taken", needed="a folder", repair="Choose another.").about("alignment_out")
    assert type(told) is NarrowError
    assert told.argument == "alignment_out"


def test_a_long_value_is_cut_in_the_middle():
    told = RegardError("unit", got="<" + "a" * 10**6 + ">", needed="gru", repair="Write gru.")
    assert len(str(told)) < 400
    assert str(told).startswith("unit: got <aaa")
    assert "a ... (1,000,002 characters) ... a" in str(told)
    assert str(told).endswith("a>; needed gru. Write gru.")
    assert str(pickle.loads(pickle.dumps(told.about("cell")))) == str(told.about("cell"))
