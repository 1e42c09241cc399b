"""Small random problems, policies and datasets, each from a seed, and brute force where it is possible."""

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from slater import tabular as tab
from slater.errors import InputError

seeds = st.integers(0, 2**31 - 1)

#: each example runs solvers, so examples are few and have no deadline; failures print their seed
few = settings(max_examples=12, deadline=None, derandomize=True)
fewer = settings(max_examples=5, deadline=None, derandomize=True)


def random_policy(rng: np.random.Generator, states: int, actions: int) -> np.ndarray:
    return rng.dirichlet(np.ones(actions), size=states)


def random_cmdp(
    seed: int, *, states: int = 3, actions: int = 2, costs: int = 1, discount: float = 0.8
) -> tab.CMDP:
    """A CMDP whose limits are the costs of some policy plus a little, so that Slater's condition holds."""
    rng = np.random.default_rng(seed)
    cmdp = tab.CMDP(
        rng.dirichlet(np.ones(states), size=(states, actions)),
        rng.random((states, actions)),
        rng.random((costs, states, actions)),
        np.zeros(costs),
        discount,
        rng.dirichlet(np.ones(states)),
    )
    return cmdp.with_limits(cmdp.returns(random_policy(rng, states, actions))[1] + 0.02)


def binding_cmdp(seed: int, *, states: int = 4, actions: int = 3, costs: int = 1) -> tab.CMDP:
    """The same with limits that all cost reward at the optimum, by multipliers of a moderate size."""
    for attempt in range(seed, seed + 100_000, 1000):
        cmdp = random_cmdp(attempt, states=states, actions=actions, costs=costs)
        multipliers = cmdp.solve().multipliers
        if multipliers.min() > 0.01 and multipliers.sum() < 5:
            return cmdp
    raise AssertionError("no problem with binding limits was drawn")


def deterministic_cmdp(seed: int, *, states: int = 3, actions: int = 2) -> tab.CMDP:
    """The same with one successor per pair."""
    cmdp = random_cmdp(seed, states=states, actions=actions)
    follow = np.random.default_rng(seed + 1).integers(states, size=(states, actions))
    return tab.CMDP(np.eye(states)[follow], cmdp.reward, cmdp.costs, cmdp.limits, cmdp.discount, cmdp.start)


def sampled(cmdp: tab.CMDP, n: int, seed: int) -> tab.Counts:
    """Data of the uniform policy."""
    rng = np.random.default_rng(seed)
    policy = tab.uniform_policy(cmdp.num_states, cmdp.num_actions)
    for _ in range(1000):
        # a start state may be missing from a small dataset; that is not what these tests are about
        with contextlib.suppress(InputError):
            return tab.Counts.sample(cmdp, policy, n, rng)
    raise AssertionError("no dataset with all start states was drawn")


def population(cmdp: tab.CMDP, policy: np.ndarray) -> tab.Counts:
    """What infinitely much data of `policy` would say: exact shares instead of counts."""
    transitions = cmdp.occupancy(policy)[..., None] * cmdp.transition
    return tab.Counts(
        transitions,
        np.zeros(policy.shape),
        cmdp.reward,
        cmdp.costs,
        cmdp.limits,
        cmdp.discount,
        cmdp.start,
        1_000_000,
    )


def without_pair(data: tab.Counts, state: int, action: int) -> tab.Counts:
    """The dataset with everything about one pair removed."""
    transitions = data.transitions.copy()
    transitions[state, action] = 0.0
    return tab.Counts(
        transitions, data.ends, data.reward, data.costs, data.limits, data.discount, data.start, data.size
    )


def deterministic_policies(states: int, actions: int) -> Iterator[np.ndarray]:
    for choice in itertools.product(range(actions), repeat=states):
        yield np.eye(actions)[list(choice)]
