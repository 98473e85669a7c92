"""Compact kernels by boxes give the sums of all pairs; blocks hold every point once and are compact."""

import itertools
from dataclasses import replace

import pytest
import torch
from tests import bounds
from tests.regression.sums.exact import Kernel, task_of

from regard.regression.sums import all_pairs, boxes
from regard.regression.sums.boxes import pack
from regard.regression.sums.observations import Observations

COMPACT = ["boxcar", "triangular", "epanechnikov", "biweight", "tricube", "cosine_kernel"]


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Small blocks, and no way back to all pairs."""
    for name, number in [("MAX_QUERIES", 32), ("KEYS_PER_BOX", 8), ("BOXES_PER_BLOCK", 5), ("MAX_SHARE", 1.0)]:
        monkeypatch.setattr(boxes, name, number)


@pytest.fixture
def pooled_keys(monkeypatch):
    """How many pairs the operator was given."""
    pairs, record_of = [], all_pairs.attended
    monkeypatch.setattr(
        all_pairs, "attended", lambda q, d, *rest: pairs.append(len(q) * len(d.key)) or record_of(q, d, *rest)
    )
    return pairs


def uniform(dim, dtype=torch.float64, queries=301, keys=403):
    draw = [torch.rand(queries, dim), torch.rand(keys, dim), torch.randn(keys, 2)]
    query, key, value = (x.to(dtype) for x in draw)
    return query, Observations(key, value)


def assert_as_all_pairs(query, data, kernel, **settings):
    """Up to some roundings of the dtype."""
    found = boxes.pool(task_of(query, data, kernel, **settings))
    by_pairs = all_pairs.pool(task_of(query, data, kernel, **settings))
    names = ["mean", "log_mass"]
    pairs = [(name, getattr(found, name), getattr(by_pairs, name)) for name in names]
    if settings.get("moments"):
        pairs += [
            (name, getattr(found.moments, name), getattr(by_pairs.moments, name)) for name in found.moments._fields
        ]
    for name, mine, theirs in pairs:
        bounds.assert_close(mine, theirs, bounds.roundings(theirs, 64, query.dtype), name)
        assert mine.dtype == theirs.dtype
    return found


@pytest.mark.parametrize("name", COMPACT)
@pytest.mark.parametrize("dim", [2, 3])
def test_every_compact_kernel(name, dim, pooled_keys):
    query, data = uniform(dim)
    width = 0.1 if dim == 2 else 0.2
    found = assert_as_all_pairs(query, data, Kernel(name, width))
    assert sum(pooled_keys[:-1]) < 0.4 * pooled_keys[-1], "most pairs were left out"
    assert not found.log_mass.isneginf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6])
def test_offsets(dtype, offset):
    query, data = uniform(2, dtype)
    scale = 1.0 if dtype == torch.float64 else 1 + abs(offset) / 100
    query, data = scale * query + offset, replace(data, key=scale * data.key + offset)
    for name in ("boxcar", "epanechnikov"):
        assert_as_all_pairs(query, data, Kernel(name, 0.15 * scale))


@pytest.mark.parametrize("dim", [2, 3])
def test_clusters_far_apart_and_queries_where_there_are_no_keys(dim):
    centres = torch.tensor([0.0, 1e3, -1e5, 5.0])
    key = torch.cat([c + 0.3 * torch.randn(60, dim, dtype=torch.float64) for c in centres])
    query = torch.cat([key[::3], torch.full((9, dim), 500.0), torch.full((5, dim), 1e9)])
    data = Observations(key, torch.randn(len(key), 1, dtype=torch.float64))
    found = assert_as_all_pairs(query, data, Kernel("biweight", 0.4))
    assert found.log_mass[-14:].isneginf().all()
    assert (found.mean[-14:] == 0).all()


@pytest.mark.parametrize("name", ["boxcar", "tricube"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_width_for_each_dimension(name, dtype):
    query, data = uniform(3, dtype)
    stretch = torch.tensor([1.0, 100.0, 0.01], dtype=dtype)
    kernel = Kernel(name, torch.tensor([0.2, 30.0, 0.004]))
    assert_as_all_pairs(query * stretch, replace(data, key=data.key * stretch), kernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3])
def test_the_edge_of_a_boxcar_on_a_lattice_is_inside(dtype, dim):
    """On a lattice of step 0.1 many pairs are at the edge, or one rounding beside it: |q - k| <= width decides."""
    side = torch.arange(13 if dim == 2 else 7, dtype=dtype) * 0.1
    lattice = torch.tensor(list(itertools.product(side.tolist(), repeat=dim)), dtype=dtype)
    data = Observations(lattice, torch.randn(len(lattice), 1, dtype=dtype))
    for width in (0.1, 0.2, 0.3):
        found = boxes.pool(task_of(lattice, data, Kernel("boxcar", width)))
        distances = (lattice.unsqueeze(1) - lattice).square().sum(-1).sqrt()
        counts = (distances <= torch.tensor(width, dtype=dtype)).sum(-1)
        assert torch.equal(found.log_mass.exp().round().long(), counts)
        assert_as_all_pairs(lattice, data, Kernel("boxcar", width))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["boxcar", "epanechnikov"])
def test_leaving_each_row_out_of_its_own_sum(name, weighted):
    _, data = uniform(2)
    key = data.key.clone()
    key[50:60] = key[0]
    weight = torch.randint(1, 4, (len(key),)) * 0.5 if weighted else None
    data = Observations(key, data.value, None if weight is None else weight.double())
    found = assert_as_all_pairs(key, data, Kernel(name, 0.06), exclude=0)
    assert (found.mean - assert_as_all_pairs(key, data, Kernel(name, 0.06)).mean).abs().max() > 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_moments(weighted):
    query, data = uniform(3)
    weight = torch.rand(len(data.key), dtype=torch.float64) if weighted else None
    query[5] = 77.0
    found = assert_as_all_pairs(query, replace(data, weight=weight), Kernel("epanechnikov", 0.25), moments=True)
    assert all((moment[5] == 0).all() for moment in found.moments)


def test_what_is_taken_and_what_is_not(monkeypatch, pooled_keys):
    query, data = uniform(2)
    monkeypatch.setattr(boxes, "MIN_PAIRS", len(query) * len(data.key))
    assert boxes.supports(task_of(query, data, Kernel("boxcar", 0.1)))
    assert not boxes.supports(task_of(query[1:], data, Kernel("boxcar", 0.1)))
    assert not boxes.supports(task_of(query, data, Kernel("gaussian", 0.1)))
    assert not boxes.supports(task_of(query, data, Kernel("boxcar", torch.ones(len(query), 1))))
    assert not boxes.supports(task_of(query[:, :1], replace(data, key=data.key[:, :1]), Kernel("boxcar", 0.1)))
    monkeypatch.setattr(boxes, "MAX_SHARE", 0.25)
    boxes.pool(task_of(query, data, Kernel("boxcar", 5.0)))
    assert pooled_keys == [len(query) * len(data.key)], "a window that holds everything is pooled at once"


def clusters(dim):
    centres = 1000 * torch.rand(7, dim)
    return torch.cat([centre + torch.randn(97, dim) for centre in centres])


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("points", ["uniform", "clusters", "one place", "one"])
def test_every_point_is_in_one_block_and_in_its_box(dim, points):
    made = {
        "uniform": lambda: torch.rand(1003, dim),
        "clusters": lambda: clusters(dim),
        "one place": lambda: torch.ones(150, dim),
        "one": lambda: torch.rand(1, dim),
    }[points]()
    packed = pack(made, 16, torch.full((dim,), 0.1))
    assert sorted(packed.order.tolist()) == list(range(len(made)))
    assert len(packed.low) == len(packed.high) == -(-len(made) // 16)
    for block, (low, high) in enumerate(zip(packed.low, packed.high, strict=True)):
        members = made[packed.members(block)]
        assert torch.equal(members.amin(0), low)
        assert torch.equal(members.amax(0), high)


@pytest.mark.parametrize("dim", [2, 3])
def test_boxes_are_about_as_long_in_every_dimension_measured_in_widths(dim):
    width = torch.tensor([1.0, 20.0, 0.3])[:dim]
    packed = pack(torch.rand(20_000, dim) * 100 * width, 32, width)
    lengths = ((packed.high - packed.low) / width).median(0).values
    assert lengths.max() < 2 * lengths.min()
    volume = (packed.high - packed.low).prod(-1).sum() / (100 * width).prod()
    assert volume < 1.5, "boxes overlap, or are not filled"


def test_a_point_far_away_does_not_make_the_other_boxes_long():
    points = torch.rand(20_000, 2)
    points[77] = torch.tensor([1e4, 0.5])
    packed = pack(points, 32, torch.ones(2))
    lengths = (packed.high - packed.low).median(0).values
    assert lengths.max() < 4 * lengths.min()
