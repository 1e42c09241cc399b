"""Behaviours of a log: groups of episodes that acted alike, found by how they acted and never by what came of
it.

An episode's *style* is the ridge regression of its action residuals (action less what the log does on average
at such a state) on its states. Styles are estimated from few rows and are mostly noise; what two halves of
the same episode agree upon is not: directions in which the halves covary are kept, and k-means groups the
episodes there. A log without such directions has one behaviour. From there every episode goes to the group
whose clone makes its actions likeliest, and clones follow (hard EM), until few episodes move. Where a log
names its sources, those are the behaviours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.deep.log_model.clones import drawn_rows

__all__ = ["Behaviours", "find_behaviours"]

F64 = NDArray[np.float64]
#: episodes that a behaviour needs: fewer say little of a mean
LEAST_EPISODES = 10
#: correlation between halves of an episode from which a direction of style counts; directions at most
LEAST_AGREEMENT, MOST_DIRECTIONS = 0.3, 4
#: rows per group and rounds at most of the clones that sort episodes; share of episodes that is few to move
CLONED_ROWS, ROUNDS, FEW = 20_000, 8, 0.02
#: ridge of a style's regression, in rows
RIDGE = 5.0


@dataclass(frozen=True, eq=False)
class Behaviours:
    """A partition of the episodes of a log.

    names: (K,); labels: (E,) behaviour of each episode, -1 for none (cut off, or of a source with too few)
    held: (E,) episodes that train nothing; named: whether the log names its sources
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    held: NDArray[np.bool_]
    named: bool

    def __len__(self) -> int:
        return len(self.names)


#: what every episode's actions are worth under each of K clones of rows (K, n): mean log-likelihoods, (E, K)
Likelihoods = Callable[[NDArray[np.int32], int], F64]


def find_behaviours(
    obs: NDArray[Any], residuals: NDArray[Any], episode: NDArray[np.int64], judged: NDArray[np.bool_],
    held: NDArray[np.bool_], likelihoods: Likelihoods, source: NDArray[Any] | None = None, most: int = 12,
    seed: int = 0,
) -> Behaviours:  # fmt: skip
    """Behaviours of a log.

    obs: (N, s) normalised; residuals: (N, a) of actions; episode: (N,); judged: (E,) whole episodes
    held: (E,); likelihoods: see there; source: (E,) names, or None
    """
    if source is not None and len(set(source[judged].tolist())) > 1:
        names = sorted({str(name) for name in source[judged]})
        labels = np.array([names.index(str(s)) if j else -1 for s, j in zip(source, judged, strict=True)])
        named = True
    else:
        labels, named = _groups(obs, residuals, episode, judged, most, seed), False
        if labels.max(initial=0) > 0:
            labels = _by_likelihood(labels, episode, held, likelihoods)
        names = [f"group {k + 1}" for k in range(int(labels.max(initial=0)) + 1)]
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    enough = counts >= max(min(LEAST_EPISODES, counts.max(initial=1)), 1)
    place = np.append(np.where(enough, np.cumsum(enough) - 1, -1), -1)
    kept = tuple(name for name, keep in zip(names, enough, strict=True) if keep)
    return Behaviours(kept, place[labels], held, named)


def _by_likelihood(
    labels: NDArray[np.int64], episode: NDArray[np.int64], held: NDArray[np.bool_], likelihoods: Likelihoods
) -> NDArray[np.int64]:
    """Every episode to the group whose clone makes its actions likeliest; clones of episodes not held out."""
    most = int(labels.max()) + 1
    for turn in range(ROUNDS):
        rows, count = [], int(labels.max()) + 1
        for number in range(count):
            own = np.flatnonzero((labels[episode] == number) & ~held[episode])
            rows.append(
                drawn_rows(own if len(own) else np.flatnonzero(labels[episode] == number), CLONED_ROWS, turn)
            )
        rows += rows[:1] * (most - count)  # as many clones in every turn: compiled once
        best = likelihoods(np.stack(rows), turn)[:, :count].argmax(axis=1)
        kept, again = np.unique(best[labels >= 0], return_inverse=True)
        moved = np.where(labels >= 0, 0, -1)
        moved[labels >= 0] = again
        share, labels = np.mean(best[labels >= 0] != labels[labels >= 0]), moved
        if share < FEW or len(kept) == 1:
            break
    return labels


def _groups(
    obs: NDArray[Any], residuals: NDArray[Any], episode: NDArray[np.int64], judged: NDArray[np.bool_],
    most: int, seed: int,
) -> NDArray[np.int64]:  # fmt: skip
    from scipy.cluster.vq import kmeans2

    whole = np.flatnonzero(judged)
    labels = np.where(judged, 0, -1)
    count = min(most, len(whole) // (2 * LEAST_EPISODES))
    if count < 2:
        return labels
    inputs = np.concatenate([np.ones((len(obs), 1)), np.clip(obs, -3, 3)], axis=1).astype(np.float64)
    size = np.maximum(residuals.std(axis=0), 1e-6)
    order = np.arange(len(obs))
    halves = [
        _styles(inputs, residuals / size, episode, order % 2 == part, len(judged))[whole] for part in (0, 1)
    ]
    centred = [half - half.mean(axis=0) for half in halves]
    agreed = (centred[0].T @ centred[1] + centred[1].T @ centred[0]) / (2 * len(whole))
    values, directions = np.linalg.eigh(agreed)
    points = []
    for place in np.argsort(values)[::-1][:MOST_DIRECTIONS]:
        a, b = centred[0] @ directions[:, place], centred[1] @ directions[:, place]
        if a.std() < 1e-9 or b.std() < 1e-9 or np.corrcoef(a, b)[0, 1] < LEAST_AGREEMENT:
            continue
        points.append(a + b)
    if not points:
        return labels
    cloud = np.stack(points, axis=1)
    best = np.inf
    for trial in range(8):
        centres, found = kmeans2(cloud, count, minit="++", seed=seed + trial)
        score = float(np.sum((cloud - centres[found]) ** 2))
        if score < best:
            best, labels[whole] = score, np.unique(found, return_inverse=True)[1]
    return labels


def _styles(
    inputs: F64, residuals: NDArray[Any], episode: NDArray[np.int64], part: NDArray[np.bool_], count: int
) -> F64:
    """Ridge coefficients of each episode's residuals on its inputs, (E, inputs * a), from the rows of
    `part`.
    """
    found = np.zeros((count, inputs.shape[1] * residuals.shape[1]))
    rows = np.flatnonzero(part)
    edges = np.searchsorted(episode[rows], np.arange(count + 1))
    for e in range(count):
        own = rows[edges[e] : edges[e + 1]]
        if len(own):
            x = inputs[own]
            found[e] = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ residuals[own]).ravel()
    return found
