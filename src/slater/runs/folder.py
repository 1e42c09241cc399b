"""The folder of a run, for reading."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from slater.disk import digest_of
from slater.errors import InputError
from slater.runs.evaluations import Evaluation, read_evaluations
from slater.runs.metrics import METRICS, Metrics, read_metrics
from slater.runs.record import RECORD, Record, Run, TaskRecord, read_record
from slater.runs.result import RESULT, Member, Result, read_result

if TYPE_CHECKING:
    from slater.policy import Contract, Mixture, SavedPolicy


def is_run(folder: str | Path) -> bool:
    """Whether a run was begun in `folder`."""
    return (Path(folder) / RECORD).is_file()


def find_runs(folder: str | Path) -> Iterator[Path]:
    """The folders of all runs below `folder`, at any depth, in order."""
    return (path.parent for path in sorted(Path(folder).rglob(RECORD)))


def new_run_folder(name: str) -> Path:
    """A new folder `runs/name`, with a number behind it where there is one of that name already."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"the folder {folder} cannot be made: {error.strerror}.") from error
    raise AssertionError


@contextmanager
def folder_for(out: str | Path | None, name: str) -> Iterator[Path]:
    """The folder of a run to be: `out`, or a new one, which goes again if what was begun here is refused."""
    folder = new_run_folder(name) if out is None else Path(out)
    try:
        yield folder
    except InputError:
        if out is None and not is_run(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def kept_path(folder: Path, step: int) -> Path:
    """The file of the policy that a finished run kept after iteration `step`."""
    return folder / "policies" / f"{step:08d}.safetensors"


def save_kept(folder: Path, step: int, policy: SavedPolicy, contract: Contract) -> None:
    """Write the policy of a member, so that it can be loaded alone."""
    from slater.policy import save

    path = kept_path(folder, step)
    path.parent.mkdir(exist_ok=True)
    save(policy, path, contract)


@dataclass(frozen=True, repr=False)
class SavedRun:
    """A run as it is in its folder: `record` from the beginning, the rest as far as the run has come."""

    folder: Path
    record: Record

    def __repr__(self) -> str:
        state = f"{self.result!r}"[1:-1] if self.finished else f"{self.run.algorithm}, not finished"
        return f"<Run in {self.folder}: {state}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_() if self.finished else f"<p>{escape(repr(self)[1:-1])}</p>"

    @property
    def run(self) -> Run:
        """What defines it."""
        return self.record.run

    @property
    def task(self) -> TaskRecord:
        """Sizes, discount, horizon and limits."""
        return self.record.task

    @property
    def env(self) -> str | None:
        """The environment that the run names, else the one that its data name, else None."""
        return self.run.env or self.record.env_id

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return (self.folder / RESULT).is_file()

    @property
    def evaluations(self) -> list[Evaluation]:
        """What was measured about its policies, oldest first."""
        return read_evaluations(self.folder)

    def measured(self, env: str | None = None) -> Evaluation | None:
        """The last measurement of the mixture as it is now, in `env` if one is named.

        One under other limits or of a mixture that the run had before it was extended is none of it. One
        with the likeliest actions, which are another policy, counts only where there is no other.
        """
        now = digest_of(self.folder / "mixture.safetensors")
        own = [
            one for one in self.evaluations if (one.policy, one.limits, one.digest) == ("mixture", None, now)
        ]
        found = [one for one in own if env in (None, one.env)]
        found.sort(key=lambda one: not one.deterministic)  # stable: the last one of its kind stays last
        return found[-1] if found else None

    def measured_kept(self) -> dict[int, Evaluation]:
        """Step of a kept policy -> its last measurement under the run's limits, of the file as it is now."""
        found: dict[int, Evaluation] = {}
        for member in self.result.members:
            file = kept_path(self.folder, member.step)
            own = [x for x in self.evaluations if x.policy == file.name and not x.deterministic]
            if own and file.is_file() and own[-1].digest == digest_of(file):
                found[member.step] = own[-1]
        return found

    @cached_property
    def metrics(self) -> Metrics:
        """The rows so far, as they were when first asked for."""
        return Metrics(read_metrics(self.folder / METRICS))

    def kept_policy(self, member: Member) -> SavedPolicy | Mixture:
        """The policy of one member of a finished run, ready to act; NumPy alone."""
        from slater.policy import load

        path, run, task = kept_path(self.folder, member.step), self.run, self.task
        policy = load(path)
        said, known = getattr(policy, "contract", None), {"steps": member.step, "limits": run.limit_texts}
        known |= {name: getattr(run, name) for name in ("algorithm", "seed", "fingerprint")}
        known |= {"gamma": task.gamma, "horizon": task.horizon}
        if any(getattr(said, name, None) != value for name, value in known.items()):
            raise InputError(f"{path} is not the policy that the run kept there; put back what was there.")
        return policy

    @property
    def result(self) -> Result:
        """What came out; an `InputError` if the run is not finished."""
        found = read_result(self.folder)
        if found is None:
            raise InputError(f"the run in {self.folder} is not finished: it has no {RESULT}.")
        return found


def run_of(path: Path) -> SavedRun | None:
    """The run in a folder, or that a policy file belongs to: it lies there, or, if kept, a floor below."""
    if path.is_dir():
        return open_run(path)
    return next((open_run(folder) for folder in path.absolute().parents[:2] if is_run(folder)), None)


def open_run(folder: str | Path) -> SavedRun:
    """The run in `folder`; one sentence if there is none, or if its record cannot be read."""
    return SavedRun(Path(folder), read_record(folder))
