"""Small files to regress."""

import numpy as np
import pytest


@pytest.fixture
def noisy(tmp_path):
    """120 rows of y = sin(x) + noise beside a second x, a count and a text."""
    generator = np.random.default_rng(7)
    x, other = generator.uniform(0, 6, (2, 120))
    y = np.sin(x) + 0.3 * generator.normal(size=120)
    path = tmp_path / "noisy.csv"
    rows = [f"{a!r},{b!r},{c!r},{1 + i % 2},n{i}" for i, (a, b, c) in enumerate(np.stack([x, other, y], -1).tolist())]
    path.write_text("x,other,y,count,name\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path
