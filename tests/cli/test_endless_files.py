"""Files that never end, and pipes: `regard regress` reads what it can use and refuses the rest in bounded memory."""

import os
import resource
import subprocess
import sys

import pytest

REGRESS = [sys.executable, "-m", "regard", "regress"]
ROWS = "x,y\n" + "".join(f"{i},{i * i % 7}\n" for i in range(30))


def run(arguments, **options):
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))  # noqa: E731
    return subprocess.run(
        [*REGRESS, *arguments], capture_output=True, text=True, timeout=240, preexec_fn=limit, check=False, **options
    )


@pytest.mark.parametrize("name", ["file", "predict_at"])
def test_an_endless_device_is_refused(tmp_path, name):
    data = tmp_path / "data.csv"
    data.write_text(ROWS, encoding="utf-8")
    files = ["/dev/zero"] if name == "file" else [str(data), "--predict-at", "/dev/zero", "--predictions", "p.csv"]
    ended = run([*files, "--x", "x", "--y", "y"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"regard: {name}: got /dev/zero, with a line of more than 1,048,576 characters;")


@pytest.mark.parametrize("start", ["x,y\\n", ""])
def test_an_endless_pipe_is_refused(start):
    blank = " " * 1000
    reading, writing = os.pipe()
    with subprocess.Popen(["sh", "-c", f"printf '{start}'; exec yes '{blank}'"], stdout=writing) as endless:
        os.close(writing)
        ended = run(["/dev/stdin", "--x", "x", "--y", "y"], stdin=reading)
        os.close(reading)
        endless.wait(10)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("regard: file: got /dev/stdin, which is no regular file, of more than 67,108,864")


def test_a_pipe_is_read_as_a_file_is(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text(ROWS, encoding="utf-8")
    wanted = ["--x", "x", "--y", "y", "--bandwidth", "1"]
    piped = run(["/dev/stdin", *wanted], input=ROWS)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert piped.stdout == run([str(data), *wanted]).stdout
