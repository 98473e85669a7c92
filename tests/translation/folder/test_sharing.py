"""Names of shared tensors: each tensor once, with all its names."""

from tests.translation.models import random_model

from regard.translation.folder.sharing import names_of_each


def test_a_joint_and_tied_model_has_one_table_of_words():
    model = random_model(joint=True, tied=True).model
    names = names_of_each(model)
    assert ["source_words.weight", "target_words.weight", "output.weight"] in names
    assert sorted(name for each in names for name in each) == sorted(model.state_dict())
    assert len(names) == len(list(model.parameters()))


def test_a_model_that_shares_nothing_has_one_name_for_each():
    assert all(len(names) == 1 for names in names_of_each(random_model().model))
