"""What a log tells before any limit is named, fitted once and used by every run on it.

    behaviours   groups of episodes that acted alike, or the sources that the log names
    dynamics     what follows a state and an action, with its chances
    candidates   a clone of each behaviour and of the whole log, and advantage-weighted clones over directions
    of
                 reward and costs

None of it depends on a limit's size or on a run's seed: it is the data's. So it is kept in the user's cache,
by the identity of the task (rows and what they mean) and the settings; a sweep over limits and seeds fits it
once, and a process that comes second waits for the first.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep import checkpoint
from slater.deep.candidates.in_sample import InSampleSettings
from slater.deep.compiled import keep_compiled, user_cache
from slater.deep.log_model.behaviours import Behaviours
from slater.deep.log_model.clones import (
    CloneSettings,
)
from slater.deep.log_model.columns import levels_of
from slater.deep.log_model.dynamics import (
    Dynamics,
    DynamicsSettings,
)
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task, counts_episodes
from slater.mixing import lp_weights

if TYPE_CHECKING:
    from slater.deep.log_model.fitting import Log

__all__ = [
    "LogModel",
    "LogModelSettings",
    "cache_folder",
    "fit_log_model",
    "hidden_for",
    "levels_for",
    "settings_of",
]

F64 = NDArray[np.float64]
Tick = Callable[[str, int, int], None]

#: rows of a log larger than memory that are taken, in whole episodes
MOST_ROWS = 2**20
#: part of a cache's name; to be raised when the same settings would give another model
VERSION = 4


@dataclass(frozen=True)
class LogModelSettings:
    """How a log is fitted."""

    dynamics: DynamicsSettings = field(default_factory=DynamicsSettings)
    """of the dynamics"""
    clones: CloneSettings = field(default_factory=CloneSettings)
    """of all clones"""
    in_sample: InSampleSettings = field(default_factory=InSampleSettings)
    """of the critics that weigh rows"""
    behaviours: int = 12
    """groups at most where the log names no sources"""
    seed: int = 0
    """of the held-out episodes"""


@dataclass(frozen=True, eq=False)
class LogModel:
    """A fitted log.

    candidates: P policies (leaves with an axis P first), the clones of the K behaviours first, then that of
    the whole log, then weighted ones; kinds: (P,) what each is, for a person
    sums: (E, 2+I) what every episode did: utilities in J-units of the task, then its length in steps
    event: (1+I,) size of an event, the mean square of a step's utility over its mean, in J-units of a sum
    past: costs, by name, and "the next observation", that an episode's past says more of than a state does
    first: (E, obs_dim) first observations; obs: (n, obs_dim) some of the log's states; both normalised
    memo: what was asked of the model once, and no limit changes (`slater.deep.ope`)
    """

    task: Task
    behaviours: Behaviours
    dynamics: Dynamics
    candidates: PolicyNetwork
    kinds: tuple[str, ...]
    sums: F64
    event: F64
    past: tuple[str, ...]
    first: NDArray[np.float32]
    obs: NDArray[np.float32]
    memo: dict[int, Any] = field(default_factory=dict)

    @property
    def whole(self) -> int:
        """Which candidate is the clone of the whole log."""
        return len(self.behaviours)

    def reference(self) -> dict[str, Any] | None:
        """The best mixture of the log's own behaviours within the limits, by their logged means: reward and
        costs in the data's units, per episode where limits count those, and whether it keeps the limits, as
        JSON.
        """
        task, own = self.task, self.behaviours
        means = np.array([self.sums[own.labels == k].mean(axis=0) for k in range(len(own))])
        if not len(means):
            return None
        limits = task.tau.astype(np.float64)
        value = lp_weights(means[:, :-1], limits) @ means
        sums = task.unscaled(value[:-1])
        if counts_episodes(task):
            sums = np.array([task.units.rescale(x, "discounted", "episode") for x in sums])
        kept = bool(np.all(value[1:-1] <= limits * (1 + 1e-6) + 1e-9))
        names = ("reward", *task.cost_names)
        return dict(zip(names, sums.tolist(), strict=True)) | {
            "length": float(value[-1]),
            "within_limits": kept,
        }


def cache_folder() -> Path:
    """The folder of log models."""
    return user_cache() / "logs"


def levels_for(dataset: Dataset | StoredDataset) -> int:
    """Levels of a column at most: the model has chances for them."""
    if isinstance(dataset, StoredDataset):
        return levels_of(dataset.sample(np.random.default_rng(0), 2**14).observations)
    return levels_of(dataset.observations)


#: rows from which the dynamics have wider layers, and one more
MANY_ROWS = 40_000


def hidden_for(dataset: Dataset | StoredDataset, hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of the dynamics: `hidden`; for many rows, in which less is noise, wider and one more."""
    return (*(2 * width for width in hidden), 2 * hidden[-1]) if len(dataset) >= MANY_ROWS else hidden


