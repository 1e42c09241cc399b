"""`certify`: one call that finds the policy, the evidence and the tier that can speak."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.calibration import Calibration
from slater.certify.held_out import certifying_part
from slater.certify.verdict import Certificate, with_gate
from slater.data import Dataset
from slater.disk import digest_of
from slater.errors import InputError
from slater.limits import Limits, limit_list
from slater.policy import Mixture, Policy, load
from slater.runs import Result, SavedRun, is_run, open_run
from slater.runs.held_out import read_held_out
from slater.runs.log import load_log

__all__ = ["Subject", "certify", "certify_many", "find_policy"]


@dataclass(frozen=True)
class Subject:
    """A policy to be judged, and what is known about it: a name, the run that made it, where it lies."""

    policy: Any
    name: str
    run: SavedRun | None = None
    folder: Path | None = None
    #: of its file as it is now; "" for what is no file
    digest: str = ""


@dataclass(frozen=True)
class _OnnxPolicy:
    """An ONNX file as a policy: its first input takes observations; `noise`, if it has one, is drawn.

    For a mixture that Slater wrote, `member` is drawn once per episode with the weights of the file.
    """

    path: str

    @cached_property
    def _opened(self) -> tuple[Any, dict[str, Any]]:
        """The session, and what Slater wrote about the policy, if it did."""
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise InputError(
                "an ONNX policy needs the package onnxruntime; install it with: pip install onnxruntime"
            ) from error
        try:
            session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors share no base class of theirs
            raise InputError(f"{self.path} is not readable as an ONNX file ({error}).") from error
        return session, json.loads(session.get_modelmeta().custom_metadata_map.get("slater", "{}"))

    def _actor(self, rng: np.random.Generator, deterministic: bool, member: int | None) -> _OnnxActor:
        session, about = self._opened
        return _OnnxActor(session, rng, deterministic, str(about.get("noise", "normal")), member)

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> _OnnxActor:
        """Start an episode."""
        weights = self._opened[1].get("weights")
        member = (
            None if weights is None else int(rng.choice(len(weights), p=np.array(weights) / np.sum(weights)))
        )
        return self._actor(rng, deterministic, member)

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions for unrelated observations, by one member."""
        return self.begin(rng=rng, deterministic=deterministic).batch(observations)

    def parts(self) -> list[tuple[float, Any]]:
        """What one is drawn of in every episode, with shares: the members of a mixture, or the policy."""
        weights = self._opened[1].get("weights")
        if weights is None:
            return [(1.0, self)]
        total = float(np.sum(weights))
        return [(float(w) / total, _OnnxMember(self, k)) for k, w in enumerate(weights) if w > 0]


@dataclass(frozen=True)
class _OnnxMember:
    """One member of a mixture in an ONNX file."""

    file: _OnnxPolicy
    number: int

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions for unrelated observations."""
        return self.file._actor(rng, deterministic, self.number).batch(observations)


@dataclass(frozen=True)
class _OnnxActor:
    session: Any
    rng: np.random.Generator
    deterministic: bool
    noise: str
    member: int | None

    def batch(self, observations: NDArray[Any]) -> NDArray[Any]:
        feed: dict[str, Any] = {}
        for index, given in enumerate(self.session.get_inputs()):
            if index == 0:
                feed[given.name] = np.asarray(observations, dtype=np.float32)
            elif given.name == "member":
                feed[given.name] = np.asarray(self.member or 0, dtype=np.int64)
            else:
                shape = [len(observations), *(int(size) for size in given.shape[1:])]
                drawn = (
                    self.rng.gumbel(size=shape)
                    if "gumbel" in self.noise.lower()
                    else self.rng.normal(size=shape)
                )
                feed[given.name] = (0.0 * drawn if self.deterministic else drawn).astype(np.float32)
        return np.asarray(self.session.run(None, feed)[0])

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Action for one observation."""
        return np.asarray(self.batch(np.asarray(observation)[None])[0])

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        """Nothing to remember."""


