"""Random constrained MDPs and behaviour policies, each from a seeded `numpy.random.Generator`.

- `paper`: the appendix of the PDCA paper. Dense Dirichlet transitions, uniform rewards, Beta(.2, .2)
  costs, discount .8, limit .5 (J-units); all redrawn until every limit binds at the optimum.
- `sparse`: what the authors' released code draws instead: two successors per pair and one free action
  per state; only the costs are redrawn.
- `coptidice`: the 50-state problem of the COptiDICE paper, with a goal and an absorbing state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slater.errors import InputError
from slater.tabular._check import Float
from slater.tabular.cmdp import CMDP, Infeasible, Solution, normalise_policy, uniform_policy
from slater.tabular.occupancy import project_occupancy

#: limits (J-units, discount .8) of the multi-cost variant: with I independent costs the limit .5 of
#: the paper is met by no policy for most draws, so it grows with I; every one of them must bind
MULTI_COST_LIMIT = {1: 0.5, 2: 0.9, 3: 1.2}

#: a limit binds if its multiplier is above this; below, a slack limit and rounding look alike
BINDING = 1e-3

MAX_DRAWS = 100_000

Rng = np.random.Generator


def paper_cmdp(
    rng: Rng,
    *,
    states: int = 10,
    actions: int = 5,
    costs: int = 1,
    discount: float = 0.8,
    limit: float | None = None,
) -> CMDP:
    """The random CMDP of the PDCA paper; `limit` in J-units, by default .5, of two costs .9, three 1.2."""
    if limit is None:
        if costs not in MULTI_COST_LIMIT:
            raise InputError(f"there is no default limit for {costs} costs; give one (J-units).")
        limit = MULTI_COST_LIMIT[costs]

    def draw() -> CMDP:
        transition = rng.dirichlet(np.ones(states), size=(states, actions))
        reward, cost = rng.random((states, actions)), rng.beta(0.2, 0.2, size=(costs, states, actions))
        return CMDP(transition, reward, cost, np.full(costs, limit), discount)

    return _first_binding(limit, draw)


def _first_binding(limit: float, draw: Callable[[], CMDP]) -> CMDP:
    """The first draw whose limits can be met and each cost reward at the optimum."""
    for _ in range(MAX_DRAWS):
        cmdp = draw()
        try:
            if np.all(cmdp.solve().multipliers > BINDING):
                return cmdp
        except Infeasible:
            continue
    raise InputError(f"no draw out of {MAX_DRAWS} made the limit {limit:g} bind; try another limit.")


def sparse_cmdp(
    rng: Rng, *, states: int = 10, actions: int = 5, costs: int = 1, discount: float = 0.8, limit: float = 0.5
) -> CMDP:
    """The variant in the authors' released code: two successors per pair, one free action per state."""
    transition = np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            transition[s, a, rng.choice(states, size=2, replace=False)] = rng.dirichlet(np.ones(2))
    reward = rng.random((states, actions))

    def draw() -> CMDP:
        cost = rng.beta(0.2, 0.2, size=(costs, states, actions))
        # one action per state that is free under every cost, so that every limit can be met
        cost[:, np.arange(states), rng.integers(actions, size=states)] = 0.0
        return CMDP(transition, reward, cost, np.full(costs, limit), discount)

    return _first_binding(limit, draw)


def coptidice_cmdp(
    rng: Rng, *, states: int = 50, actions: int = 4, discount: float = 0.95, limit: float = 2.0
) -> CMDP:
    """The random CMDP of the COptiDICE paper: reward H at a goal that is hard to reach, then absorbed.

    The last state absorbs at no cost. `limit` is in J-units: 2.0 is .1 per step in normalised units.
    """
    H, absorbing = 1.0 / (1.0 - discount), states - 1
    transition = np.zeros((states, actions, states))
    for s in range(absorbing):
        for a in range(actions):
            transition[s, a, rng.choice(absorbing, size=4, replace=False)] = rng.dirichlet(np.ones(4))
    transition[absorbing, :, absorbing] = 1.0

    def with_goal(goal: int) -> CMDP:
        P, R = transition.copy(), np.zeros((states, actions))
        P[goal] = np.eye(states)[absorbing]
        R[goal] = H
        return CMDP(P, R, np.zeros((0, states, actions)), [], discount)

    hardest = min(map(with_goal, range(1, absorbing)), key=lambda cmdp: cmdp.solve().J_R)

    def draw() -> CMDP:
        cost = rng.beta(0.2, 0.2, size=(states, actions))
        cost[np.arange(states), rng.integers(actions, size=states)] = 0.0
        cost[absorbing] = 0.0
        return CMDP(hardest.successors, hardest.reward, cost[None], [limit], discount)

    return _first_binding(limit, draw)


#: name on the command line -> generator
GENERATORS: dict[str, Callable[..., CMDP]] = {
    "paper": paper_cmdp,
    "sparse": sparse_cmdp,
    "coptidice": coptidice_cmdp,
}


# -- behaviour policies ---------------------------------------------------------------------------


def half_optimal_behaviour(cmdp: CMDP, solution: Solution | None = None, share: float = 0.5) -> Float:
    """The paper's behaviour policy, `(S, A)`: per state, `share` of pi* and the rest uniform."""
    best = (solution or cmdp.solve()).policy
    return share * best + (1.0 - share) * uniform_policy(cmdp.num_states, cmdp.num_actions)


def coptidice_behaviour(cmdp: CMDP, solution: Solution | None = None, share: float = 0.9) -> Float:
    """The COptiDICE paper's behaviour policy, `(S, A)`: a softened constrained optimum under the limits.

    The temperature of `softmax(Q / T)` rises until the value falls to `share` of the way from the
    uniform policy's value to the constrained optimum's; each candidate is projected under the limits.
    """
    best = solution or cmdp.solve()
    uniform, _ = cmdp.returns(uniform_policy(cmdp.num_states, cmdp.num_actions))
    target = share * best.J_R + (1.0 - share) * uniform
    Q = cmdp.q_values(best.policy, cmdp.reward)
    temperature = 1e-6
    while True:
        logits = Q / temperature
        softened = normalise_policy(np.exp(logits - logits.max(axis=1, keepdims=True)))
        candidate = project_occupancy(cmdp, softened)
        if cmdp.returns(candidate)[0] <= target or temperature > 1e6:
            return candidate
        temperature /= 0.9
