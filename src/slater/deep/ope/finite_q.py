"""Fitted Q of a finite horizon over fixed features, in NumPy alone.

    Q_0 = 0,   Q_k = the ridge regression of  u + alive Q_{k-1}(s', pi(s'))  on  phi(s, a),   k = 1 .. T

so that the mean of Q_T over first states is the expected sum of u over an episode of T steps: no discount
stands between the estimate and the limit, and every regression is solved, where networks trained along a
gradient stop wherever their steps end. u may be a cost, the reward, or 1 (then Q_T is the expected length).
phi has random Fourier features of three widths, and s, a and 1 themselves. The features, the rows and the
factored Gram matrices (one per bootstrap of episodes) are those of the log: they are made once and serve
every policy. Every Q_k is clipped to what k steps can sum to: without that it diverges on some policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError

__all__ = ["FiniteQ", "finite_q_of"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

#: rows of the log that are regressed on at most; random features; bootstraps of episodes
ROWS, FEATURES, COPIES = 8_000, 320, 6
#: policies whose regressions are done side by side
TOGETHER = 4
#: of the ridge, as a share of the features' mean square
RIDGE = 1e-4
#: widths of the features, in units of the usual distance between rows
WIDTHS = (0.35, 0.7, 1.4)


@dataclass(frozen=True, eq=False)
class _Features:
    """phi: rows (n, m) of scaled states and actions side by side -> (n, d)."""

    mean: F32
    std: F32
    frequencies: F32  # (m, d')
    phases: F32  # (d',)

    def __call__(self, rows: NDArray[Any]) -> F32:
        x = (np.asarray(rows, np.float32) - self.mean) / self.std
        waves = np.cos(x @ self.frequencies + self.phases)
        return np.concatenate([waves, 0.3 * np.clip(x, -3, 3), np.ones((len(x), 1), np.float32)], axis=1)


def _features(rows: F32, rng: np.random.Generator) -> _Features:
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    std = np.where(std > 1e-6, std, 1.0).astype(np.float32)
    x = (rows - mean) / std
    pairs = rng.integers(len(x), size=(2, 2000))
    usual = max(float(np.median(np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1))), 1e-6)
    width = usual * np.resize(WIDTHS, FEATURES)
    frequencies = rng.standard_normal((rows.shape[1], FEATURES)) / width
    phases = rng.uniform(0.0, 2.0 * np.pi, FEATURES)
    return _Features(mean.astype(np.float32), std, frequencies.astype(np.float32), phases.astype(np.float32))


@dataclass(frozen=True, eq=False)
class FiniteQ:
    """What the regressions of every policy share (n rows, E episodes, d features, m sums, B bootstraps).

    counts: (n, B) how often each bootstrap has the row's episode; first_counts: (E, B); inverse: (B, d, d)
    of every bootstrap's Gram matrix, with its ridge
    """

    features: _Features
    phi: F32  # (n, d)
    following: F32  # (n, obs_dim) next states, as the policy's rows
    alive: F32  # (n,) 0 after an end by the task
    utilities: F32  # (n, m)
    counts: F32  # (n, B)
    inverse: F32  # (B, d, d)
    first: F32  # (E, obs_dim)
    first_counts: F32  # (E, B)
    horizon: int

    def values(self, policies: Sequence[Callable[[F32], NDArray[Any]]]) -> F64:
        """Expected sums over an episode of every policy by every bootstrap, shape (P, B, m).

        policies: states (n, obs_dim), in the units of `following`, to rows of actions (n, action_dim).
        """
        found = []
        for choose, own in zip(policies, self.weights(policies, self.horizon), strict=True):
            said = self.to_go(own, self.first, choose(self.first), self.horizon)
            shares = self.first_counts[:, :, None]
            found.append((shares * said).sum(axis=0) / shares.sum(axis=0))
        return np.asarray(found, np.float64)

    def to_go(self, weights: F32, states: F32, actions: NDArray[Any], steps: int) -> F32:
        """Expected sums over `steps` more steps from states (n, obs_dim) and actions, shape (n, B, m).

        weights: (d, B m), a policy's for that many steps, by `weights`.
        """
        low, high = self._range()
        said = self.features(np.concatenate([states, actions], axis=1)) @ weights
        found = np.clip(said, steps * low, steps * high)
        return np.asarray(found.reshape(len(states), self.counts.shape[1], -1), np.float32)

    def _range(self) -> tuple[F32, F32]:
        """What one step can give at least and at most, each (B m,): for every bootstrap, every sum."""
        copies, u = self.counts.shape[1], self.utilities
        low, high = np.minimum(u.min(axis=0), 0.0), np.maximum(u.max(axis=0), 0.0)
        return np.tile(low, copies), np.tile(high, copies)

    def weights(self, policies: Sequence[Callable[[F32], NDArray[Any]]], steps: int) -> list[F32]:
        """Of every policy the regression's weights for `steps` steps to go, (d, B m).

        What is the log's is read from memory once for `TOGETHER` policies: that is most of the time.
        """
        found: list[F32] = []
        for first in range(0, len(policies), TOGETHER):
            found += [*self._weights(policies[first : first + TOGETHER], steps)]
        return found

    def _weights(self, policies: Sequence[Callable[[F32], NDArray[Any]]], steps: int) -> F32:
        (n, width), copies, sums_of = self.phi.shape, self.counts.shape[1], self.utilities.shape[1]
        many = len(policies)
        then = [
            self.features(np.concatenate([self.following, choose(self.following)], axis=1))
            for choose in policies
        ]
        low, high = self._range()  # columns: bootstrap, then sum
        now = np.repeat(self.utilities[:, None], copies, axis=1).reshape(n, -1)
        shares = np.repeat(self.counts, sums_of, axis=1)
        later = shares * self.alive[:, None]
        transposed = np.ascontiguousarray(self.phi.T)
        own = transposed @ (shares * now)  # what the step itself gives, the same for all
        weights = np.zeros((many, width, copies * sums_of), np.float32)
        for step in range(steps):
            rest = [
                later * np.clip(one @ mine, step * low, step * high)
                for one, mine in zip(then, weights, strict=True)
            ]
            sums = (transposed @ np.concatenate(rest, axis=1)).reshape(width, many, -1) + own[:, None]
            by_copy = (
                sums.reshape(width, many, copies, sums_of).transpose(2, 0, 1, 3).reshape(copies, width, -1)
            )
            solved = (self.inverse @ by_copy).reshape(copies, width, many, sums_of)
            weights = np.ascontiguousarray(solved.transpose(2, 1, 0, 3)).reshape(many, width, -1)
        return weights


def finite_q_of(
    states: F32, actions: F32, utilities: NDArray[Any], alive: NDArray[Any], following: F32,
    episode: NDArray[Any], first: F32, horizon: int, *, seed: int = 0, copies: int = COPIES,
    most_rows: int = ROWS,
) -> FiniteQ:  # fmt: skip
    """The shared part for a log: rows (N, .) with their episode's number, first states (E, obs_dim).

    States and actions in any units that `values` is given too; utilities (N, m) in those of the answer;
    copies: B; most_rows: n at most.
    """
    if len(states) == 0:
        raise InputError("no row of the data knows the state after it, so nothing can be fitted.")
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(states))[:most_rows])
    both = np.concatenate([states[rows], actions[rows]], axis=1).astype(np.float32)
    features = _features(both, rng)
    phi = features(both)
    counts = rng.multinomial(len(first), np.full(len(first), 1.0 / len(first)), copies).T.astype(np.float32)
    own = counts[episode[rows]]
    width = phi.shape[1]
    inverse = np.empty((copies, width, width), np.float32)
    for copy in range(copies):
        gram = (phi * own[:, copy, None]).T.astype(np.float64) @ phi
        ridge = RIDGE * max(np.trace(gram) / width, 1e-9)
        inverse[copy] = np.linalg.inv(gram + ridge * np.eye(width))
    return FiniteQ(
        features, phi, np.asarray(following[rows], np.float32), np.asarray(alive[rows], np.float32),
        np.asarray(utilities[rows], np.float32), own, inverse, np.asarray(first, np.float32), counts, horizon,
    )  # fmt: skip
