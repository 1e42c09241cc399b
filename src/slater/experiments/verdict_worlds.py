"""Worlds of known truth for `slater reproduce verdicts`: what episodes cost, and logs with propensities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, Metadata
from slater.policy import CategoricalPolicy

if TYPE_CHECKING:
    from slater.tabular import Counts

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class SumWorld:
    """Costs of whole episodes: their mean, the most that one can cost, and n draws."""

    mean: float
    most: float
    draw: Callable[[np.random.Generator, int], F64]


def _rare(chance: float, large: float, most: float) -> SumWorld:
    return SumWorld(chance * large, most, lambda rng, n: np.where(rng.random(n) < chance, large, 0.0))


#: episodes of the policy itself
SUMS: dict[str, SumWorld] = {
    "steady": SumWorld(12.0, 200.0, lambda rng, n: 200.0 * rng.beta(15.0, 235.0, n)),
    "skewed": SumWorld(10.0, 200.0, lambda rng, n: 200.0 * rng.beta(0.2, 3.8, n)),
    "two kinds": SumWorld(18.0, 200.0, lambda rng, n: np.where(rng.random(n) < 0.3, 60.0, 0.0)),
    "1 in 140": _rare(0.007, 1.0, 1.0),
    "catastrophe, 1 in 100": _rare(0.01, 100.0, 100.0),
    "blow, 1 in 75, of a range of ten": _rare(1 / 75, 600.0, 6000.0),
}


def _softmax(bias: F64, slope: F64) -> CategoricalPolicy:
    """A policy over K actions with log-odds `bias` (K,) plus `slope` (K,) times the first of two entries."""
    weight, none = np.stack([slope, np.zeros_like(slope)]).astype(np.float32), np.zeros(2, np.float32)
    return CategoricalPolicy((weight,), (bias.astype(np.float32),), none, none + 1)


@dataclass(frozen=True)
class LogWorld:
    """Episodes of `steps` steps whose states are drawn anew; action a costs `large` with chance[a].

    behaviour: who logs; target: who is judged.
    """

    steps: int
    chance: F64
    large: float
    behaviour: CategoricalPolicy
    target: CategoricalPolicy

    def log(self, rng: np.random.Generator, episodes: int) -> Dataset:
        """A log with propensities."""
        size = episodes * self.steps
        s = rng.standard_normal((size, 2)).astype(np.float32)
        a = self.behaviour.act(s, rng=rng)
        cost = self.large * (rng.random(size) < self.chance[a])
        ends = np.arange(size) % self.steps == self.steps - 1
        return Dataset.from_arrays(
            observations=s, actions=a, rewards=np.ones(size), costs=cost[:, None],
            terminals=np.zeros(size, bool), timeouts=ends, next_observations=s,
            propensity=np.exp(self.behaviour.log_probability(s, a)),
            metadata=Metadata(horizon=self.steps, num_actions=len(self.chance)),
        )  # fmt: skip

    @property
    def mean(self) -> float:
        """Expected cost of an episode of the target, by a fine grid of its one observation that matters."""
        from scipy.special import ndtri

        grid = np.repeat(ndtri((np.arange(20_000) + 0.5) / 20_000)[:, None], 2, axis=1)
        taken = self.target.probabilities(grid).mean(axis=0, dtype=np.float64)
        return float(self.steps * self.large * (taken @ self.chance))


def _two(
    steps: int, chance: tuple[float, float], large: float, bias: float, slope: float, target: float
) -> LogWorld:
    """Two actions; log-odds of the second: bias + slope s in the log, target + slope s under judgement."""
    slopes = np.array([0.0, slope])
    return LogWorld(
        steps, np.array(chance), large, _softmax(np.array([0.0, bias]), slopes),
        _softmax(np.array([0.0, target]), slopes),
    )  # fmt: skip


def _clicks() -> LogWorld:
    """As a log of recommendations: uniform propensities, one step, a rare cost, a policy with preferences."""
    actions = 20
    chance = np.linspace(0.002, 0.008, actions)
    bias = np.linspace(1.5, -1.5, actions)
    zero = np.zeros(actions)
    return LogWorld(1, chance, 1.0, _softmax(zero, zero), _softmax(bias, zero))


#: clicks of the 80 items in the small log of the Open Bandit Dataset (random policy, all, of `obp` 0.4.1)
CLICKS = "01010021110000000120010001001000001020100100211113100200022001000100010100000000"


def _open_bandit() -> LogWorld:
    """That log, drawn again and again: of 125 impressions of an item as many are clicked as were, about."""
    clicks = np.array([float(digit) for digit in CLICKS])
    zero = np.zeros(len(clicks))
    # as in docs/open-bandit.md: popular items more often
    return LogWorld(1, clicks / 125.0, 1.0, _softmax(zero, zero), _softmax(np.log(clicks + 0.2), zero))


#: logs with propensities; where the log's policy does not look at states, a largest weight is known
LOGS: dict[str, LogWorld] = {
    "0.7% of episodes": _two(1, (0.007, 0.007), 1.0, 0.0, 0.5, 1.0),
    "catastrophe, 1 in 100": _two(1, (0.01, 0.01), 100.0, 0.0, 0.5, 1.0),
    "rare, five steps": _two(5, (0.001, 0.003), 1.0, 0.0, 0.5, 0.7),
    "clicks, 20 actions": _clicks(),
    "clicks of Open Bandit": _open_bandit(),
    "far target": _two(1, (0.05, 0.3), 1.0, 0.0, 0.5, 2.5),
    "one step": _two(1, (0.1, 0.5), 1.0, 0.0, 0.0, -1.0),
    "ten steps": _two(10, (0.1, 0.5), 1.0, 0.0, 0.5, -0.5),
}


#: finite problems of three states, a new one in every draw, whose costs are 0 or 1
FINITE = ("random costs", "random costs, a tenth of the starts without data")


def finite(name: str, rng: np.random.Generator, transitions: int) -> tuple[Counts, F64, float]:
    """Counts of a log of ten-step episodes, a random policy (S, A), and its true discounted cost."""
    from slater import tabular as tab

    S, A, discount = 3, 2, 0.7
    P, mean = rng.dirichlet(np.ones(S), size=(S, A)), rng.beta(0.5, 2.0, (S, A))
    start = np.eye(S)[0]
    if name != FINITE[0]:  # a fourth state that only begins episodes
        P = np.concatenate([np.pad(P, ((0, 0), (0, 0), (0, 1))), rng.dirichlet(np.ones(S + 1), size=(1, A))])
        mean, S = np.concatenate([mean, np.ones((1, A))]), S + 1
        start = np.array([0.9, 0.0, 0.0, 0.1])
    s, a, t = np.zeros(transitions, int), rng.integers(0, A, transitions), np.zeros(transitions, int)
    state = 0
    for k in range(transitions):
        s[k] = 0 if k % 10 == 0 else state
        state = t[k] = rng.choice(S, p=P[s[k], a[k]])
    policy = rng.dirichlet(np.ones(A), S)
    counts = tab.Counts.from_arrays(
        states=s, actions=a, next_states=t, rewards=np.zeros(transitions),
        costs=(rng.random(transitions) < mean[s, a]).astype(float), limits=[1.0], discount=discount,
        start=start, num_states=S, num_actions=A,
    )  # fmt: skip
    truth = tab.CMDP(P, np.zeros((S, A)), mean[None], np.array([1.0]), discount, start).returns(policy)[1][0]
    return counts, policy, float(truth)
