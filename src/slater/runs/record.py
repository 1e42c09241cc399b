"""The record of a run: all that defines it, and what was decided when it began."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from slater import __version__
from slater.disk import read_json, typed, write_json
from slater.errors import InputError
from slater.limits import Limit, Units
from slater.runs.result import RESULT, LimitRecord

#: name of the file in the folder of a run
RECORD = "run.json"


@dataclass(frozen=True)
class Run:
    """What defines a run, all of it: the same `Run` gives the same bits (on the same machine).

    algorithm, preset, settings: by name; settings overrule the preset
    limits: one per cost, named; texts as on the command line in the file
    data: where the dataset is from, as a path or a remark; fingerprint: its SHA-256
    log_every, checkpoint_every: iterations; env, eval_every, eval_episodes: rollouts while training
    reading: how the file was read, as `slater.data.ReadOptions.to_json` gives it (columns, missing values)
    memory: GB (10^9 bytes) for the data; a store that needs more is trained on in shards
    estimate: judge the policies by the shared estimators at the end, where the algorithm does not itself
    """

    algorithm: str
    limits: tuple[Limit, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    seed: int = 0
    data: str = "in memory"
    fingerprint: str = ""
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    log_every: int = 100
    checkpoint_every: int = 1_000
    env: str | None = None
    eval_every: int | None = None
    eval_episodes: int = 10
    memory: float = 4.0
    estimate: bool = False

    def __post_init__(self) -> None:
        for name in ("log_every", "checkpoint_every", "eval_episodes", "eval_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")
        if not self.memory > 0:
            raise InputError(f"memory must be a positive number of GB, not {self.memory}.")
        if not 0 <= self.seed < 2**32:  # what JAX keeps of a seed: larger ones would repeat smaller ones
            raise InputError(f"the seed must be from 0 to {2**32 - 1}, not {self.seed}.")

    @property
    def limit_texts(self) -> tuple[str, ...]:
        """The limits as on the command line."""
        return tuple(map(str, self.limits))


@dataclass(frozen=True)
class TaskRecord:
    """What a run was told about its task: sizes, names, discount, steps of a full episode (or None), limits.

    scale: (1+I,) what reward and costs were multiplied by inside
    action_low, action_high: (action_dim,) bounds of continuous actions, else None
    identity: SHA-256 of the whole task with its data (`slater.deep.Task.identity`)
    """

    obs_dim: int
    action_dim: int
    discrete: bool
    costs: tuple[str, ...]
    gamma: float
    horizon: int | None
    limits: tuple[LimitRecord, ...]
    scale: tuple[float, ...]
    action_low: tuple[float, ...] | None
    action_high: tuple[float, ...] | None
    identity: str

    @property
    def units(self) -> Units:
        """To convert between sums over an episode and discounted ones."""
        return Units(gamma=self.gamma, horizon=self.horizon, bootstrap_timeouts=True)

    def per_episode(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Discounted sums, by name, as sums over a full episode."""
        return {name: self.units.rescale(x, "discounted", "episode") for name, x in sums.items()}


@dataclass(frozen=True)
class Record:
    """A run, the settings of its algorithm as they were decided when it began, and its task.

    version: of Slater, which wrote it; env_id: the environment that the data name
    versions: of Python and of what computes, by name, when the run began
    extended: the numbers of steps that the run had before it was extended
    """

    version: str
    run: Run
    config: Mapping[str, Any]
    task: TaskRecord
    env_id: str | None
    extended: tuple[int, ...]
    versions: Mapping[str, str]

    @property
    def steps(self) -> int:
        """Iterations in all."""
        return int(self.config["steps"])

    def extended_to(self, steps: int) -> Record:
        """The record with `steps` iterations in all; fewer than there are, are refused."""
        if steps == self.steps:
            return self
        if steps < self.steps:
            raise InputError(
                f"the run has {self.steps} steps; it can be extended to more, not cut to {steps}."
            )
        return dataclasses.replace(
            self, extended=(*self.extended, self.steps), config={**self.config, "steps": steps},
            run=dataclasses.replace(self.run, settings={**self.run.settings, "steps": steps}),
        )  # fmt: skip


#: field of `Run` -> what its JSON may be
_KINDS: dict[str, tuple[type, ...]] = {
    "algorithm": (str,), "limits": (list,), "settings": (dict,), "preset": (str, type(None)), "seed": (int,),
    "data": (str,), "fingerprint": (str,), "reading": (dict,), "log_every": (int,),
    "checkpoint_every": (int,), "env": (str, type(None)), "eval_every": (int, type(None)),
    "eval_episodes": (int,), "memory": (int, float), "estimate": (bool,),
}  # fmt: skip


def _run(record: Mapping[str, Any]) -> Run:
    for name, value in record.items():
        if name not in _KINDS:
            raise ValueError(f"{name!r} is not known to this version")
        if not isinstance(value, _KINDS[name]) or (isinstance(value, bool) and bool not in _KINDS[name]):
            raise ValueError(f"{name} is {value!r}")
    return Run(**{**record, "limits": tuple(map(Limit.parse, record["limits"]))})


def read_record(folder: str | Path) -> Record:
    """The record of the run in `folder`; one sentence if there is none or it is damaged."""
    path = Path(folder) / RECORD
    if not path.is_file():
        why = "it has no run.json" if Path(folder).is_dir() else "there is no such folder"
        if (mixture := Path(folder) / "mixture.safetensors").is_file():
            why += f"; for the policy alone, give {mixture}"
        raise InputError(f"{folder} is not a run: {why}.")
    record = read_json(path, "a run")
    try:
        fields = {"extended": (), **record, "task": record["problem"], "run": _run(record["run"])}
        answer: Record = typed(Record, fields)
        int(answer.config["steps"])
    except KeyError as error:
        raise InputError(f"{path} is not readable as a run (it has no {error}).") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} is not readable as a run ({error}).") from error
    return answer


def read_run(folder: str | Path) -> Run:
    """The `Run` of a folder."""
    return read_record(folder).run


def write_extension(folder: Path, record: Record) -> None:
    """Write what `Record.extended_to` gave; the result of before, if there is one, is taken back."""
    kept = read_json(folder / RECORD, "a run")
    kept["extended"] = list(record.extended)
    kept["run"]["settings"] = dict(record.run.settings)
    kept["config"]["steps"] = record.steps
    # in this order: a kill in between leaves a whole run of the old length or an unfinished one of the new
    write_json(folder / RECORD, kept)
    (folder / RESULT).unlink(missing_ok=True)


def installed_versions() -> dict[str, str]:
    """The versions that the bits of a run depend on, of what is installed; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "scipy", "jax", "jaxlib", "equinox", "optax"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_record(folder: Path, run: Run, config: Any, task: Mapping[str, Any], env_id: str | None) -> None:
    """Write `run.json`. config: a dataclass; task: of a `TaskRecord`; env_id: that of the data."""
    record = {
        "version": __version__,
        "versions": installed_versions(),
        "run": {**dataclasses.asdict(run), "limits": run.limit_texts},
        "config": dataclasses.asdict(config),
        "problem": dict(task),
        "env_id": env_id,
    }
    write_json(folder / RECORD, record)
