"""The names of a recipe as flags."""

from dataclasses import fields

from regard.cli.recipe_flags import TABLES, RecipeFlags


def test_every_name_is_there_with_its_type_and_its_help():
    names = {entry.name: entry for table in TABLES.values() for entry in fields(table)}
    assert set(RecipeFlags.__annotations__) == set(names)
    for name, flag in RecipeFlags.__annotations__.items():
        assert flag.__origin__ == names[name].type
        (parameter,) = flag.__metadata__
        assert len(parameter.help) > 10


def test_none_is_required_and_a_default_is_shown():
    assert RecipeFlags.__required_keys__ == frozenset()
    (parameter,) = RecipeFlags.__annotations__["epochs"].__metadata__
    assert parameter.help.endswith("[default: 30]")
