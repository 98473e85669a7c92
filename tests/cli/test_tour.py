"""`regard tour`: the verb hands its folder to the tour."""

from regard.cli.app import run


def test_writes_into_the_folder_it_is_given(tmp_path, capsys):
    assert run(["tour", "--out", str(tmp_path / "walk")]) == 0
    assert (tmp_path / "walk" / "tour.svg").exists()
    assert "heaviest keys" in capsys.readouterr().out
