"""The models compared: names that differ, and architectures that differ in what the name says and nothing else."""

from dataclasses import replace

from regard.translation.lab.competitors import ADDITIVE, EVERY, FEW, NONE, Competitor, without_attention
from regard.translation.model import Architecture

COMMON = Architecture(embedding=8, hidden=16)


def test_names_and_folders_are_all_different():
    everyone = {*EVERY, *FEW, *(without_attention(hidden, 16) for hidden in (8, 16, 32))}
    assert len({str(one) for one in everyone}) == len({one.folder for one in everyone}) == len(everyone)
    assert Competitor("squared_distance", heads=2, hidden=8).folder == "squared-distance-2-heads-state-of-8"


def test_only_what_it_names_is_changed():
    assert Competitor("dot").changed(COMMON) == replace(COMMON, attention="dot")
    assert Competitor("additive", heads=4).changed(COMMON) == replace(COMMON, heads=4)
    assert Competitor("none", hidden=32).changed(COMMON) == replace(COMMON, attention="none", hidden=32)


def test_every_attention_competes_and_additive_with_one_head_and_with_four():
    assert {one.attention for one in EVERY} == {"none", "dot", "scaled_dot", "bilinear", "additive", "squared_distance"}
    assert {one.heads for one in EVERY if one.attention == "additive"} == {1, 4}


def test_the_common_size_without_attention_is_one_model():
    assert without_attention(16, 16) is NONE
    assert without_attention(8, 16) == Competitor("none", hidden=8)
    assert ADDITIVE in FEW
