"""A tabular dataset: how often each transition was seen, and what the learner knows besides.

The learner knows the utilities on the pairs in the data, the limits, the discount and where episodes
start; it does not know the transition probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from slater.errors import InputError
from slater.tabular._check import (
    Float,
    Int,
    as_array,
    as_indices,
    check_choice,
    check_discount,
    check_indices,
    check_policy,
    check_range,
    check_start,
    raw_array,
)
from slater.tabular._kernel import Kernel
from slater.tabular.cmdp import CMDP, Sizes

Unseen = Literal["pessimistic", "optimistic", "uniform"]


class Coverage(NamedTuple):
    """Which pairs the data never show, rows `(state, action)`, (m, 2), and states without any data, (k,).

    share: fraction of all pairs that were seen; fewest: the smallest positive number of visits of a pair;
    starts_left_out: share of the starts that lie in states without data and were left out.
    """

    unseen_pairs: Int
    unseen_states: Int
    share: float
    fewest: float
    starts_left_out: float


@dataclass(frozen=True, eq=False)
class Counts(Sizes):
    """A tabular dataset and the problem it is about.

    transition_counts: `N(s, a, s')`, sparse (S*A, S), the actions of one state together; an array (S, A, S)
    goes in as well. Weights need not be whole numbers.
    ends: how often an episode truly ended after (s, a), (S, A): nothing follows, value 0.
    reward, costs: `R(s, a)`, (S, A), and `C_i(s, a)`, (I, S, A); used on seen pairs only.
    limits: tau_i, J-units, (I,); discount: gamma; size: the number of recorded transitions n.
    start: distribution of the first state, (S,). Starts in states without data are left out, since nothing
    can be learned about them, and the others take their share; starts_left_out: that share, in [0, 1).
    borrowed: visits that the row of each seen pair has borrowed from its state (`pooling`); 0 in a log.
    costs_vary: whether `costs` are means of costs that differed from visit to visit of a pair, or may be
    because no pair was visited twice; not so where they are known.
    largest_cost: of a single row; 0 where costs are known.
    """

    transition_counts: Any
    ends: Float
    reward: Float
    costs: Float
    limits: Float
    discount: float
    start: Float
    size: int
    starts_left_out: float = 0.0
    borrowed: float = 0.0
    costs_vary: bool = False
    largest_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.size == 0:
            raise InputError("the dataset is empty: at least one transition is needed.")
        if not sparse.issparse(self.transition_counts):
            array = np.asarray(self.transition_counts, dtype=np.float64)
            if array.ndim != 3 or array.shape != (*self.ends.shape, self.ends.shape[0]):
                raise InputError(
                    f"the transition counts have shape {array.shape}, but shape "
                    f"{(*self.ends.shape, self.ends.shape[0])} is needed."
                )
            flat = sparse.csr_array(array.reshape(-1, array.shape[2]))
            object.__setattr__(self, "transition_counts", flat)
        silent = (self.start > 0) & (self.state_counts == 0)
        if silent.any():
            self._leave_out(silent)

    def _leave_out(self, silent: np.ndarray) -> None:
        """Drop the starts in states without data and keep their share."""
        share = float(self.start[silent].sum())
        if share >= 1.0 - 1e-12:
            raise InputError(
                f"episodes start in state {np.flatnonzero(silent)[0]}, but the data hold no action taken "
                "there or in any other first state; nothing can be learned about such starts: collect data "
                "from them."
            )
        kept = np.where(silent, 0.0, self.start)
        object.__setattr__(self, "start", kept / kept.sum())
        before = 1.0 - self.starts_left_out
        object.__setattr__(self, "starts_left_out", 1.0 - before * (1.0 - share))

    # -- construction -----------------------------------------------------------------------------

    @classmethod
    def sample(cls, cmdp: CMDP, policy: Float, n: int, rng: np.random.Generator) -> Counts:
        """N i.i.d. pairs from the exact occupancy of `policy`, each with a next state: the paper's data."""
        if n < 1:
            raise InputError(f"n is {n}, but at least one transition is needed.")
        occupancy = cmdp.occupancy(check_policy("policy", policy, cmdp.num_states, cmdp.num_actions)).ravel()
        pairs = rng.multinomial(n, occupancy / occupancy.sum())
        if cmdp.successors.small:
            flat = cmdp.transition.reshape(-1, cmdp.num_states)
            return cls._of(cmdp, sparse.csr_array(rng.multinomial(pairs, flat).astype(float)), n)
        drawn = np.repeat(np.arange(len(pairs)), pairs)
        return cls._of(cmdp, _tally(drawn, cmdp.successors.draw(drawn, rng), np.ones(n), cmdp), n)

    @classmethod
    def rollout(
        cls, cmdp: CMDP, policy: Float, episodes: int, length: int, rng: np.random.Generator, *,
        discounted: bool = False, absorbing: int | None = None,
    ) -> Counts:  # fmt: skip
        """Episodes of at most `length` steps from the start distribution.

        `discounted` weighs step t by `discount^t`, which makes the data follow the discounted
        occupancy that the paper assumes. An episode ends after its first step in state `absorbing`.
        """
        policy = check_policy("policy", policy, cmdp.num_states, cmdp.num_actions)
        if episodes < 1 or length < 1:
            raise InputError(
                f"{episodes} episodes of {length} steps give an empty dataset: at least one step is needed."
            )
        actions = Kernel(sparse.csr_array(policy), 1)
        pairs, follows, weights = [], [], []
        state = rng.choice(cmdp.num_states, size=episodes, p=cmdp.start)
        for t in range(length):
            pair = state * cmdp.num_actions + actions.draw(state, rng)
            follow = cmdp.successors.draw(pair, rng)
            pairs.append(pair)
            follows.append(follow)
            weights.append(np.full(len(pair), cmdp.discount**t if discounted else 1.0))
            state = follow if absorbing is None else follow[state != absorbing]
            if len(state) == 0:
                break
        steps = sum(map(len, pairs))
        counts = _tally(np.concatenate(pairs), np.concatenate(follows), np.concatenate(weights), cmdp)
        return cls._of(cmdp, counts, steps)

    @classmethod
    def _of(cls, cmdp: CMDP, counts: sparse.csr_array, n: int) -> Counts:
        ends = np.zeros(cmdp.reward.shape)
        return cls(counts, ends, cmdp.reward, cmdp.costs, cmdp.limits, cmdp.discount, cmdp.start, n)

    @classmethod
    def from_arrays(
        cls, *, states: ArrayLike, actions: ArrayLike, next_states: ArrayLike, rewards: ArrayLike,
        costs: ArrayLike, limits: ArrayLike, discount: float, start: ArrayLike | int = 0,
        terminals: ArrayLike | None = None, num_states: int | None = None, num_actions: int | None = None,
    ) -> Counts:  # fmt: skip
        """A dataset from a user's own logs, one entry a row, shapes `(n,)`.

        states, actions: indices; next_states: index of the state that followed, ignored where `terminals`.
        rewards, costs: of each row, costs `(n,)` or `(n, I)` and not negative; rows of one pair are averaged.
        limits: tau_i in J-units (discounted sums), `(I,)`; discount: gamma.
        start: first state, or the distribution of it, `(S,)`.
        terminals: true where the episode ended for good (not by a time limit).
        num_states, num_actions: S and A; the largest index + 1 unless given.
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
        limit = _checked_limits(limits, c.shape[1])
        pair = s * A + a
        transitions = sparse.csr_array((np.ones((~end).sum()), (pair[~end], follow[~end])), shape=(S * A, S))
        ends = np.bincount(pair[end], minlength=S * A).astype(float).reshape(S, A)
        seen = np.maximum(np.bincount(pair, minlength=S * A), 1.0).reshape(S, A)
        reward = np.bincount(pair, r, minlength=S * A).reshape(S, A)
        cost = np.array([np.bincount(pair, column, minlength=S * A) for column in c.T]).reshape(-1, S, A)
        mean = cost / seen
        off = np.abs(c.T - mean.reshape(len(mean), -1)[:, pair]).max()
        return cls(
            transitions, ends, reward / seen, mean, limit, check_discount(discount), check_start(start, S), n,
            costs_vary=bool(off > 1e-6 * max(float(c.max()), 1e-12)) or int(seen.max()) < 2,
            largest_cost=float(c.max()),
        )  # fmt: skip

    def with_limits(self, limits: ArrayLike | None) -> Counts:
        """The same data under other limits (J-units, shape `(I,)`); None: under those that they have."""
        if limits is None:
            return self
        return replace(self, limits=_checked_limits(limits, len(self.costs)))

    # -- what the data say ------------------------------------------------------------------------

    @property
    def transitions(self) -> Float:
        """`N(s, a, s')` as an array `(S, A, S)`: for small problems; `transition_counts` is sparse."""
        return np.asarray(self.transition_counts.toarray().reshape(*self.ends.shape, -1))

    @cached_property
    def pair_counts(self) -> Float:
        """`N(s, a)`, shape `(S, A)`."""
        return np.asarray(self.transition_counts.sum(axis=1)).reshape(self.ends.shape) + self.ends

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
    def successors(self) -> Kernel:
        """`Phat(s' | s, a)`, sparse; rows of unseen pairs are empty, true ends leave mass out."""
        rows = self.transition_counts.copy()
        rows.data = rows.data / np.repeat(self.pair_counts.ravel(), np.diff(rows.indptr))
        return Kernel(rows, self.num_actions)

    @property
    def kernel(self) -> Float:
        """`Phat` as an array `(S, A, S)`: for small problems; `successors` is sparse."""
        return self.successors.dense

    @cached_property
    def behaviour(self) -> Float:
        """The empirical behaviour policy, `(S, A)`; uniform in states without data."""
        total = self.state_counts[:, None]
        return np.where(total > 0, self.pair_counts / np.maximum(total, 1e-300), 1.0 / self.num_actions)

    @cached_property
    def coverage(self) -> Coverage:
        """Which pairs and states were never seen."""
        return Coverage(
            np.argwhere(~self.seen),
            np.flatnonzero(self.state_counts == 0),
            float(self.seen.mean()),
            float(self.pair_counts[self.seen].min()),
            self.starts_left_out,
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
        check_choice("unseen", unseen, get_args(Unseen))
        S, A, I = self.num_states, self.num_actions, self.num_costs  # noqa: E741
        end, unknown = S, S + 1
        P: Any
        if self.successors.small:
            P = np.zeros((S + 2, A, S + 2))
            P[:S, :, :S] = self.kernel
            P[:S, :, end] = np.where(self.seen, np.maximum(1.0 - self.kernel.sum(axis=2), 0.0), 0.0)
            P[end, :, end] = P[unknown, :, unknown] = 1.0
            if unseen == "uniform":
                P[:S][~self.seen, :S] = 1.0 / S
            else:
                P[:S][~self.seen, unknown] = 1.0
        else:
            P = self._model_rows(unseen)
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

    def _model_rows(self, unseen: Unseen) -> sparse.csr_array:
        """The transition probabilities of `model`, sparse `((S + 2) * A, S + 2)`."""
        S, A = self.num_states, self.num_actions
        known = self.successors.rows.tocoo()
        ended = np.flatnonzero(self.ends)
        stay = np.arange(S * A, (S + 2) * A)
        new = np.flatnonzero(~self.seen)
        blocks = [
            (known.data, known.row, known.col),
            (self.ends.ravel()[ended] / self.pair_counts.ravel()[ended], ended, np.full(len(ended), S)),
            (np.ones(2 * A), stay, np.repeat([S, S + 1], A)),
        ]
        if unseen == "uniform":
            jumps = np.full(len(new) * S, 1.0 / S)
            blocks.append((jumps, np.repeat(new, S), np.tile(np.arange(S), len(new))))
        else:
            blocks.append((np.ones(len(new)), new, np.full(len(new), S + 1)))
        data, row, column = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return sparse.csr_array((data, (row, column)), shape=((S + 2) * A, S + 2))


def _checked_limits(limits: ArrayLike, costs: int) -> Float:
    """One limit per cost, not negative, shape `(I,)`."""
    given = as_array("limits", np.atleast_1d(raw_array("limits", limits)), (costs,))
    check_range("limits", given, 0.0)
    return given


def _tally(pairs: Int, follows: Int, weights: Float, cmdp: CMDP) -> sparse.csr_array:
    """Counts `(S*A, S)` of transitions given as flat pair indices and next states, `(n,)` each."""
    shape = (cmdp.num_states * cmdp.num_actions, cmdp.num_states)
    counts = sparse.csr_array((weights, (pairs, follows)), shape=shape)
    counts.sum_duplicates()
    return counts
