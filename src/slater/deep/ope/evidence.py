"""What a log says of the policies and estimators that a run may use, before the game.

The log is studied quickly, and the quick study's ensemble is checked in closed loop on the log's cohorts
under the run's limits. Where it is right about all of them, that is the run's evidence. Where it is wrong
about some, or a clone does other things than its cohort did, the same log is studied thoroughly, and the
check is made again, by all estimators. Which of the two a run has is decided by data and limits alone, so it
is the same for all seeds, and both studies stay in the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from slater.data import Dataset
from slater.deep.ope.base import Tick
from slater.deep.ope.choice import Verdict, verdict
from slater.deep.ope.ensemble import Ensemble
from slater.deep.ope.judges import Rollouts, judges_of
from slater.deep.ope.study import Study, StudySettings, study
from slater.deep.task import Task

__all__ = ["Evidence", "evidence"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """The study that a run lives off, and what it says of the estimators.

    steering: networks of the quick study that steer lambda, and judge nothing
    again: whether the log was studied a second time, thoroughly
    """

    study: Study
    verdict: Verdict
    steering: Ensemble
    again: bool


#: what this process asked for last: a run asks before and after its game
_last: OrderedDict[tuple[str, ...], Evidence] = OrderedDict()
_MOST = 2


def evidence(
    task: Task, dataset: Dataset, settings: StudySettings, cache: Path, *, thorough: bool = True,
    tick: Tick | None = None,
) -> Evidence:  # fmt: skip
    """The evidence of `dataset` under the task's limits, by studies in the folder `cache`.

    settings: of the quick study, some of whose networks steer; thorough: whether a second one may follow.
    """
    quick = study(dataset, task, settings, cache, tick)
    key = (quick.name, str(thorough), *map(str, task.limits), str(task.tau.tolist()))
    if key in _last:
        return _last[key]
    checked = verdict(task, quick, [Rollouts(task, quick)], quick.replays(dataset))
    if checked.settled:
        found = Evidence(quick, checked, quick.ensemble, again=False)
    else:
        own = study(dataset, task, settings.thorough, cache, tick) if thorough else quick
        second = verdict(task, own, judges_of(task, own, dataset), own.replays(dataset))
        found = Evidence(own, second, quick.ensemble, again=thorough)
    _last[key] = found
    while len(_last) > _MOST:
        _last.popitem(last=False)
    return found
