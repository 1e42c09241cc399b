"""A run on disk: the record that defines it, and its folder.

run.json                 algorithm, settings, data with its fingerprint, limits in all units, seed
checkpoint.safetensors   the whole state, the step and the members so far; replaced atomically
metrics.jsonl            one JSON object per line
members/NNNNNNNN.safetensors   what each kept policy has learned (`member_policies`)
policy.safetensors, mixture.safetensors   policies (`slater.policy.load`)
result.json              what came out, when the run is finished
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from slater import __version__
from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Member
from slater.deep.algorithms.registry import find, make_config
from slater.deep.batches import prepare
from slater.deep.engine import checkpoint
from slater.deep.nets.policy import Exportable
from slater.deep.task import Task
from slater.disk import write_atomic
from slater.errors import InputError
from slater.limits import resolve_limits
from slater.policy import Policy

__all__ = ["Run", "RunFolder", "member_policies", "read_run"]


@dataclass(frozen=True)
class Run:
    """What defines a run, all of it: the same `Run` gives the same bits (on the same machine).

    algorithm, preset, settings: by name; settings overrule the preset
    limits: texts as on the command line, one per cost
    data: where the dataset is from, as a path or a remark; fingerprint: its SHA-256
    log_every, checkpoint_every: iterations; env, eval_every, eval_episodes: rollouts while training
    memory: GB (10^9 bytes) for the data; a store that needs more is trained on in shards
    """

    algorithm: str
    limits: tuple[str, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    seed: int = 0
    data: str = "in memory"
    fingerprint: str = ""
    log_every: int = 100
    checkpoint_every: int = 1_000
    env: str | None = None
    eval_every: int | None = None
    eval_episodes: int = 10
    memory: float = 4.0

    def __post_init__(self) -> None:
        for name in ("log_every", "checkpoint_every", "eval_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.eval_every is not None and self.eval_every < 1:
            raise InputError(f"eval_every must be at least 1, not {self.eval_every}.")
        if not self.memory > 0:
            raise InputError(f"memory must be a positive number of GB, not {self.memory}.")
        if self.seed < 0:
            raise InputError(f"the seed must be at least 0, not {self.seed}.")

    def make(self, dataset: Dataset | StoredDataset | None = None) -> Algorithm[Any, Any]:
        """The algorithm with its settings; with the data, those decided that are left to them."""
        kind = find(self.algorithm)
        algorithm = kind(make_config(kind, self.settings, self.preset))
        return algorithm if dataset is None else kind(algorithm.settled(dataset))


def read_run(folder: str | Path) -> Run:
    """The `Run` of a folder."""
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise InputError(f"{folder} is not a run: it has no run.json.")
    try:
        record = json.loads(path.read_text())["run"]
        return Run(**{**record, "limits": tuple(record["limits"])})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as a run ({error}).") from error


def member_policies(folder: str | Path, dataset: Dataset) -> list[Policy]:
    """Every policy that the finished run in `folder` kept, in order, ready to act; `dataset`: its data."""
    run = read_run(folder)
    if run.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the data is not what {folder} was started with ({run.data}): its fingerprint differs."
        )
    algorithm = run.make(dataset)
    config = algorithm.config
    task, transitions = prepare(
        dataset, resolve_limits(run.limits, dataset.cost_names), config.gamma,
        normalise_observations=config.normalise_observations, reward_scale=config.reward_scale,
    )  # fmt: skip
    algorithm.data(dataset, task, transitions)
    place = RunFolder(Path(folder))
    state, _ = place.load(algorithm.init(task, jax.random.key(0)))
    return [policy.export(task) for policy in place.policies(algorithm.policy(state))]


class RunFolder:
    """The folder of one run in progress: its checkpoint and the members of its mixture.

    saved: step of the last good checkpoint, -1 before the first; members: those kept so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.saved = -1
        self.members: list[Member] = []

    def claim(self, run: Run, config: Any, task: Task, state_bytes: int) -> None:
        """Say before training starts that the folder cannot be written or the disk is too small."""
        try:
            (self.path / "members").mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path).free
            # a new checkpoint stands beside the old one for a moment; members and metrics are smaller
            if free < 3 * state_bytes + 2**20:
                raise InputError(
                    f"the disk of {self.path} has {free / 2**20:.0f} MB left; "
                    f"this run needs about {3 * state_bytes / 2**20 + 1:.0f} MB."
                )
            if not (self.path / "run.json").exists():
                record = {
                    "version": __version__,
                    "run": dataclasses.asdict(run),
                    "config": dataclasses.asdict(config),
                    "problem": task.describe(),
                }
                write_atomic(self.path / "run.json", json.dumps(record, indent=1).encode())
            write_atomic(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except OSError as error:
            raise InputError(f"the folder {self.path} cannot be written: {error.strerror}.") from error

    def load(self, initial: Any) -> tuple[Any, int]:
        """State and step of the checkpoint, or `initial` and 0."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return initial, 0
        state, record = checkpoint.restore(path, initial)
        self.members = [
            Member(m["step"], m["estimates"] and tuple(m["estimates"])) for m in record["members"]
        ]
        self.saved = int(record["step"])
        return state, self.saved

    def save(self, state: Any, step: int) -> None:
        """Replace the checkpoint, unless it is of this step already."""
        if step == self.saved:
            return
        record = {"step": step, "members": [dataclasses.asdict(m) for m in self.members]}
        try:
            checkpoint.save(self.path / "checkpoint.safetensors", state, record)
        except OSError as error:
            raise InputError(
                f"the checkpoint of step {step} could not be written to {self.path} ({error.strerror}); "
                f"the one of step {max(self.saved, 0)} is kept. Make room and run: "
                f"slater train --resume {self.path}"
            ) from error
        self.saved = step

    def _member_path(self, member: Member) -> Path:
        return self.path / "members" / f"{member.step:08d}.safetensors"

    def keep(self, policy: Exportable, member: Member) -> None:
        """Add a member; one of the same step or later, from before a resume, is forgotten."""
        checkpoint.save(self._member_path(member), policy, {"step": member.step})
        self.members = [*(m for m in self.members if m.step < member.step), member]

    def policies(self, like: Exportable) -> list[Exportable]:
        """The members' policies, in order."""
        return [checkpoint.restore(self._member_path(m), like)[0] for m in self.members]