def find_policy(policy: Any) -> Subject:
    """What a user named, with what is known about it.

    A result, a run's folder, a policy file (.safetensors, .onnx), MODULE:FUNCTION, a policy, or a function
    from observations `(batch, obs_dim)` to actions.
    """
    if isinstance(policy, Result):
        if policy.folder is None:
            raise InputError("this result has no folder to read its policy from.")
        policy = policy.folder
    if not isinstance(policy, str | Path):
        if not isinstance(policy, Policy) and not callable(policy):
            raise InputError(f"a {type(policy).__name__} is neither a policy nor a function.")
        return Subject(policy, getattr(policy, "__name__", type(policy).__name__))
    place = Path(policy)
    text = str(policy)
    if not place.exists() and ":" in text and "/" not in text:
        return Subject(_imported(text), text)
    if not place.exists():
        raise InputError(
            f"there is no run or policy file {place}; give a run's folder, a .safetensors or .onnx file, "
            "or MODULE:FUNCTION."
        )
    folder = place if place.is_dir() else place.parent
    run = open_run(folder) if place.is_dir() or is_run(folder) else None
    if run is not None and place.is_dir():
        return Subject(run.result.policy, text, run, folder, digest_of(folder / "mixture.safetensors"))
    acting = _OnnxPolicy(text) if place.suffix == ".onnx" else load(place)
    return Subject(acting, text, run, folder, digest_of(place))


def _imported(text: str) -> Any:
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's module lies where the command is given
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{text} cannot be imported ({error}); give MODULE:FUNCTION.") from error
    if not callable(found) and not isinstance(found, Policy):
        raise InputError(f"{text} is a {type(found).__name__}, neither a policy nor a function.")
    return found


def _dataset(data: str | Path | Dataset, run: SavedRun | None) -> Dataset:
    return data if isinstance(data, Dataset) else load_log(run.run if run is not None else None, data)


def _likelihood_known(policy: Any) -> bool:
    members = policy.members if isinstance(policy, Mixture) else (policy,)
    return all(hasattr(member, "log_probability") for member in members)


def _imitates(run: SavedRun | None) -> bool:
    """Whether a policy is of a run that does nothing but imitate; of one without a run that is not known."""
    from slater.deep import find

    return run is not None and find(run.run.algorithm, run.run.preset).imitates


def certify(
    policy: Any,
    data: str | Path | Dataset | None = None,
    limits: Limits = (),
    *,
    confidence: float = 0.95,
    env: str | None = None,
    episodes: int = 100,
    at_most: int | None = None,
    own: str | Path | Dataset | None = None,
    candidates: int = 1,
    largest_step_cost: float | Sequence[float] | None = None,
    horizon: int | None = None,
    seed: int = 0,
    workers: int = 1,
    deterministic: bool = False,
    calibration: Calibration | None = None,
    fit: bool = True,
    cache: Path | None = None,
    progress: Callable[[Any], None] | None = None,
) -> Certificate:
    """Whether a policy keeps its limits: pass, fail or abstain for each, with the bounds and the reasons.

    policy: see `find_policy`. limits: one per cost, as "20", "0.05/step", "NAME=20"; by default the run's.
    The best evidence that is given speaks:

    - `own`: logged episodes of the policy itself; `env`: a simulator to run it in, for `episodes` episodes
      or, with `at_most`, until every limit is decided (tier "rollouts");
    - `data` with propensities and a policy that knows its likelihood (tier "propensities");
    - `data` (tier "estimates"), by default that of the run. `fit=False` fits no estimators: it says at once
      what keeps that tier from a verdict. cache: folder of fitted studies, by default the user's.

    candidates: how many policies are judged together; the error is shared by them. largest_step_cost: what a
    step costs at most, by default the largest in the data (at least 1). horizon: steps of an episode, where
    neither data nor environment say.
    """
    subject = find_policy(policy)
    run = subject.run
    given = limit_list(limits) or limit_list(run.run.limits if run is not None else ())
    if not given:
        raise InputError("no limit is given, and the policy has no run that knows its limits.")
    if own is not None and env is not None:
        raise InputError("give either the policy's own episodes or an environment to run it in, not both.")
    common: dict[str, Any] = {"confidence": confidence, "candidates": candidates, "name": subject.name}
    gamma = run.task.gamma if run is not None else 0.99
    if own is not None:
        from slater.certify.rollouts import certify_episodes

        found = certify_episodes(
            _dataset(own, run),
            limits=given,
            largest_step_cost=largest_step_cost,
            gamma=gamma,
            **common,
        )
        return replace(found, digest=subject.digest)
    if env is not None:
        from slater.certify.rollouts import certify_rollouts

        found = certify_rollouts(
            subject.policy, env, limits=given, cost_names=run.task.costs if run is not None else None,
            episodes=episodes, at_most=at_most, horizon=horizon or (run.task.horizon if run else None),
            largest_step_cost=1.0 if largest_step_cost is None else largest_step_cost, gamma=gamma, seed=seed,
            workers=workers, deterministic=deterministic, progress=progress, **common,
        )  # fmt: skip
        return replace(found, digest=subject.digest)
    if data is None:
        if run is None or not Path(run.run.data).exists():
            raise InputError(
                "give evidence: logged data, an environment to run the policy in, or its own logged episodes."
            )
        data = run.run.data
    whole = _dataset(data, run)
    kept = read_held_out(subject.folder) if subject.folder is not None else None
    part, gate = certifying_part(whole, kept, run.run.fingerprint if run is not None else None)
    weighted = None
    if part.propensity is not None and _likelihood_known(subject.policy):
        from slater.certify.propensities import certify_propensities

        weighted = certify_propensities(
            part, subject.policy, limits=given, largest_step_cost=largest_step_cost, horizon=horizon,
            gamma=gamma, **common,
        )  # fmt: skip
        # where the weights can say nothing (long episodes), the estimators may still
        if all(gate.passed for limit in weighted.limits for gate in limit.gates):
            return with_gate(replace(weighted, digest=subject.digest), gate)
    from slater.certify.opinions import certify_estimates

    if fit and cache is None:
        from slater.deep.ope.study import cache_folder

        cache = cache_folder()
    found = certify_estimates(
        part,
        subject.policy,
        limits=given,
        gamma=gamma,
        cache=cache,
        calibration=calibration,
        imitates=_imitates(run),
        fit=fit,
        **common,
    )
    if weighted is not None:
        why = next(g.reason for limit in weighted.limits for g in limit.gates if not g.passed)
        found = replace(found, assumptions=(*found.assumptions, f"propensities decide nothing here: {why}"))
    return with_gate(replace(found, digest=subject.digest), gate)


