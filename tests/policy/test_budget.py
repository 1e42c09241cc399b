"""Budgets: they say at every step what the limit says of the whole episode, in the units of the critics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slater.errors import InputError
from slater.policy.budget import Budget, Ledger

costs_of = st.lists(st.floats(0, 1, width=16), min_size=1, max_size=12)


def to_go(budget: Budget, costs: np.ndarray, t: int) -> float:
    """What a critic that ends as the budget does says of the rest of an episode, from step t."""
    rest, g = costs[t:], budget.gamma
    if budget.ends == "horizon":
        return float(rest.sum() / (budget.horizon * (1 - g)))
    return float(rest @ g ** np.arange(len(rest)))


@given(costs_of, st.floats(0, 12), st.sampled_from(["horizon", "never"]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_cost_to_go_fits_the_budget_at_every_step_if_and_only_if_the_episode_keeps_its_limit(
    costs: list[float], limit: float, ends: str
) -> None:
    spent = np.array(costs)
    budget = Budget(ends, len(spent), 0.9)  # type: ignore[arg-type]
    book = Ledger(budget, [limit])
    slack = budget.start([limit])[0] - to_go(budget, spent, 0) * (1 if ends == "never" else len(spent) * 0.1)
    for t, cost in enumerate(spent):
        book.take_step()
        left = book.budget.in_critic_units(book.left, t)[0]
        if book.left[0] > 0:  # below, nothing is left, and units do not matter
            room = left - to_go(budget, spent, t)
            unit = 0.9**-t if ends == "never" else 1 / (len(spent) * 0.1)
            assert room == pytest.approx(slack * unit, abs=1e-9)
        else:
            assert left == 0
        book.spend([cost])


def test_the_released_budget_is_right_for_costs_at_a_constant_rate_and_for_no_others() -> None:
    budget = Budget("timeouts", 10, 0.9)
    book = Ledger(budget, [5.0])
    for t in range(10):
        assert budget.in_critic_units(book.left, t)[0] == pytest.approx(to_go(budget, np.full(10, 0.5), t))
        book.spend([0.5])
    late = np.repeat([0.0, 1.0], 5)  # the same sum, but late: discounted it seems to leave room
    assert to_go(budget, late, 0) < budget.in_critic_units(budget.start([5.0]), 0)[0] - 0.5


def test_a_limit_may_change_in_the_middle_and_what_was_spent_stays_spent() -> None:
    for ends in ("horizon", "never", "timeouts"):
        changed, other = (Ledger(Budget(ends, 10, 0.9), [limit]) for limit in (5.0, 3.0))  # type: ignore[arg-type]
        for _ in range(4):
            changed.spend([0.25])
            other.spend([0.25])
        changed.change_limits([3.0])
        assert changed.left == pytest.approx(other.left)
    with pytest.raises(InputError, match="1 costs and needs as many limits"):
        changed.change_limits([1.0, 2.0])


def test_a_policy_that_was_not_told_refuses_to_act_on() -> None:
    book = Ledger(Budget("horizon", 10, 0.9), [5.0, 1.0])
    book.take_step()
    with pytest.raises(InputError, match="was not told what its last action cost"):
        book.take_step()
    with pytest.raises(InputError, match="2 costs; it was told of 1"):
        book.spend([1.0])
    with pytest.raises(InputError, match="not all finite"):
        book.spend([1.0, np.nan])
    book.spend([1.0, 0.0])
    book.take_step()
