"""The data of the benchmark tasks: which file, which environment, whose data.

A task's file is looked for in one folder: the published DSRL file by its own name, else this project's own
dataset `<task in small letters>.hdf5`, as `slater behaviours data` makes it. The two are different data, so
results from them are never put in one table. The word `dsrl` in place of a folder downloads published files,
and a folder may be an address (`s3://bucket/logs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slater.data import Dataset, convert, load
from slater.data.download import fetch
from slater.data.remote import file_in
from slater.data.samples import ballcircle
from slater.data.tasks import TASKS
from slater.envs.making import IDS
from slater.errors import InputError

Kind = Literal["DSRL", "own", "sample"]

#: where the data of a kind come from, in words for a table
KINDS: dict[Kind, str] = {
    "DSRL": "DSRL's published data",
    "own": "this project's own data (slater collect)",
    "sample": "the sample that ships here",
}

#: words that stand instead of a folder: the dataset in the package, and DSRL's files, downloaded once
SAMPLE, PUBLISHED = "sample", "dsrl"

#: task -> environment; names of tasks are DSRL's for Bullet, the domains' for Real-World RL
TASK_ENVS: dict[str, str] = {env.partition("/")[2]: env for env in IDS}


@dataclass(frozen=True)
class TaskData:
    """The data of one task: its file, whose it is, its SHA-256, its size, and the environment."""

    task: str
    path: str
    kind: Kind
    fingerprint: str
    env: str
    episodes: int
    rows: int
    horizon: int


def task_name(text: str) -> str:
    """The task that a user means, in any case: `ballrun` is BallRun."""
    for name in TASK_ENVS:
        if name.lower() == text.lower():
            return name
    raise InputError(f"there is no task {text!r}; choose among {', '.join(TASK_ENVS)}.")


def find_task_data(
    tasks: Sequence[str], folder: str, *, skip_missing: bool = False
) -> tuple[list[TaskData], list[str]]:
    """The data of every task, and a sentence for each one that was left out for want of data.

    folder: of the files, or "sample" for the dataset in the package (BallCircle only), or "dsrl" for the
    published files. A missing file is an error unless `skip_missing`; it always is if no task has data.
    """
    sources, left_out = [], []
    for task in tasks:
        try:
            sources.append(_describe(task, *_find(task, folder)))
        except _NoDataError as error:
            if not skip_missing:
                raise
            left_out.append(str(error))
    if not sources:
        raise InputError(left_out[0] if left_out else "no task is named; name one, for example BallCircle.")
    return sources, left_out


def bare_copy(source: TaskData, folder: Path) -> TaskData:
    """The same data without names of sources and propensities, as DSRL's are, in a file below `folder`."""
    path = folder / f"{source.task.lower()}-{source.fingerprint[:8]}.hdf5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        convert(source.path, path, bare=True)
    return replace(source, path=str(path), fingerprint=load(path).fingerprint)


class _NoDataError(InputError):
    """A task has no file; the sentence says how to get one."""


def _find(task: str, folder: str) -> tuple[str | Path, Kind]:
    if folder == SAMPLE:
        if task != "BallCircle":
            raise _NoDataError(
                f"the sample that ships with the package is of BallCircle; for {task} name a folder of data."
            )
        return ballcircle(), "sample"
    published = TASKS.get(task)
    if folder == PUBLISHED:
        if published is None:
            raise _NoDataError(f"DSRL has no data of {task}; name a folder of data.")
        return fetch(published), "DSRL"
    if published is not None and (path := file_in(folder, published.file)):
        return path, "DSRL"
    if path := file_in(folder, f"{task.lower()}.hdf5"):
        return path, "own"
    ways = [] if published is None else [f"put the published {published.file} there"]
    ways.append(f"make it with: slater behaviours data {task.lower()} --folder {folder}")
    raise _NoDataError(f"{folder} has no data for {task}; {', or '.join(ways)}")


def _describe(task: str, path: str | Path, kind: Kind) -> TaskData:
    dataset: Dataset = load(path)
    # a file of another task under this name would be a silent wrong answer
    stated = (dataset.metadata.env_id or TASK_ENVS[task]).partition("?")[0]
    if stated in IDS and stated != TASK_ENVS[task]:
        raise InputError(f"{path} says that it is from {stated}, not from {TASK_ENVS[task]}.")
    sizes = len(dataset.episodes), len(dataset), dataset.horizon
    return TaskData(task, str(path), kind, dataset.fingerprint, TASK_ENVS[task], *sizes)
