"""What a bit-identical continuation depends on."""

import torch

from regard.translation.training.machine import differences, facts


def test_facts_name_build_processor_and_threads():
    told = facts(torch.device("cpu"))
    assert told["torch"] == torch.__version__
    assert all(type(fact) is str for fact in told.values())  # a checkpoint that executes nothing holds no other type
    assert told["threads"] == str(torch.get_num_threads())
    assert told["processor"]
    assert differences(told, facts(torch.device("cpu"))) == ""


def test_differences_are_told_in_words():
    then = {"torch": "2.12", "threads": "2"}
    assert differences(then, {"torch": "2.13", "threads": "2"}) == "torch was 2.12, is 2.13"
    assert differences(then, {"threads": "4", "gpu": "H200"}) == (
        "gpu was not used, is H200; threads was 2, is 4; torch was 2.12, is not used"
    )
