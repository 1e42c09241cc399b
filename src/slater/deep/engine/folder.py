"""The folder of a run in progress; what others read of it is in `slater.runs`.

checkpoint.safetensors   the whole state, the step and the members so far; replaced atomically
members/NNNNNNNN.safetensors   what each kept policy has learned
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slater.data import Dataset, StoredDataset
from slater.deep import checkpoint
from slater.deep.algorithms.base import Algorithm, Member
from slater.deep.algorithms.registry import find, make_algorithm, make_config
from slater.deep.nets.policy import Exportable, Gaussian
from slater.deep.task import Task
from slater.disk import typed, write_atomic
from slater.errors import InputError
from slater.runs import Record, Run, TaskRecord, is_run, read_run
from slater.runs.held_out import HeldOut
from slater.runs.record import read_record, write_record
from slater.runs.result import from_log

#: file of the whole state, the step and the members so far
CHECKPOINT = "checkpoint.safetensors"


def algorithm_of(run: Run, dataset: Dataset | StoredDataset | None = None) -> Algorithm[Any, Any]:
    """The algorithm of a run with its settings; with the data, those decided that are left to them."""
    algorithm = make_algorithm(run.algorithm, run.settings, run.preset)
    return algorithm if dataset is None else type(algorithm)(algorithm.config_for(dataset))


def recorded_algorithm(record: Record) -> Algorithm[Any, Any]:
    """The algorithm with the settings that were decided when the run began, whatever defaults are now."""
    kind = find(record.run.algorithm, record.run.preset)
    return kind(make_config(kind, record.config))


def run_on(folder: str | Path, dataset: Dataset | StoredDataset) -> Run:
    """The run in `folder`; refused if it was started with other data than `dataset`."""
    run = read_run(folder)
    if run.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the data is not what {folder} was started with ({run.data}): its fingerprint differs."
        )
    return run


def identity_of(run: Run, algorithm: Algorithm[Any, Any], task: Task) -> str:
    """SHA-256 (hex) of what a run computes with but for its number of steps, which may be extended."""
    # read as a record is, so that numbers are of the same types when the run goes on
    config = dataclasses.asdict(make_config(type(algorithm), dataclasses.asdict(algorithm.config)))
    facts = [run.algorithm, run.preset, run.seed, {**config, "steps": None}, task.identity(run.fingerprint)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _described(task: Task, run: Run) -> dict[str, Any]:
    return {**task.describe(), "identity": task.identity(run.fingerprint)}


def _facts(task: TaskRecord) -> dict[str, Any]:
    """What a person is told about a task, by name."""
    given = [limit.given for limit in task.limits]
    return {**vars(task), "limits": ", ".join(given), "identity": None}


def refuse_other_task(folder: Path, run: Run, task: Task) -> None:
    """Refuse to go on with the run in `folder`, if there is one, as `run` on `task`: it was another task."""
    if not is_run(folder):
        return
    before, now = read_record(folder).task, typed(TaskRecord, _described(task, run))
    if before.identity == now.identity:
        return
    found = [
        f"{name} was {was} and is {_facts(now)[name]}"
        for name, was in _facts(before).items()
        if was != _facts(now)[name]
    ]
    raise InputError(
        f"the task is not the one that {folder} was started with: "
        f"{'; '.join(found) or 'how observations or values are scaled differs'}. Give the data as they were "
        "read then, or train anew."
    )


class RunFolder:
    """The folder of one run in progress: its checkpoint and the members of its mixture.

    run: what it is a run of (`identity_of`), written into every file, so that none of another run is taken
    saved: step of the last good checkpoint, -1 before the first; members: those kept so far.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.saved = -1
        self.members: list[Member] = []

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.path / CHECKPOINT).exists()

    def claim(
        self, run: Run, config: Any, task: Task, state_bytes: int, env_id: str | None, kept: HeldOut | None
    ) -> None:
        """Refuse a folder that cannot be written, or a full disk; write a new run's record and hold-out."""
        try:
            (self.path / "members").mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path).free
            # a new checkpoint stands beside the old one for a moment; members and metrics are smaller
            if free < 3 * state_bytes + 2**20:
                raise InputError(
                    f"the disk of {self.path} has {free / 2**20:.0f} MB left; "
                    f"this run needs about {3 * state_bytes / 2**20 + 1:.0f} MB."
                )
            if not is_run(self.path):
                if kept is not None:
                    kept.save(self.path)
                write_record(self.path, run, config, _described(task, run), env_id)
            write_atomic(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except OSError as error:
            raise InputError(f"the folder {self.path} cannot be written: {error.strerror}.") from error

    def load(self, initial: Any) -> tuple[Any, int]:
        """State and step of the checkpoint, or `initial` and 0."""
        if not self.has_checkpoint:
            return initial, 0
        path = self.path / CHECKPOINT
        self._refuse_other_run(path)
        state, record = checkpoint.restore(path, initial)
        self.members = [
            Member(m["step"], m["estimates"] and tuple(m["estimates"]), kind=m["kind"])
            for m in record["members"]
        ]
        self.saved = int(record["step"])
        return state, self.saved

    def _refuse_other_run(self, path: Path, step: int | None = None) -> dict[str, Any]:
        """The record of a file of this run, and of this `step`; one of another is refused."""
        record = checkpoint.read_record(path)
        if record.get("run") != self.run or step not in (None, record.get("step")):
            raise InputError(
                f"{path} is of another run, or of another step of it, than {self.path / 'run.json'} says: "
                "data, settings or seed differ. Put back what was there, or train anew."
            )
        return record

    def save(self, state: Any, step: int) -> None:
        """Replace the checkpoint, unless it is of this step already."""
        if step == self.saved:
            return
        members = [dataclasses.asdict(m) for m in self.members]
        record = {"run": self.run, "step": step, "members": members}
        try:
            checkpoint.save(self.path / CHECKPOINT, state, record)
        except OSError as error:
            raise InputError(
                f"the checkpoint of step {step} could not be written to {self.path} ({error.strerror}); "
                f"the one of step {max(self.saved, 0)} is kept. Make room and resume the run."
            ) from error
        self.saved = step

    def _member_path(self, member: Member) -> Path:
        return self.path / "members" / f"{member.step:08d}.safetensors"

    def keep(self, policy: Exportable, member: Member) -> None:
        """Add a member; one of the same step or later, from before a resume, is forgotten."""
        record: dict[str, Any] = {"run": self.run, "step": member.step}
        if from_log(member.kind) and isinstance(policy, Gaussian):
            record["log_std_range"] = list(policy.log_std_range)  # other than that of the run's own policies
        checkpoint.save(self._member_path(member), policy, record)
        self.members = [*(m for m in self.members if m.step < member.step), member]

    def keep_candidates(self, candidates: Sequence[tuple[Exportable, str]], state: Any, steps: int) -> None:
        """Add the policies, each with its kind, that the log gave after `steps` iterations, once."""
        self.members = [member for member in self.members if not from_log(member.kind)]
        for number, (policy, kind) in enumerate(candidates):
            self.keep(policy, Member(steps + 1 + number, kind=kind))
        self.saved = -1  # the checkpoint of this step does not know them yet
        self.save(state, steps)

    def policies(self, like: Exportable) -> list[Exportable]:
        """The members' policies, in order."""
        found: list[Exportable] = []
        for member in self.members:
            path = self._member_path(member)
            own = self._refuse_other_run(path, member.step).get("log_std_range")
            if own is not None and isinstance(like, Gaussian):
                found.append(checkpoint.restore(path, dataclasses.replace(like, log_std_range=tuple(own)))[0])
            else:
                found.append(checkpoint.restore(path, like)[0])
        return found
