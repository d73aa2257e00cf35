"""Student's t against closed forms, its density and the printed table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.evaluation.claims import probability_within, quantile_within

LEVELS = st.floats(0.01, 0.999)


@pytest.mark.parametrize(
    ("degrees", "printed"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_the_95_percent_column_of_the_table(degrees: int, printed: float) -> None:
    assert quantile_within(0.95, degrees) == pytest.approx(printed, abs=5e-4)


@given(LEVELS)
def test_one_and_two_degrees_have_closed_forms(level: float) -> None:
    assert quantile_within(level, 1) == pytest.approx(math.tan(math.pi * level / 2), rel=1e-9)
    assert quantile_within(level, 2) == pytest.approx(level * math.sqrt(2 / (1 - level**2)), rel=1e-9)


@given(LEVELS, st.integers(1, 60))
def test_the_quantile_inverts_the_probability(level: float, degrees: int) -> None:
    assert probability_within(quantile_within(level, degrees), degrees) == pytest.approx(level, abs=1e-12)


@pytest.mark.parametrize("degrees", [3, 4, 7, 12])
@pytest.mark.parametrize("t", [0.3, 1.0, 3.5])
def test_the_probability_is_the_integral_of_the_density(degrees: int, t: float) -> None:
    x = np.linspace(-t, t, 20_001)
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    density = scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2)
    assert probability_within(t, degrees) == pytest.approx(np.trapezoid(density, x), abs=1e-8)
