"""What a log says of the policies and estimators that a run may use, before the game.

The log is studied quickly, and the quick study's ensemble is checked in closed loop on the log's cohorts
under the run's limits. Where it is right about all of them, that is the run's evidence. Where it is wrong
about some, or a clone does other things than its cohort did, the same log is studied thoroughly, and the
check is made again. Where its ensemble fails, or passes because clones are excused, a likelihood may have
been the wrong loss: in a world without noise a network takes its own misfit for noise, and neglects what it
is unsure of. So a third study is made, with networks of squared errors that sample none. Of the second and
the third, the one is taken whose ensemble passes, and of two the one that is right about more cohorts; if
neither passes, the other estimators are asked about the second, and what is right about most is taken. Which
of them a run has is decided by data and limits alone, so it is the same for all seeds, and all studies stay
in the cache.
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
        found = _second(task, dataset, settings, cache, quick, thorough, tick)
    _last[key] = found
    while len(_last) > _MOST:
        _last.popitem(last=False)
    return found


def _second(
    task: Task, dataset: Dataset, settings: StudySettings, cache: Path, quick: Study, thorough: bool,
    tick: Tick | None,
) -> Evidence:  # fmt: skip
    """What is found where the quick study is wrong; see the module's text."""
    tried: list[Evidence] = []
    for way in (settings.thorough, settings.without_noise) if thorough else ():
        better = study(dataset, task, way, cache, tick)
        checked = verdict(task, better, [Rollouts(task, better)], better.replays(dataset))
        tried.append(Evidence(better, checked, quick.ensemble, again=True))
        if checked.settled:
            return tried[-1]
    if not any(found.verdict.best for found in tried):
        own = tried[0].study if tried else quick
        asked = verdict(task, own, judges_of(task, own, dataset), own.replays(dataset))
        tried = [Evidence(own, asked, quick.ensemble, again=thorough), *tried[1:]]
    return max(tried, key=_standing)


def _standing(found: Evidence) -> tuple[bool, int]:
    """Whether its estimator passes, and about how many cohorts it is right."""
    judge = found.verdict.judge
    return found.verdict.best is not None, 0 if judge is None else int(judge.right.sum())
