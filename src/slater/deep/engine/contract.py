"""What the policy files of a run say about themselves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.registry import find
from slater.deep.nets.policy import Exportable
from slater.deep.task import Task
from slater.policy import SavedPolicy
from slater.policy.contract import Contract, Entry
from slater.policy.remembering import RememberingPolicy
from slater.runs import Result, Run
from slater.runs.held_out import read_held_out
from slater.runs.trained_on import TrainedOn

#: rows of data larger than memory whose range stands for all
ROWS = 2**17


def exported(policy: Exportable, task: Task, dataset: Dataset | StoredDataset) -> SavedPolicy:
    """A policy in NumPy; behind a memory of its own, where the observations of the data have one."""
    saved, history = policy.export(task), dataset.metadata.history
    return saved if history is None else RememberingPolicy(saved, history)


def make_contract(run: Run, task: Task, dataset: Dataset | StoredDataset, result: Result) -> Contract:
    """The contract of the run's mixture.

    Names and units are those that the data's notes give as `observation_names`, `observation_units`,
    `action_names` and `action_units`, each a JSON list or a text with commas; else names are those of the
    columns that the data were read from; else entries are numbered.
    """
    if isinstance(dataset, StoredDataset):
        seen = dataset.sample(np.random.default_rng(0), ROWS).observations
    else:
        seen = dataset.observations
    low, high = seen.min(axis=0), seen.max(axis=0)
    history = dataset.metadata.history  # whose memory is the policy's own, and nobody gives it
    entries = task.obs_dim if history is None else history.entries
    observations = _entries(dataset, "observation", low[:entries], high[:entries])
    actions: tuple[Entry, ...] = ()
    if task.action_low is not None and task.action_high is not None:
        actions = _entries(dataset, "action", task.action_low, task.action_high)
    kept = None if result.folder is None else read_held_out(result.folder)
    choices = dataset.metadata.action_names or ()  # what discrete actions are called
    acting = sorted((member for member in result.members if member.weight > 0), key=lambda m: -m.weight)
    return Contract(
        observations=observations,
        actions=actions,
        num_actions=task.action_dim if task.discrete else None,
        limits=run.limit_texts,
        judged=tuple(result.judged()),
        algorithm=run.algorithm,
        steps=result.steps,
        seed=run.seed,
        gamma=task.gamma,
        horizon=task.units.horizon,
        env_id=dataset.metadata.env_id,
        data=run.data,
        fingerprint=run.fingerprint,
        rows=dataset.size,
        episodes=len(dataset.episodes),
        limit_status={cost: str(known) for cost, known in result.limit_status.items()},
        members=tuple((member.weight, member.name) for member in acting),
        costs=tuple(task.cost_names),
        largest_step_cost=tuple(float(x) for x in dataset.statistics.cost_high),
        imitates=find(run.algorithm, run.preset).imitates,
        reading=dict(run.reading),
        trained_on=TrainedOn.of(dataset).text(),
        held_out=None if kept is None else vars(kept),
        columns=dataset.metadata.columns or (),
        action_names=choices if task.discrete and len(choices) == task.action_dim > 1 else (),
    )


def _entries(dataset: Dataset | StoredDataset, what: str, low: Any, high: Any) -> tuple[Entry, ...]:
    """Entries with names and units from the notes of the data or the column map where they fit."""
    notes, count = dataset.metadata.notes, len(low)
    names, units = _listed(notes.get(f"{what}_names")), _listed(notes.get(f"{what}_units"))
    if len(names) != count:
        known = dataset.metadata.action_names if what == "action" else dataset.metadata.entry_names(count)
        names = list(known or ())
    if len(names) != count:
        names = [f"{what} {k}" for k in range(count)]
    units = units if len(units) == count else [""] * count
    return tuple(map(Entry, names, units, map(float, low), map(float, high)))


def _listed(text: str | None) -> list[str]:
    if not text:
        return []
    try:
        found = json.loads(text)
    except ValueError:
        found = text.split(",")
    return [str(part).strip() for part in found] if isinstance(found, list) else []
