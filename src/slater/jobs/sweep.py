"""Many training runs: the grid of seeds and settings, and each run as a job.

Every run, alone or among others, computes with the same single thread, so its bits do not depend on its
company.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slater.disk import locked
from slater.errors import InputError
from slater.jobs.engines import Row
from slater.pairs import parse_values
from slater.runs import Result, Run, is_run, read_metrics, read_result, read_run
from slater.runs.held_out import without_held_out
from slater.runs.metrics import METRICS

if TYPE_CHECKING:
    from slater.data import Dataset, StoredDataset

#: fields of a run that change nothing about its result, or only say again what others say
_WITHOUT_EFFECT = ("data", "checkpoint_every", "preset", "settings")


def grid(sweeps: Sequence[str], seeds: Sequence[int] | None, seed: int = 0) -> Iterator[dict[str, str]]:
    """Every combination of `NAME=V1,V2,...` texts and seeds, as name -> value; the seed varies fastest.

    seeds: None for what the texts say of `seed`, or `seed` if they say nothing.
    """
    axes = parse_values(sweeps, "sweep", "limit=10,20,40")
    named = axes.pop("seed", None)
    if named is not None and seeds is not None:
        raise InputError("the sweep names the seeds, and their number is given too; give one of the two.")
    for text in named or ():
        if not text.isdecimal():
            raise InputError(f"the seed {text!r} of the sweep is not a whole number of at least 0.")
    axes["seed"] = named or tuple(map(str, seeds or (seed,)))
    for point in itertools.product(*axes.values()):
        yield dict(zip(axes, point, strict=True))


@dataclass(frozen=True)
class TrainJob:
    """One run as a job for `slater.jobs.engines.run_jobs`, whose work is `TrainJob.run`.

    folder: of the run; data: path of the dataset; the rest are the arguments of `slater.deep.train`.
    tensorboard, wandb, trackio: loggers, the last two by their project. hold_out: share of the episodes that
    are kept from training, the same for every job on the same data.
    """

    folder: Path
    algorithm: str
    data: str
    limits: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    tensorboard: bool = False
    wandb: str | None = None
    trackio: str | None = None
    hold_out: float | None = None

    def plan(self, part: Dataset | StoredDataset) -> Run:
        """What the job will have done with `part`, the data but for what `hold_out` keeps from training."""
        from slater.deep.engine.training import make_run

        return make_run(
            self.algorithm, part, self.limits, seed=self.seed, preset=self.preset, options=self.options,
            settings=self.settings,
        )  # fmt: skip

    def into_folder(self, dataset: Dataset | StoredDataset, watcher: Any = None) -> Result:
        """Train on `dataset`, or go on from the last checkpoint; a finished run is left as it is."""
        from slater.deep import resume, train

        if (finished := read_result(self.folder)) is not None:
            return finished
        if is_run(self.folder):
            return resume(self.folder, dataset, watcher)
        return train(
            self.algorithm, dataset, self.limits, self.folder, seed=self.seed, preset=self.preset,
            hold_out=self.hold_out, watcher=watcher, options=self.options, **self.settings,
        )  # fmt: skip

    def run(self) -> Row:
        """Do it with the data at `data`; a row with `failed`, a sentence, if it cannot."""
        from slater.deep import DivergedError
        from slater.deep.engine.loggers import loggers
        from slater.deep.engine.sources import open_for_training

        try:
            # a worker of a sweep that died may still be saving
            with locked(self.folder, wait=30.0):
                pass
            dataset = open_for_training(
                self.data, self.options.get("memory", 4.0), self.options.get("reading")
            )
            self.into_folder(dataset, loggers(self.folder, self.tensorboard, self.wandb, self.trackio))
        except (InputError, DivergedError) as error:
            return {"failed": str(error)}
        return {}


def refuse_other_plans(jobs: Sequence[TrainJob]) -> None:
    """Refuse a folder that holds another run than the one that is planned there, by what differs."""
    from slater.deep.engine.folder import algorithm_of, refuse_other_task
    from slater.deep.engine.sources import open_for_training

    begun = [job for job in jobs if is_run(job.folder)]
    if not begun:
        return
    options = begun[0].options
    dataset = open_for_training(begun[0].data, options.get("memory", 4.0), options.get("reading"))
    part, _ = without_held_out(dataset, begun[0].hold_out)
    for job in begun:
        run = job.plan(part)
        if found := differences(read_run(job.folder), run):
            raise InputError(
                f"{job.folder} holds another run ({'; '.join(found)}); choose another folder, or remove it."
            )
        refuse_other_task(job.folder, run, algorithm_of(run, part).task(part, run.limits))


def differences(old: Run, new: Run) -> list[str]:
    """What would make `new` end with other bits than `old`, as texts; empty if nothing would."""
    if old.algorithm != new.algorithm:
        return [f"algorithm {old.algorithm}, not {new.algorithm}"]
    before, after = _facts(old), _facts(new)
    return [
        f"{name} {_text(before.get(name))}, not {_text(after.get(name))}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _facts(run: Run) -> dict[str, Any]:
    """Fields of the run and every setting of its algorithm, preset or not, by name."""
    from slater.deep.engine.folder import algorithm_of

    facts = {name: value for name, value in dataclasses.asdict(run).items() if name not in _WITHOUT_EFFECT}
    facts |= {"data": facts.pop("fingerprint"), "limits": run.limit_texts}
    return {**facts, **dataclasses.asdict(algorithm_of(run).config)}


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else str(value)


def last_row(folder: Path) -> Mapping[str, object]:
    """The last row of metrics of a run, `done` and its steps if it is finished, or nothing."""
    if (result := read_result(folder)) is not None:
        return {"done": True, "steps": result.steps}
    rows = read_metrics(folder / METRICS)
    return rows[-1] if rows else {}
