from math import inf, nan

import pytest
from pydantic import TypeAdapter, ValidationError

from router.core.strategies.params import NoParams, PricedParams, check_bound


@pytest.mark.parametrize("relative", [0.99, -1.0, inf, nan])
def test_a_relative_bound_below_the_mean_or_not_finite_is_refused(relative):
    with pytest.raises(ValueError, match="relative is"):
        check_bound(relative, 0.0)


@pytest.mark.parametrize("absolute", [-1.0, inf, nan])
def test_an_absolute_bound_that_is_negative_or_not_finite_is_refused(absolute):
    with pytest.raises(ValueError, match="absolute is"):
        check_bound(1.0, absolute)


@pytest.mark.parametrize("params", [NoParams, PricedParams])
def test_a_misspelt_parameter_is_refused(params):
    with pytest.raises(ValidationError, match="relativ"):
        TypeAdapter(params).validate_python({"relativ": 1.5})


def test_bounds_are_checked_as_parameters_are_made():
    with pytest.raises(ValueError, match=r"relative is 0\.5"):
        PricedParams(relative=0.5)
