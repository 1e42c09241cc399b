"""A tabular dataset: how often each transition was seen, and what the learner knows besides.

The learner knows the utilities on the pairs in the data, the limits, the discount and where episodes
start; it does not know the transition probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from slater.errors import InputError
from slater.tabular._check import (
    Float,
    Int,
    as_array,
    as_indices,
    check_discount,
    check_indices,
    check_policy,
    check_range,
    check_start,
    raw_array,
)
from slater.tabular._sizes import Sizes
from slater.tabular.cmdp import CMDP

__all__ = ["Counts", "Coverage"]

Unseen = Literal["pessimistic", "optimistic", "uniform"]


@dataclass(frozen=True)
class Coverage:
    """Which pairs the data never show.

    Attributes:
        unseen_pairs: rows `(state, action)` without data, shape `(m, 2)`.
        unseen_states: states without any data, shape `(k,)`.
        share: fraction of all pairs that were seen.
        fewest: the smallest positive number of visits of a pair.

    """

    unseen_pairs: Int
    unseen_states: Int
    share: float
    fewest: float


@dataclass(frozen=True, eq=False)
class Counts(Sizes):
    """A tabular dataset and the problem it is about.

    Attributes:
        transitions: `N(s, a, s')`, shape `(S, A, S)`; weights need not be whole numbers.
        ends: how often an episode truly ended after `(s, a)`, shape `(S, A)`: nothing follows, value 0.
        reward: `R(s, a)`, shape `(S, A)`; used on seen pairs only.
        costs: `C_i(s, a)`, shape `(I, S, A)`; used on seen pairs only.
        limits: tau_i, J-units, shape `(I,)`.
        discount: gamma.
        start: distribution of the first state, shape `(S,)`.
        size: the number of recorded transitions n.

    """

    transitions: Float
    ends: Float
    reward: Float
    costs: Float
    limits: Float
    discount: float
    start: Float
    size: int

    def __post_init__(self) -> None:
        if self.size == 0:
            raise InputError("the dataset is empty: at least one transition is needed.")
        silent = np.flatnonzero((self.start > 0) & (self.state_counts == 0))
        if len(silent):
            raise InputError(
                f"episodes start in state {silent[0]}, but the data hold no action taken there; "
                "nothing can be learned about such a start: collect data from it or leave it out."
            )

    # -- construction -----------------------------------------------------------------------------

    @classmethod
    def sample(cls, cmdp: CMDP, policy: Float, n: int, rng: np.random.Generator) -> Counts:
        """N i.i.d. pairs from the exact occupancy of `policy`, each with a next state: the paper's data."""
        if n < 1:
            raise InputError(f"n is {n}, but at least one transition is needed.")
        occupancy = cmdp.occupancy(check_policy("policy", policy, cmdp.num_states, cmdp.num_actions)).ravel()
        pairs = rng.multinomial(n, occupancy / occupancy.sum())
        flat = cmdp.transition.reshape(-1, cmdp.num_states)
        transitions = rng.multinomial(pairs, flat).reshape(cmdp.transition.shape).astype(float)
        return cls._of(cmdp, transitions, n)

    @classmethod
    def rollout(
        cls,
        cmdp: CMDP,
        policy: Float,
        episodes: int,
        length: int,
        rng: np.random.Generator,
        *,
        discounted: bool = False,
        absorbing: int | None = None,
    ) -> Counts:
        """Episodes of at most `length` steps from the start distribution.

        `discounted` weighs step t by `discount^t`, which makes the data follow the discounted
        occupancy that the paper assumes. An episode ends after its first step in state `absorbing`.
        """
        policy = check_policy("policy", policy, cmdp.num_states, cmdp.num_actions)
        transitions = np.zeros_like(cmdp.transition)
        steps = 0
        cumulative_policy = np.cumsum(policy, axis=1)
        cumulative = np.cumsum(cmdp.transition, axis=2)
        for _ in range(episodes):
            state = int(rng.choice(cmdp.num_states, p=cmdp.start))
            for t in range(length):
                action = min(
                    int(np.searchsorted(cumulative_policy[state], rng.random())), cmdp.num_actions - 1
                )
                follow = min(
                    int(np.searchsorted(cumulative[state, action], rng.random())), cmdp.num_states - 1
                )
                transitions[state, action, follow] += cmdp.discount**t if discounted else 1.0
                steps += 1
                if state == absorbing:
                    break
                state = follow
        return cls._of(cmdp, transitions, steps)

    @classmethod
    def _of(cls, cmdp: CMDP, transitions: Float, n: int) -> Counts:
        ends = np.zeros(transitions.shape[:2])
        return cls(transitions, ends, cmdp.reward, cmdp.costs, cmdp.limits, cmdp.discount, cmdp.start, n)

    @classmethod
    def from_arrays(
        cls,
        *,
        states: ArrayLike,
        actions: ArrayLike,
        next_states: ArrayLike,
        rewards: ArrayLike,
        costs: ArrayLike,
        limits: ArrayLike,
        discount: float,
        start: ArrayLike | int = 0,
        terminals: ArrayLike | None = None,
        num_states: int | None = None,
        num_actions: int | None = None,
    ) -> Counts:
        """A dataset from a user's own logs.

        Args:
            states: state index of each row, shape `(n,)`.
            actions: action index of each row, shape `(n,)`.
            next_states: index of the state that followed, shape `(n,)`; ignored where `terminals` is true.
            rewards: reward of each row, shape `(n,)`; rows of one pair are averaged.
            costs: costs of each row, shape `(n,)` or `(n, I)`, not negative; averaged likewise.
            limits: tau_i in J-units (discounted sums), shape `(I,)`.
            discount: gamma.
            start: first state, or the distribution of it, shape `(S,)`.
            terminals: true where the episode ended for good (not by a time limit), shape `(n,)`.
            num_states: S; the largest index + 1 unless given.
            num_actions: A; the largest index + 1 unless given.

        """
        s, a = as_indices("states", states), as_indices("actions", actions)
        follow, r = as_indices("next_states", next_states), as_array("rewards", rewards, (None,))
        c = raw_array("costs", costs)
        c = as_array("costs", c[:, None] if c.ndim == 1 else c, (None, None))
        n = len(s)
        if n == 0:
            raise InputError("the dataset is empty: at least one transition is needed.")
        end = np.zeros(n, dtype=bool) if terminals is None else raw_array("terminals", terminals).astype(bool)
        columns = {"actions": a, "next_states": follow, "rewards": r, "costs": c, "terminals": end}
        for name, column in columns.items():
            if column.shape[:1] != (n,):
                raise InputError(f"{name} has shape {column.shape}, but states has {n} rows.")
        # nothing follows a true end: whatever stands there is not a state
        follow = np.where(end, 0, follow)
        check_indices("states", s, num_states, "states")
        check_indices("next_states", follow, num_states, "states")
        check_indices("actions", a, num_actions, "actions")
        S = num_states or int(max(s.max(), follow.max())) + 1
        A = num_actions or int(a.max()) + 1
        check_range("costs", c, 0.0, hint=" (shift the cost, or negate it if it is a reward)")
        limit = as_array("limits", np.atleast_1d(raw_array("limits", limits)), (c.shape[1],))
        check_range("limits", limit, 0.0)
        transitions, ends = np.zeros((S, A, S)), np.zeros((S, A))
        np.add.at(transitions, (s[~end], a[~end], follow[~end]), 1.0)
        np.add.at(ends, (s[end], a[end]), 1.0)
        seen = np.maximum(transitions.sum(axis=2) + ends, 1.0)
        reward, cost = np.zeros((S, A)), np.zeros((c.shape[1], S, A))
        np.add.at(reward, (s, a), r)
        for i in range(c.shape[1]):
            np.add.at(cost[i], (s, a), c[:, i])
        return cls(
            transitions,
            ends,
            reward / seen,
            cost / seen,
            limit,
            check_discount(discount),
            check_start(start, S),
            n,
        )

    # -- what the data say ------------------------------------------------------------------------

    @cached_property
    def pair_counts(self) -> Float:
        """`N(s, a)`, shape `(S, A)`."""
        return self.transitions.sum(axis=2) + self.ends

    @cached_property
    def state_counts(self) -> Float:
        """`N(s)`, shape `(S,)`."""
        return self.pair_counts.sum(axis=1)

    @cached_property
    def distribution(self) -> Float:
        """`rho(s, a) = N(s, a) / sum N`, shape `(S, A)`."""
        return self.pair_counts / self.pair_counts.sum()

    @cached_property
    def seen(self) -> np.ndarray:
        """Which pairs have data, boolean `(S, A)`."""
        return self.pair_counts > 0

    @cached_property
    def kernel(self) -> Float:
        """`Phat(s' | s, a)`, shape `(S, A, S)`; rows of unseen pairs are zero, true ends leave mass out."""
        return self.transitions / np.maximum(self.pair_counts, 1e-300)[..., None]

    @cached_property
    def behaviour(self) -> Float:
        """The empirical behaviour policy, `(S, A)`; uniform in states without data."""
        total = self.state_counts[:, None]
        return np.where(total > 0, self.pair_counts / np.maximum(total, 1e-300), 1.0 / self.num_actions)

    @cached_property
    def coverage(self) -> Coverage:
        """Which pairs and states were never seen."""
        positive = self.pair_counts[self.seen]
        return Coverage(
            np.argwhere(~self.seen),
            np.flatnonzero(self.state_counts == 0),
            float(self.seen.mean()),
            float(positive.min()),
        )

    @cached_property
    def reward_scale(self) -> float:
        """The largest |R| on seen pairs, at least 1: the paper's theory has rewards in [0, 1]."""
        return max(1.0, float(np.abs(self.reward[self.seen]).max()))

    @cached_property
    def cost_scale(self) -> float:
        """The largest cost on seen pairs, at least 1."""
        return max(1.0, float(self.costs[:, self.seen].max(initial=0.0)))

    def value_box(self, utility: Float) -> tuple[float, float]:
        """The box that F lives in for a utility `(S, A)`, J-units: `[0, H]` for utilities in [0, 1]."""
        known = utility[self.seen]
        return min(0.0, float(known.min())) * self.horizon, max(1.0, float(known.max())) * self.horizon

    def model(self, unseen: Unseen = "pessimistic", limits: Float | None = None) -> CMDP:
        """The empirical (maximum-likelihood) CMDP.

        It has two more states than the data: S, where episodes end at no cost, and S + 1, the unknown.
        What follows a pair without data is a choice: `pessimistic` leads to the unknown, where each
        step costs the most and earns the least; `optimistic` costs nothing there and earns the least;
        `uniform` jumps to a state drawn uniformly (as the authors' COptiDICE does). Policies of the
        model have S + 2 rows: the first S are the policy for the data's states.
        """
        if unseen not in get_args(Unseen):
            raise InputError(f"unseen is {unseen!r}; choose one of {', '.join(get_args(Unseen))}.")
        S, A, I = self.num_states, self.num_actions, self.num_costs  # noqa: E741
        end, unknown = S, S + 1
        P = np.zeros((S + 2, A, S + 2))
        P[:S, :, :S] = self.kernel
        P[:S, :, end] = np.where(self.seen, np.maximum(1.0 - self.kernel.sum(axis=2), 0.0), 0.0)
        P[end, :, end] = P[unknown, :, unknown] = 1.0
        if unseen == "uniform":
            P[:S][~self.seen, :S] = 1.0 / S
        else:
            P[:S][~self.seen, unknown] = 1.0
        low = min(0.0, float(self.reward[self.seen].min()))
        # the worst of each cost by itself, the upper end of its box of values
        worst = [self.value_box(cost)[1] / self.horizon for cost in self.costs]
        high = np.array(worst if unseen == "pessimistic" else [0.0] * I)[:, None]
        R, C = np.zeros((S + 2, A)), np.zeros((I, S + 2, A))
        R[:S] = np.where(self.seen, self.reward, low)
        R[unknown] = low
        C[:, :S] = np.where(self.seen, self.costs, high[:, :, None])
        C[:, unknown] = high
        start = np.concatenate([self.start, [0.0, 0.0]])
        return CMDP(P, R, C, self.limits if limits is None else limits, self.discount, start)
