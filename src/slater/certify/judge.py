"""`certify`: one call that finds the policies, the evidence and the tier that can speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from slater.certify.conformal import Calibration
from slater.certify.held_out import certifying_part, independence, own_actions, own_episodes
from slater.certify.ledger import Entry, enter
from slater.certify.ranges import Stated
from slater.certify.subjects import LoggedProbability, Origin, Subject, check_fits, find_policy, on_rows
from slater.certify.verdict import Certificate, with_gate
from slater.data import Dataset, ReadOptions
from slater.data.formats.base import read_options
from slater.errors import InputError
from slater.limits import Limit, Limits, limit_list, resolve_limits
from slater.policy import parts_of
from slater.runs.held_out import training_part
from slater.runs.log import judged_sums

#: who has seen the largest cost of a step that a policy's file knows
TRAINING_LOG = "the log that trained the policy"


@dataclass(frozen=True)
class _Asked:
    """What is asked about every policy alike; see `certify`."""

    limits: tuple[Limit, ...]
    confidence: float
    candidates: int
    largest_step_cost: Stated
    largest_episode_cost: Stated
    horizon: int | None
    largest_weight: float | None
    #: whether episodes are a deployment that is looked at as they come
    plan: bool
    #: of the error, where certificates on one log share it
    share: float = 1.0

    def of(self, subject: Subject, evidence: Dataset | None = None) -> dict[str, Any]:
        """The arguments of a tier for one policy, and for the costs of the evidence."""
        origin = subject.origin
        return {
            "limits": _limits(self.limits, origin, None if evidence is None else evidence.cost_names),
            "confidence": self.confidence, "candidates": self.candidates, "name": subject.name,
            "gamma": origin.gamma, "largest_step_cost": self.largest_step_cost,
            "largest_episode_cost": self.largest_episode_cost,
            "known": {name: (most, TRAINING_LOG) for name, most in origin.largest_step_cost.items()},
        }  # fmt: skip


def _limits(given: Sequence[Limit], origin: Origin, names: Sequence[str] | None) -> tuple[Limit, ...]:
    """One limit per cost, by name: those without one are in the order of the policy's own costs.

    names: the costs of the evidence, whose lone cost may have another name.
    """
    stated = list(given) or limit_list(origin.limits)
    own = origin.costs or tuple(names or ())
    if names is not None and len(own) == len(names) == 1:
        own = tuple(names)
        if not given:  # the limit of its training, on the one cost there is
            stated = [replace(limit, cost=None) for limit in stated]
    return resolve_limits(stated, own) if own else tuple(stated)


def certify(
    policy: Any, data: str | Path | Dataset | None = None, limits: Limits = (), **options: Any
) -> Certificate:
    """Whether a policy keeps its limits: pass, fail or abstain for each, with the bounds and the reasons.

    policy: see `find_policy`. limits: one per cost, as "20", "0.05/step", "NAME=20"; by default those that
    the policy was trained for. options: those of `certify_many`.
    """
    return certify_many([policy], data, limits, **options)[0]


def certify_many(
    policies: Sequence[Any],
    data: str | Path | Dataset | None = None,
    limits: Limits = (),
    *,
    confidence: float = 0.95,
    env: str | None = None,
    episodes: int = 100,
    at_most: int | None = None,
    own: Any = None,
    candidates: int | None = None,
    largest_step_cost: Stated = None,
    largest_episode_cost: Stated = None,
    largest_weight: float | None = None,
    plan: bool = False,
    horizon: int | None = None,
    columns: Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    reading: ReadOptions | None = None,
    seed: int = 0,
    workers: int = 1,
    deterministic: bool = False,
    calibration: Calibration | None = None,
    fit: bool = True,
    cache: Path | None = None,
    progress: Callable[[Any], None] | None = None,
) -> list[Certificate]:
    """Certificates of several candidates, which share the error; the best evidence that is given speaks.

    - `own`: logged episodes of one policy itself; `env`: a simulator to run policies in, for `episodes`
      episodes or, with `at_most`, until every limit is decided (tier "rollouts");
    - `data` with propensities and a policy that knows its likelihood (tier "propensities");
    - `data` (tier "estimates"), by default those of the run: the model that is fitted to them once, for
      training and for all candidates. `fit=False` fits nothing: it says at once what keeps that tier from a
      verdict. cache: folder of fitted logs, by default the user's.

    By propensities, episodes that trained a policy do not judge it; estimates are calibrated as made from
    what trained it. candidates: how many policies are judged together, by default those that are given.
    largest_step_cost, largest_episode_cost: what a step and an episode cost at most, one number or by name;
    by default what a step of the data that trained the policy cost at most, else what the environment says.
    columns: which column of `own` or `data` is which, where they are a table with other names than the
    policy's log; reading: more about how they are read. largest_weight: how many times as likely as in the
    log an action can be at most under the policy, with propensities. plan: `own` episodes are a trial that is
    looked at as they come. What would decide limits that are left open is in `details["plan"]`. horizon:
    steps of an episode, by default the policy's, then that of the evidence.
    """
    subjects = [find_policy(policy) for policy in policies]
    if not subjects:
        raise InputError("there is nothing to certify; give at least one policy.")
    if own is not None and env is not None:
        raise InputError("give either the policy's own episodes or an environment to run it in, not both.")
    if own is not None and len(subjects) > 1:
        raise InputError("logged episodes are of one policy; certify the candidates one by one.")
    column = any(isinstance(one.policy, LoggedProbability) for one in subjects)
    if column and (env is not None or own is not None):
        raise InputError(
            "probabilities of logged actions cannot act in an environment, nor have episodes of their own: "
            "give a log with propensities."
        )
    if columns is not None:
        reading = replace(reading or ReadOptions(), columns=read_options(columns).columns)
    log: Dataset | None = None
    counts: dict[str, Any] = {
        "horizon": horizon, "number of candidates": candidates, "number of episodes": episodes,
        "most episodes": at_most, "seed": seed, "number of workers": workers,
    }  # fmt: skip
    for what, count in counts.items():
        least = int(what != "seed")
        if count is not None and not (isinstance(count, Integral) and int(count) >= least):
            raise InputError(f"the {what} is {count!r}; it must be a whole number, at least {least}.")
    shared = len(subjects) if candidates is None else candidates
    if shared < len(subjects):
        raise InputError(f"{len(subjects)} policies are judged together, and candidates is {shared}.")
    asked = _Asked(
        tuple(limit_list(limits)), confidence, shared, largest_step_cost, largest_episode_cost, horizon,
        largest_weight, plan,
    )  # fmt: skip
    if not asked.limits and not all(subject.origin.limits for subject in subjects):
        raise InputError("no limit is given, and the policy has no run that knows its limits.")
    if own is not None:
        found = [_by_own(subjects[0], subjects[0].origin.read(own, reading), asked)]
    elif env is not None:
        from slater.certify.rollouts import certify_rollouts

        found = [
            certify_rollouts(
                one.policy, env, cost_names=one.origin.costs or None, episodes=episodes, at_most=at_most,
                horizon=horizon or one.origin.horizon, seed=seed, workers=workers,
                deterministic=deterministic, progress=progress, **asked.of(one),
            )
            for one in subjects
        ]  # fmt: skip
    else:
        log = subjects[0].origin.read(data, reading)
        found = _by_log(subjects, data, log, asked, {"calibration": calibration, "fit": fit, "cache": cache})
    if plan or any(one.verdict == "abstain" for one in found):
        from slater.certify.plan import with_plan

        def costs(one: Certificate) -> Any:
            if log is None:
                return one.details["episode_costs"]
            return judged_sums(log, [limit.cost for limit in one.limits])[1].tolist()

        found = [with_plan(one, costs(one)) for one in found]
    pairs = zip(found, subjects, strict=True)
    return [replace(one, policy=subject.name, digest=subject.digest) for one, subject in pairs]


def _by_own(subject: Subject, episodes: Dataset, asked: _Asked) -> Certificate:
    from slater.certify.rollouts import certify_episodes

    origin = subject.origin
    check_fits(subject.policy, episodes)
    steps = asked.horizon or origin.horizon
    found = certify_episodes(episodes, horizon=steps, stopping=asked.plan, **asked.of(subject, episodes))
    gates = (
        independence(episodes),
        own_episodes(episodes, origin.fingerprint, origin.trained_on, origin.held_out),
        own_actions(episodes, subject.policy),
    )
    for gate in reversed(gates):  # the first that is closed is the reason
        found = found if gate.passed else with_gate(found, gate)
    return found


def _by_log(
    subjects: Sequence[Subject], data: Any, log: Dataset, asked: _Asked, options: Mapping[str, Any]
) -> list[Certificate]:
    """By propensities where those can speak, else by estimates, of one fit for all that one log trained."""
    subjects, whole = on_rows(subjects, log)
    known = subjects[0].origin
    place = data if isinstance(data, str | Path) else known.data
    if data is not None and not isinstance(data, str | Path):
        # a log in memory has a place for a ledger if it is that of the run
        there = known.held_out.fingerprint if known.held_out else known.fingerprint
        place = place if whole.fingerprint == there and Path(place).exists() else ""
    entry = Entry(1, "")
    # what is not fitted decides nothing without propensities
    if place and (options["fit"] or whole.propensity is not None):
        entry = enter(place, whole.fingerprint, [one.identity for one in subjects], asked.candidates)
    asked = replace(asked, share=entry.share if entry.said else 1.0)
    found: dict[int, Certificate] = {}
    waiting: dict[tuple[Any, ...], list[int]] = {}
    parts: dict[int, Dataset] = {}
    silent: dict[int, str] = {}
    for number, subject in enumerate(subjects):
        check_fits(subject.policy, whole)
        origin = subject.origin
        likely = all(hasattr(member, "log_probability") for _, member in parts_of(subject.policy))
        if whole.propensity is not None and likely:
            weighted = _weighted(subject, whole, asked)
            closed = [g.reason for limit in weighted.limits for g in limit.gates if not g.passed]
            # where the weights can say nothing (long episodes, or data that trained), estimates may still
            if not closed or isinstance(subject.policy, LoggedProbability):
                found[number] = weighted
                continue
            silent[number] = closed[0]
        elif asked.largest_weight is not None:
            raise InputError(
                "a largest weight is about propensities, and the data have none, or the policy does not say "
                "how likely its actions are."
            )
        # the log that trained a policy says of it what the run said, and that is calibrated
        part = parts[number] = _as_long(training_part(whole, origin.held_out), asked, origin)
        limits = _limits(asked.limits, origin, part.cost_names)
        key = (part.fingerprint, part.horizon, origin.gamma, limits, tuple(origin.largest_step_cost.items()))
        waiting.setdefault(key, []).append(number)
    for members in waiting.values():
        for number, one in _estimated(subjects, members, parts[members[0]], asked, options).items():
            why = silent.get(number)
            silence = [] if why is None else [f"propensities decide nothing here: {why}"]
            alone = independence(parts[number])
            one = replace(one, assumptions=(*one.assumptions, *silence))
            found[number] = one if alone.passed else with_gate(one, alone)
    said = (entry.said,) if entry.said else ()
    return [replace(one, assumptions=(*one.assumptions, *said)) for _, one in sorted(found.items())]


def _as_long(part: Any, asked: _Asked, origin: Origin) -> Dataset:
    """The part of a log with the horizon that is asked for, or that the policy was trained with."""
    horizon = asked.horizon or origin.horizon
    assert isinstance(part, Dataset)
    if horizon is None or horizon == part.metadata.horizon:
        return part
    return replace(part, metadata=replace(part.metadata, horizon=horizon))


def _weighted(subject: Subject, whole: Dataset, asked: _Asked) -> Certificate:
    """By propensities, of episodes that did not train the policy."""
    from slater.certify.propensities import certify_propensities

    origin = subject.origin
    part, gate = certifying_part(whole, origin.held_out, origin.fingerprint, origin.trained_on)
    part = _as_long(part, asked, origin)
    own = asked.of(subject, part)
    found = certify_propensities(part, subject.policy, largest=asked.largest_weight, share=asked.share, **own)
    found, alone = with_gate(found, gate), independence(part)
    return found if alone.passed else with_gate(found, alone)


def _estimated(
    subjects: Sequence[Subject], members: Sequence[int], part: Dataset, asked: _Asked,
    options: Mapping[str, Any],
) -> dict[int, Certificate]:  # fmt: skip
    """Certificates by estimates of candidates that one part of the log judges."""
    from slater.certify.estimates import certify_candidates
    from slater.deep.log_model.log_model import cache_folder

    # one name may be given twice
    names = {f"{subjects[k].name} ({k + 1})" if len(members) > 1 else subjects[k].name: k for k in members}
    arguments = asked.of(subjects[members[0]], part)
    del arguments["name"]
    certificates = certify_candidates(
        part, {name: subjects[k].policy for name, k in names.items()},
        kinds={name: subjects[k].kind for name, k in names.items()},
        cache=options["cache"] or cache_folder(), calibration=options["calibration"], fit=options["fit"],
        share=asked.share, **arguments,
    )  # fmt: skip
    return dict(zip(members, certificates, strict=True))
