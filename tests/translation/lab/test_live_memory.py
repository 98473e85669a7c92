"""Bytes alive at once: counted by hand for small programs."""

import os
import sys

import pytest
import torch

import regard
from regard.translation.lab.live_memory import peak_bytes

CPU = torch.device("cpu")
KILO = 1000 * 4  # bytes of 1,000 floats
FEW = 200  # bytes of the numbers that are added


def test_what_is_freed_is_not_counted_twice():
    given = torch.ones(1000)

    def chain():
        tensor = given
        for _ in range(10):
            tensor = tensor + 1

    assert peak_bytes(chain, CPU) == pytest.approx(2 * KILO, abs=FEW)


def test_what_is_kept_adds_up():
    given = torch.ones(1000)
    found = peak_bytes(lambda: [given + number for number in range(10)], CPU)
    assert found == pytest.approx(10 * KILO, abs=FEW)


def test_views_and_changes_in_place_are_nothing_new():
    given = torch.ones(1000)
    assert peak_bytes(lambda: given.view(10, 100).t().add_(1), CPU) <= FEW


def test_gradients_are_followed_through_hand_written_functions():
    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.aside = [x + number for number in range(5)]  # not by save_for_backward: hooks would not see it
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * len(ctx.aside)

    given = torch.ones(1000, requires_grad=True)
    found = peak_bytes(lambda: torch.autograd.grad(Keeping.apply(given).sum(), given), CPU)
    assert 6 * KILO <= found <= 9 * KILO


def test_a_longer_sequence_takes_more():
    weight = torch.randn(20, 20, requires_grad=True)

    def steps(count):
        def run():
            state = torch.ones(50, 20)
            for _ in range(count):
                state = torch.tanh(state @ weight)
            torch.autograd.grad(state.sum(), weight)

        return run

    short, long = peak_bytes(steps(5), CPU), peak_bytes(steps(20), CPU)
    assert long - short == pytest.approx(15 * 50 * 20 * 4, abs=FEW)


def test_the_buffers_of_an_operator_are_seen():
    query = torch.randn(1, 64, 32)
    score = regard.scores.Additive(32, 32, 32)
    with torch.no_grad():
        found = peak_bytes(lambda: regard.attend(query, query, query, score, backend="blocked"), CPU)
    whole = 2 * 64 * 32 + 64 * 64 + 64 * 32  # projected queries and keys, scores, output
    assert found > 3 * 4 * whole  # a tanh for each query, key and hidden unit of a tile


def test_nothing_is_said_but_stderr_is_there_afterwards(capfd):
    kept = [torch.ones(1000)]
    peak_bytes(kept.clear, CPU)  # the end of a block that was there before
    print("still here", file=sys.stderr)
    assert capfd.readouterr() == ("", "still here\n")


def test_stderr_is_there_after_a_failure(capfd):
    with pytest.raises(ZeroDivisionError):
        peak_bytes(lambda: 1 / 0, CPU)
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"