def settings_of(
    dataset: Dataset | StoredDataset | None = None, steps: int = 4_000, hidden: tuple[int, ...] = (128, 128),
    components: int = 5, seed: int = 0, levels: int | None = None,
    model_hidden: tuple[int, ...] | None = None,
) -> LogModelSettings:  # fmt: skip
    """How a log is fitted, by what a run says of it.

    steps: iterations of the dynamics at most, of which other fits take a share, and more where they have more
    layers; levels: of a column at most, None: what the `dataset` has
    """
    if levels is None:
        levels = 0 if dataset is None else levels_for(dataset)
    if model_hidden is None:
        model_hidden = hidden if dataset is None else hidden_for(dataset, hidden)

    def within(share: float) -> tuple[int, int]:
        least = min(1_000, steps)
        return least, max(int(share * steps), least)

    return LogModelSettings(
        DynamicsSettings(
            steps=within(max(len(model_hidden) / len(hidden), 1.0)),
            hidden=model_hidden,
            levels=levels,
            seed=seed,
        ),
        CloneSettings(steps=within(0.6), hidden=hidden, components=components, seed=seed),
        InSampleSettings(steps=within(0.5), hidden=hidden, seed=seed),
        seed=seed,
    )


def fit_log_model(
    dataset: Dataset | StoredDataset, task: Task, settings: LogModelSettings | None = None,
    cache: Path | None = None, tick: Tick | None = None,
) -> LogModel:  # fmt: skip
    """The model of a log, from `cache` (a folder) where it is there already; None: fitted, and not kept.

    Of a log larger than memory, whole episodes of at most `MOST_ROWS` rows, by a fixed seed. The last models
    stay in memory: a run asks before and after its game.
    """
    settings = settings or LogModelSettings()
    name = _name(dataset, task, settings)
    if name in _last:
        return replace(_last[name], task=task)
    keep_compiled()
    from slater.deep.log_model.fitting import Log

    log = Log.of(_loaded(dataset), task, settings)
    found = log.fitted(tick) if cache is None else _kept(cache / f"log-{name}.safetensors", log, tick)
    _last[name] = found
    while len(_last) > 2:
        _last.popitem(last=False)
    return found


_last: OrderedDict[str, LogModel] = OrderedDict()


def _name(dataset: Dataset | StoredDataset, task: Task, settings: LogModelSettings) -> str:
    record = {
        "version": VERSION, "whole": counts_episodes(task),
        "task": task.identity(dataset.fingerprint, limits=False), "settings": dataclasses.asdict(settings),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:20]


def _loaded(dataset: Dataset | StoredDataset) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    lengths = dataset.episodes.lengths
    order = np.random.default_rng(0).permutation(len(lengths))
    enough = max(int(np.searchsorted(np.cumsum(lengths[order]), MOST_ROWS, side="right")), 1)
    return dataset.subset(np.sort(order[:enough])).load()


def _kept(path: Path, log: Log, tick: Tick | None) -> LogModel:
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            record = checkpoint.read_record(path)
            like = log.like(len(record["kinds"]))
            (dynamics, candidates), _ = checkpoint.restore(path, like)
            behaviours = Behaviours(
                tuple(record["names"]), np.array(record["labels"]), log.held, bool(record["named"])
            )
            return log.model(behaviours, dynamics, candidates, tuple(record["kinds"]), tuple(record["past"]))
        found = log.fitted(tick)
        own = found.behaviours
        record = {
            "names": list(own.names), "labels": own.labels.tolist(), "named": own.named,
            "kinds": list(found.kinds), "past": list(found.past),
        }  # fmt: skip
        checkpoint.save(path, (found.dynamics, found.candidates), record)
    return found
