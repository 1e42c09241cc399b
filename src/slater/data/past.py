"""Does the past matter? Whether what came before a step says more of it than its observation does.

An observation may not be a state: wear, temperature, a customer's patience. Then two equal observations lead
to different futures, and no model and no policy of one observation can be right about both. The test asks on
held-out episodes whether the memory that a policy could have (`slater.history`) explains what the present
leaves unexplained of costs and of the next observation:

1. The present's best word: ridge regression on random features, then boosted trees, which see what is sharp.
2. What the present does not tell of the memory: the memory less its own regression on the present. So where
   step 1 is wrong about the present, the memory, which often goes with it, cannot repair it and look useful.
3. The gain of a regression of what is left on the present *and* that memory over one on the present alone,
   both also times what step 1 expects; episode by episode, paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.data.dataset import Dataset
from slater.errors import InputError
from slater.history import History

F64 = NDArray[np.float64]
Rng = np.random.Generator
#: share of what is left unexplained that the past must explain, and in how many standard errors, to matter
SHARE, ERRORS = 0.02, 3.5
#: share of a goal's variance that is as good as explained, whatever explains the rest
EXPLAINED = 0.08
#: parts of the episodes, each judged by what the others trained
PARTS = 5
#: rows that are looked at, of as many episodes as four times as many fill; columns whose past is looked at;
#: entries of the next observation that are predicted: those that the present explains least
MOST_ROWS, MOST_COLUMNS, MOST_ENTRIES = 12_000, 24, 8
LOOKED_AT = 4 * MOST_ROWS
#: random features; penalties of the present's regression and of that on the memory
FEATURES, LIGHT, HEAVY = 250, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1), (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e3)
#: symmetric trees: bins of a column, splits of a tree, columns tried per split, rate, numbers of trees
BINS, DEPTH, TRIED, RATE, TREES = 32, 4, 8, 0.3, (5, 15, 40, 100)


def with_history(dataset: Dataset, history: History | None = None) -> Dataset:
    """The log with the memory of its episodes behind every observation; as `history` remembers, or by itself.

    A policy that is learned from it remembers its episode (`slater.policy.remembering`).
    """
    if dataset.metadata.history is not None:
        return dataset
    count = dataset.num_actions if dataset.discrete else None
    if history is None:
        history = History.of(dataset.observations, dataset.actions, count, dataset.horizon)
    width = dataset.observation_dim + (count or dataset.action_dim)
    if (history.entries, len(history.centre)) != (dataset.observation_dim, width):
        raise InputError(
            f"the policy remembers observations of {history.entries} entries, but the data have "
            f"{dataset.observation_dim}, or other actions."
        )
    table = dataset.episodes
    before, after = history.along(dataset.observations, dataset.actions, table.starts, table.stops)
    return replace(
        dataset, observations=np.concatenate([dataset.observations, before], axis=1),
        next_observations=np.concatenate([dataset.next_observations, after], axis=1),
        metadata=replace(dataset.metadata, history=history),
    )  # fmt: skip


def remedy(names: Sequence[str]) -> str:
    """A sentence about what observations hide, by what `past_matters` found; empty if that is nothing."""
    if not names:
        return ""
    return (
        f"what came before in an episode says more of {' and of '.join(names)} than the observation does: "
        "the observation hides something that matters, and estimates do not see it either. Read the log "
        "with history, so that the policy remembers its episode, or add what is hidden to the observations."
    )


def past_matters(dataset: Dataset, seed: int = 0) -> tuple[str, ...]:
    """Names of what the past predicts: costs by their names, and "the next observation".

    Nothing, where there are fewer than ten episodes, or where observations have a memory already.
    """
    rng = np.random.default_rng(seed)
    log = _some_episodes(dataset, rng)
    table = log.episodes
    if len(table) < 2 * PARTS or log.size < 2 * len(table) or log.metadata.history is not None:
        return ()
    count = log.num_actions if log.discrete else None
    history = History.of(log.observations, log.actions, count, log.horizon)
    memory, _ = history.along(log.observations, log.actions, table.starts, table.stops)
    rows = np.sort(rng.permutation(np.flatnonzero(log.next_known))[:MOST_ROWS])
    if len(rows) < 10 * PARTS:
        return ()
    episode = np.repeat(np.arange(len(table)), table.lengths)[rows]
    part = (rng.permutation(len(table)) % PARTS)[episode]
    obs, after = (x[rows].astype(np.float64) for x in (log.observations, log.next_observations))
    actions = (log.actions if count is None else np.eye(count)[log.actions])[rows].astype(np.float64)
    now = np.concatenate([_standard(actions), _standard(obs)], axis=1)
    past = _standard(memory[rows][:, _looked_at(history, rng)].astype(np.float64))
    centre, spread = obs.mean(axis=0), np.where(np.ptp(obs, axis=0) > 0, obs.std(axis=0), 1.0)
    # a cost may look at the state after the step, which is no past
    seen = np.concatenate([now, np.clip((after - centre) / np.maximum(spread, 1e-9), -20, 20)], axis=1)
    gains = _gains(seen, past, log.costs[rows], part, episode, log.costs.shape[1], rng)
    found = [name for name, gain in zip(log.cost_names, gains, strict=True) if gain]
    if any(_gains(now, past, after - obs, part, episode, MOST_ENTRIES, rng)):
        found.append("the next observation")
    return tuple(found)


def _gains(
    present: F64,
    past: F64,
    goals: NDArray[Any],
    part: NDArray[Any],
    episode: NDArray[Any],
    most: int,
    rng: Rng,
) -> list[bool]:
    """Of the `most` goals that the present explains least, in their order, whether the past says more."""
    goals, wide = _standard(goals.astype(np.float64)), _wide(present, rng)
    told = _ridge(wide, goals, part, LIGHT)
    fresh = past - _ridge(wide, past, part, LIGHT)
    fresh /= np.maximum(fresh.std(axis=0), 0.05)
    left = ((goals - told) ** 2).mean(axis=0)
    answers, bins = [], _binned(present)
    for goal in np.sort(np.argsort(-left, kind="stable")[:most]):
        if left[goal] <= EXPLAINED:
            answers.append(False)
            continue
        rest = goals[:, goal] - told[:, goal]
        trees = _boosted(bins, rest, part, rng)
        rest, level = rest - trees, told[:, goal] + trees
        level = ((level - level.min()) / max(level.std(), 1e-9))[:, None]
        here = np.concatenate([np.ones_like(level), present, present * level, level, level**2], axis=1)
        both = np.concatenate([here, fresh, fresh * level], axis=1)
        alone, more = (
            (rest[:, None] - _ridge(x, rest[:, None], part, HEAVY))[:, 0] ** 2 for x in (here, both)
        )
        _, own = np.unique(episode, return_inverse=True)
        gain = np.bincount(own, alone - more) / np.bincount(own)
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        enough = max(ERRORS * error, SHARE * alone.mean())
        answers.append(bool(alone.mean() > EXPLAINED and gain.mean() > enough))
    return answers


def _some_episodes(dataset: Dataset, rng: Rng) -> Dataset:
    """The log, or so many of its complete episodes, drawn, that they have rows enough; ten at least."""
    if dataset.size <= LOOKED_AT:
        return dataset
    table = dataset.episodes
    order = rng.permutation(np.flatnonzero(table.complete))
    enough = int(np.searchsorted(np.cumsum(table.lengths[order]), LOOKED_AT)) + 1
    return dataset.subset(order[: max(enough, 2 * PARTS)])


def _looked_at(history: History, rng: Rng) -> NDArray[np.int64]:
    """Places in the memory: time, and the past of every action and of some entries, `MOST_COLUMNS` in all."""
    width = len(history.centre)
    first, others = np.arange(history.entries, width), rng.permutation(history.entries)
    some = np.concatenate([first, others])[:MOST_COLUMNS]
    return np.concatenate([[0], *(1 + block * width + some for block in range(3))])


def _standard(x: F64) -> F64:
    """Every column with mean 0 and deviation 1; 0 where it varies by its rounding alone."""
    spread = x.std(axis=0)
    varies = spread > np.maximum(1e-6 * np.abs(x).max(axis=0), 1e-12)
    return np.asarray(np.where(varies, (x - x.mean(axis=0)) / np.where(varies, spread, 1.0), 0.0))


def _wide(x: F64, rng: Rng) -> F64:
    """A column of ones, x, its squares, and tanh of random lines, flat and steep ones."""
    steep = np.exp(rng.uniform(np.log(0.3), np.log(3.0), FEATURES)) / np.sqrt(x.shape[1])
    lines = x @ (rng.normal(size=(x.shape[1], FEATURES)) * steep) + rng.uniform(-2, 2, FEATURES)
    return np.concatenate([np.ones((len(x), 1)), x, x**2, np.tanh(lines)], axis=1)


def _chosen(predicted: F64, goals: F64, part: NDArray[Any]) -> F64:
    """Of several predictions (L, N, n), goal by goal and part by part, that which was best on other parts."""
    errors = np.stack([((predicted - goals) ** 2)[:, part == k].sum(axis=1) for k in range(PARTS)])
    best = (errors.sum(axis=0) - errors).argmin(axis=1)[part]
    return np.asarray(np.take_along_axis(predicted, best[None], axis=0)[0])


def _ridge(x: F64, goals: F64, part: NDArray[Any], penalties: Sequence[float]) -> F64:
    """Predictions of goals (N, n) by regression on x (N, m) in the other parts."""
    x = x / np.maximum(np.sqrt((x**2).mean(axis=0)), 1e-9)
    squares = [x[part == k].T @ x[part == k] for k in range(PARTS)]
    products = [x[part == k].T @ goals[part == k] for k in range(PARTS)]
    predicted = np.zeros((len(penalties), *goals.shape))
    for k in range(PARTS):
        values, vectors = np.linalg.eigh(sum(squares) - squares[k])
        turned, own = vectors.T @ (sum(products) - products[k]), x[part == k] @ vectors
        for number, penalty in enumerate(penalties):
            weights = turned / (np.maximum(values, 0.0) + penalty * len(x))[:, None]
            predicted[number][part == k] = own @ weights
    return _chosen(predicted, goals, part)


def _binned(x: F64) -> NDArray[np.int64]:
    """Every value's place among its column's quantiles, or among its values where those are few."""
    columns = []
    for column in x.T:
        values = np.unique(column)
        middles = (values[1:] + values[:-1]) / 2
        edges = middles if len(values) <= 2 * BINS else np.quantile(column, np.arange(1, BINS) / BINS)
        columns.append(np.searchsorted(np.unique(edges), column))
    return np.stack(columns, axis=1)


def _boosted(bins: NDArray[np.int64], goal: F64, part: NDArray[Any], rng: Rng) -> F64:
    """Predictions of a goal, (N,), by boosted trees of the other parts.

    All leaves of a level split alike; every tree is grown on half the rows.
    """
    sizes, predicted = bins.max(axis=0) + 1, np.zeros((1 + len(TREES), len(goal), 1))
    varied = np.flatnonzero(sizes > 1)
    for k in range(PARTS) if len(varied) else ():
        train, judged = np.flatnonzero(part != k), np.flatnonzero(part == k)
        left = np.where(part != k, goal, 0.0)
        for tree in range(1, TREES[-1] + 1):
            half = rng.permutation(train)[: len(train) // 2]
            leaf = np.zeros(len(goal), np.int64)
            for _ in range(DEPTH):
                column, edge = max(
                    _split(leaf[half], bins[half, j], left[half], int(sizes[j]), int(j))
                     for j in rng.permutation(varied)[:TRIED]
                )[1:]  # fmt: skip
                leaf = 2 * leaf + (bins[:, column] > edge)
            sums, counts = (np.bincount(leaf[half], w, 2**DEPTH) for w in (left[half], None))
            step = RATE * sums / (counts + 10)
            left -= step[leaf]
            if tree in TREES:
                predicted[1 + TREES.index(tree), judged, 0] = -left[judged]
    return _chosen(predicted, goal[:, None], part)[:, 0]


def _split(
    leaf: NDArray[np.int64], bins: NDArray[np.int64], left: F64, size: int, column: int
) -> tuple[float, int, int]:
    """How much the best edge of a column explains in all leaves, the column, the edge."""
    leaves = int(leaf.max()) + 1
    place = leaf * size + bins
    sums = np.bincount(place, left, leaves * size).reshape(leaves, size).cumsum(axis=1)
    counts = np.bincount(place, minlength=leaves * size).reshape(leaves, size).cumsum(axis=1)
    right, others = sums[:, -1:] - sums, counts[:, -1:] - counts
    explained = (sums**2 / (counts + 10) + right**2 / (others + 10)).sum(axis=0)[:-1]
    edge = int(explained.argmax())
    return float(explained[edge]), column, edge