def certify_many(
    policies: Sequence[Any],
    data: str | Path | Dataset | None = None,
    limits: Limits = (),
    *,
    confidence: float = 0.95,
    calibration: Calibration | None = None,
    cache: Path | None = None,
) -> list[Certificate]:
    """Certificates of several candidates by estimates from one log; the error is shared by all of them.

    The estimators are fitted once. data, limits: by default those of the first candidate's run. What each
    run held out judges it; candidates whose runs held out different episodes are judged by their own.
    """
    from slater.certify.opinions import certify_candidates
    from slater.deep.ope.study import cache_folder

    subjects = [find_policy(policy) for policy in policies]
    if not subjects:
        raise InputError("there is nothing to certify; give at least one policy.")
    run = subjects[0].run
    given = limit_list(limits) or limit_list(run.run.limits if run is not None else ())
    if not given:
        raise InputError("no limit is given, and the first policy has no run that knows its limits.")
    if data is None:
        if run is None or not Path(run.run.data).exists():
            raise InputError("give the logged data that judge the candidates.")
        data = run.run.data
    gamma = run.task.gamma if run is not None else 0.99
    whole = _dataset(data, run)
    groups: dict[Any, list[int]] = {}
    for number, subject in enumerate(subjects):
        kept = read_held_out(subject.folder) if subject.folder is not None else None
        groups.setdefault(kept, []).append(number)
    found: dict[int, Certificate] = {}
    for kept, members in groups.items():
        names = {f"{subjects[k].name} ({k + 1})": k for k in members}
        part = certifying_part(whole, kept, None)[0]
        certificates = certify_candidates(
            part, {name: subjects[k].policy for name, k in names.items()}, limits=given,
            confidence=confidence, candidates=len(subjects), gamma=gamma,
            cache=cache or cache_folder(), calibration=calibration,
            imitates=[name for name, k in names.items() if _imitates(subjects[k].run)],
        )  # fmt: skip
        for certificate, k in zip(certificates, names.values(), strict=True):
            own = subjects[k].run
            gate = certifying_part(whole, kept, own.run.fingerprint if own is not None else None)[1]
            found[k] = with_gate(
                replace(certificate, policy=subjects[k].name, digest=subjects[k].digest), gate
            )
    return [found[k] for k in range(len(subjects))]
