"""What a training tells can be told to nobody."""

from regard.translation.training.events import Warned, silence


def test_silence_says_nothing(capsys):
    silence(Warned("text"))
    assert capsys.readouterr().out == ""
