"""A warning is one line, said once, and without the code that warned."""

import warnings

from regard.cli.warned import in_one_line


def test_each_is_said_once_in_one_line(capsys):
    before = warnings.showwarning
    with warnings.catch_warnings(action="always"), in_one_line():
        for text in ("no font\n writes Thai", "no font writes Thai", "a gap"):
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err == "regard: no font writes Thai\nregard: a gap\n"
    assert warnings.showwarning is before
