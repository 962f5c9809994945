import math
import re

import numpy as np
import pytest

from stratagem.evaluation.statistics import (
    Summary,
    across_seeds,
    bootstrap_interval,
    mean,
    paired_difference,
    sample_std,
    wilson_interval,
)


def test_mean_and_sample_standard_deviation() -> None:
    # (1 + 2 + 6) / 3 = 3; ((-2)^2 + (-1)^2 + 3^2) / (3 - 1) = 7
    assert mean([1, 2, 6]) == 3.0
    assert sample_std([1, 2, 6]) == pytest.approx(math.sqrt(7), rel=1e-12, abs=0.0)


def test_one_value_has_no_standard_deviation() -> None:
    assert sample_std([1.0]) is None


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_equal_values_have_an_interval_of_width_zero(value: float) -> None:
    assert bootstrap_interval([value] * 50) == (value, value)
    assert mean([value] * 50) == value


def test_bootstrap_agrees_with_the_binomial_distribution() -> None:
    # The mean of 20 draws from ten zeros and ten ones is Binomial(20, 1/2) / 20, whose 2.5% and 97.5% quantiles are
    # 6/20 (P(X <= 5) = 0.0207, P(X <= 6) = 0.0577) and 14/20 by symmetry.
    assert bootstrap_interval([0.0, 1.0] * 10) == (0.3, 0.7)


def test_bootstrap_is_repeatable_and_depends_on_its_seed() -> None:
    values = np.linspace(-1, 2, 37).tolist()
    first = bootstrap_interval(values)
    assert first == bootstrap_interval(values)
    assert first != bootstrap_interval(values, seed=1)
    assert first[0] < mean(values) < first[1]


def test_higher_confidence_is_wider() -> None:
    values = np.linspace(-1, 2, 37).tolist()
    (low, high), (lower, higher) = bootstrap_interval(values), bootstrap_interval(values, confidence=0.99)
    assert lower < low < high < higher


def test_large_samples_are_resampled_in_parts() -> None:
    values = np.arange(3000.0)
    low, high = bootstrap_interval(values.tolist(), resamples=1000)
    # The standard error is 3000 / sqrt(12) / sqrt(3000) = 15.8, so the interval is 1499.5 +- 31 within its own noise.
    assert low == pytest.approx(1499.5 - 31, abs=4.0)
    assert high == pytest.approx(1499.5 + 31, abs=4.0)


# z = 1.959964, z^2 = 3.841459
WILSON = [
    (0, 10, 0.0, 0.277533),  # high = z^2 / (10 + z^2) = 3.841459 / 13.841459
    (10, 10, 0.722467, 1.0),  # low = 10 / 13.841459
    (5, 10, 0.236593, 0.763407),  # half = z * sqrt(5 * 5 / 10 + z^2 / 4) / 13.841459 = 0.263407
    (41, 50, 0.692039, 0.902298),  # centre = 42.920729, half = z * sqrt(7.38 + 0.960365) = 5.660315; over 53.841459
]


@pytest.mark.parametrize(("successes", "total", "low", "high"), WILSON)
def test_wilson_interval(successes: int, total: int, low: float, high: float) -> None:
    assert wilson_interval(successes, total) == pytest.approx((low, high), rel=0.0, abs=2e-6)


def test_wilson_interval_stays_inside_zero_and_one() -> None:
    for total in range(1, 60):
        assert wilson_interval(0, total)[0] == 0.0
        assert wilson_interval(total, total)[1] == 1.0


def test_a_constant_gain_is_certain_however_wide_the_returns_spread() -> None:
    before = [0.0, 1.0, 5.0, -3.0]
    assert paired_difference(before, [b + 0.5 for b in before]) == Summary(4, 0.5, 0.0, (0.5, 0.5))


def test_difference_is_after_minus_before() -> None:
    summary = paired_difference([1.0, 0.0], [0.0, 0.0])
    assert summary.mean == -0.5
    assert summary.interval == (-1.0, 0.0)


def test_across_seeds_uses_students_t() -> None:
    # mean 2, std 1, t(0.975, 2) = 4.302653, half = 4.302653 / sqrt(3) = 2.484138
    summary = across_seeds([1.0, 2.0, 3.0])
    assert (summary.count, summary.mean, summary.std) == (3, 2.0, 1.0)
    assert summary.interval == pytest.approx((-0.484138, 4.484138), rel=0.0, abs=1e-6)


def test_one_seed_has_no_interval() -> None:
    assert across_seeds([2.0]) == Summary(1, 2.0, None, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean([]), "values has shape (0,); expected one dimension with at least one number."),
        (
            lambda: bootstrap_interval([1.0, math.nan]),
            "values holds a number that is not finite; drop failed episodes before summing up.",
        ),
        (lambda: wilson_interval(3, 2), "successes=3 of total=2; expected 0 <= successes <= total and total > 0."),
        (lambda: wilson_interval(0, 0), "successes=0 of total=0; expected 0 <= successes <= total and total > 0."),
        (lambda: paired_difference([1.0], [1.0, 2.0]), "before has 1 values and after 2; pair the same episodes."),
    ],
)
def test_numbers_that_cannot_be_summed_up_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()  # type: ignore[operator]
