"""The bank of policies of known truth that calibrates verdicts from the log alone (Tier 3).

For every dataset whose behaviour file is at hand, the log is cut to every other of its sources. By it are
judged the policies of the file whose episodes it holds, those that it has never seen (as they were recorded:
their truth is in the rest of the dataset), and all of them with their weights shaken (two of them twice); and
every kept policy of given runs, by the run's held-out episodes. What is not logged of a policy is run in the
simulator. A line of `bank.jsonl` has what the estimators said, the gates' numbers and the cost of every
episode, so that `summary` (factors, rates, Tier 1 on repeated draws of the same episodes) is made anew from
it in a second. A bank that was stopped goes on.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.bounds import betting_lower, betting_upper, share_lower, share_upper
from slater.certify.estimates import LARGEST_SHARE_OUTSIDE, BankRow, agree, calibrate, combined
from slater.certify.held_out import certifying_part
from slater.disk import append_json_line, read_json_lines, write_atomic
from slater.errors import InputError
from slater.policy import GaussianPolicy
from slater.runs.held_out import read_held_out, training_part

__all__ = ["CONFIDENCES", "bank_rows", "read_lines", "run", "summary"]

CONFIDENCES = (0.9, 0.95, 0.975, 0.99)
#: relative size of the noise on the weights of a shaken policy
SHAKE = 0.1
#: numbers of the sources that are shaken twice
SHAKEN_TWICE = (0, 4)
Line = Mapping[str, Any]
FILE = "bank.jsonl"


def read_lines(folder: Path) -> list[Line]:
    """What the bank in `folder` holds, of every policy the last line; nothing where there is none."""
    found = read_json_lines(folder / FILE) if (folder / FILE).exists() else []
    return list({(line["task"], line["policy"]): line for line in found}.values())


@dataclass(frozen=True)
class _Candidate:
    """A policy to be judged, and the costs of its logged episodes that the log which judges it lacks."""

    kind: str
    policy: Any
    logged: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """How many episodes tell a policy's truth, and whether those that are not logged are run."""

    episodes: int
    many: int
    simulate: bool

    def of(self, number: int) -> int:
        """Of the policy of this number."""
        return self.many if number == 0 else self.episodes


def run(
    folders: Sequence[Path],
    out: Path,
    *,
    behaviours: Path | None = None,
    data: Path | None = None,
    tasks: Sequence[str] = (),
    episodes: int = 50,
    many: int = 200,
    simulate: bool = True,
    tick: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Judge every policy that is not in the bank yet, and write `bank.jsonl` and `calibration.json`.

    behaviours, data: folders of NAME.safetensors and NAME.hdf5, `tasks` of them or all; episodes: of every
    policy, `many` for the first of a log; what the datasets do not hold of them is run in the simulator, or,
    with `simulate` false, done without: policies that have no logged episodes are then left out.
    """
    done = {(line["task"], line["policy"]): len(line["costs"]) for line in read_lines(out)}
    plan = _Plan(episodes, many, simulate)
    work: list[Iterator[Line]] = []
    if behaviours is not None:
        if data is None:
            raise InputError("a bank of behaviours needs the folder of their datasets.")
        names = list(tasks) or sorted(p.stem for p in behaviours.glob("*.safetensors"))
        work += [
            _of_behaviour(name, behaviours, data, plan, done, tick)
            for name in names
            if (data / f"{name}.hdf5").exists()
        ]
        if not work:
            raise InputError(
                f"no file of {', '.join(names) or 'behaviours'} is in both {behaviours} and {data}."
            )
    work += [_of_run(folder, plan, done, tick) for folder in folders]
    if not work and not done:
        raise InputError("there is nothing to judge; give runs, or folders of behaviours and their datasets.")
    out.mkdir(parents=True, exist_ok=True)
    for found in work:
        for line in found:
            append_json_line(out / FILE, line)
    lines = read_lines(out)
    record = summary(lines)
    write_atomic(out / "calibration.json", (json.dumps(record, indent=1) + "\n").encode())
    return {"out": str(out), **record}


def _of_behaviour(
    name: str, behaviours: Path, folder: Path, plan: _Plan, done: Mapping[tuple[str, str], int],
    tick: Callable[[str], None],
) -> Iterator[Line]:  # fmt: skip
    from slater.collect.behaviour import load_behaviour
    from slater.collect.recording import Recording, recorded_source
    from slater.data import load

    behaviour = load_behaviour(behaviours / f"{name}.safetensors")
    kept = [source.name for source in behaviour.sources[::2]]
    whole = load(folder / f"{name}.hdf5")
    if whole.source is None:
        raise InputError(f"{folder / name}.hdf5 does not name its sources.")
    recording = Recording(**json.loads(whole.metadata.notes["recording"]))
    policies: dict[str, _Candidate] = {}
    for number, source in enumerate(behaviour.sources):
        if source.name in kept:
            policies[source.name] = _Candidate("source in the log", source.policy)
        else:
            logged = whole.episodes.costs[whole.source == source.name, 0]
            acting = recorded_source(source.policy, recording)
            policies[source.name] = _Candidate("source not in the log", acting, tuple(logged.tolist()))
        for shake in range(1 + (number in SHAKEN_TWICE)):
            name_of = f"{source.name}, shaken {shake + 1}"
            policies[name_of] = _Candidate("shaken", _shaken(source.policy, 100 * shake + number))
    log = whole.subset(np.isin(whole.source, kept))
    yield from _judged(behaviour.env_id, log, behaviour.limits, policies, plan, done, tick)


def _shaken(policy: GaussianPolicy, seed: int) -> GaussianPolicy:
    """The policy with every weight times 1 + SHAKE times noise."""
    rng = np.random.default_rng(seed)
    weights = tuple(
        (w * (1.0 + SHAKE * rng.standard_normal(w.shape))).astype(np.float32) for w in policy.weights
    )
    return replace(policy, weights=weights)


def _of_run(
    folder: Path, plan: _Plan, done: Mapping[tuple[str, str], int], tick: Callable[[str], None]
) -> Iterator[Line]:
    from slater.certify.pools import episode_limits
    from slater.deep.engine.folder import member_policies
    from slater.runs import open_run
    from slater.runs.log import load_log

    saved = open_run(folder)
    if saved.env is None:
        raise InputError(f"the run in {folder} names no environment to learn the truth from.")
    names = [f"{folder.name}, {member.name}" for member in saved.result.members]
    whole = load_log(saved.run)
    kept = read_held_out(folder)
    part, _ = certifying_part(whole, kept, None)
    policies = member_policies(folder, training_part(whole, kept))
    limit = episode_limits(saved)[0]
    kind = f"member of {saved.run.algorithm}"
    found = {name: _Candidate(kind, policy) for name, policy in zip(names, policies, strict=True)}
    yield from _judged(saved.env, part, (limit / 2, limit, limit * 2), found, plan, done, tick)


def _judged(
    task: str, log: Any, limits: Sequence[float], policies: Mapping[str, _Candidate], plan: _Plan,
    done: Mapping[tuple[str, str], int], tick: Callable[[str], None],
) -> Iterator[Line]:  # fmt: skip
    """A line for each policy that is not in the bank yet; the log has one cost."""
    from slater.certify.opinions import estimators_of, with_limits
    from slater.deep.ope.study import cache_folder
    from slater.envs import rollout
    from slater.limits import Limit

    if len(log.cost_names) != 1:
        raise InputError(f"the data of {task} have {len(log.cost_names)} costs; a bank takes data with one.")
    waiting = {
        name: (number, one)
        for number, (name, one) in enumerate(policies.items())
        if done.get((task, name), 0) < (plan.of(number) if plan.simulate else min(len(one.logged), 1))
    }
    if not waiting:
        return
    tick(f"{task}: fitting")
    cost = log.cost_names[0]
    estimators = estimators_of(log, [Limit.episode(float(limits[0]), cost)], 0.99, None, cache_folder())
    checks = []
    for limit in limits:
        check = estimators.check(with_limits(estimators, [Limit.episode(float(limit), cost)]))
        checks.append({"limit": float(limit), "passes": check.passes, "error": check.score})
    for name, (number, one) in waiting.items():
        tick(f"{task}: {name}")
        said = estimators.judged(one.policy)
        costs = list(one.logged)
        seed, more = 10_000 * (number + 1), plan.of(number) - len(costs)
        if plan.simulate and more > 0:
            ran = rollout(one.policy, task, more, seed=seed, discount=1.0)
            own = ran.costs[:, ran.cost_names.index(cost)] if cost in ran.cost_names else ran.cost
            costs += own.tolist()
        yield {
            "task": task, "policy": name, "kind": one.kind, "episodes_of_log": len(log.episodes),
            "fingerprint": log.fingerprint[:12], "horizon": int(log.horizon),
            "means": [o.mean[0] for o in said.opinions], "spreads": [o.spread[0] for o in said.opinions],
            "outside": said.outside, "checks": checks, "seed": seed, "costs": [float(x) for x in costs],
        }  # fmt: skip


def bank_rows(lines: Sequence[Line]) -> list[BankRow]:
    """A row per policy and limit, under the gates as they are now."""
    rows = []
    for line in lines:
        for check in line["checks"]:
            limit = float(check["limit"])
            centre, spread = combined(line["means"], line["spreads"], limit)
            gated = (
                check["passes"] and line["outside"] <= LARGEST_SHARE_OUTSIDE
                and agree(line["means"], line["spreads"], limit)
            )  # fmt: skip
            truth = float(np.mean(line["costs"]))
            rows.append(BankRow(line["task"], line["policy"], limit, truth, centre, spread, bool(gated)))
    return rows


def summary(lines: Sequence[Line], draws: int = 20) -> dict[str, Any]:
    """Calibrations, the table by task, and Tier 1 on `draws` of the same episodes a policy, as JSON."""
    rows = bank_rows(lines)
    found = []
    if len({row.task for row in rows if row.gated}) >= 2:
        found = [calibrate(rows, confidence) for confidence in CONFIDENCES]
    usable = [row.as_dict() for row in found if math.isfinite(row.factor)]
    rates = [
        {
            "confidence": row.confidence, "inflation": row.inflation if math.isfinite(row.factor) else None,
            "gated": row.gated, "too_low": row.too_low / row.gated,
            "too_low_interval": _interval(row.too_low, row.gated), "too_high": row.too_high / row.gated,
            "too_high_interval": _interval(row.too_high, row.gated),
        }
        for row in found
    ]  # fmt: skip
    table = []
    for task in sorted({row.task for row in rows}):
        part = [row for row in rows if row.task == task]
        own = [line for line in lines if line["task"] == task]
        said = np.array([np.mean(line["means"]) for line in own])
        truth = np.array([np.mean(line["costs"]) for line in own])
        table.append(
            {
                "task": task, "policies": len(own),
                "gated": len({row.policy for row in part if row.gated}),
                "check_passes": [check["passes"] for check in own[0]["checks"]],
                "inside": sum(line["outside"] <= LARGEST_SHARE_OUTSIDE for line in own),
                "rms_error": float(np.sqrt(np.mean((said - truth) ** 2))),
                "mean_truth": float(truth.mean()),
            }
        )  # fmt: skip
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "policies": len({(line["task"], line["policy"]) for line in lines}), "tasks": len(table),
        "episodes": min((len(line["costs"]) for line in lines), default=0),
        "calibrations": usable, "rates": rates, "table": table, "rollouts": _tier_one(lines, draws),
    }  # fmt: skip


def _interval(hits: int, count: int) -> list[float]:
    """The exact 95% interval of a rate."""
    return [share_lower(hits, max(count, 1), 0.025), share_upper(hits, max(count, 1), 0.025)]


def _tier_one(lines: Sequence[Line], draws: int) -> list[dict[str, Any]]:
    """False passes and fails of the betting bound on draws of n episodes from a policy's many.

    Draws are with replacement: episodes are independent, and the mean of the pool is their exact truth. The
    limit is the worst one: a bound on the wrong side of the truth.
    """
    rng = np.random.default_rng(0)
    pools = [np.array(line["costs"]) / line["horizon"] for line in lines if len(line["costs"]) >= 50]
    table = []
    for confidence in CONFIDENCES[:2]:
        for size in (20, 50, 100):
            low = high = passes = count = halves = 0
            for pool in pools:
                truth = pool.mean()
                for _ in range(draws):
                    drawn = rng.choice(pool, size)
                    upper = betting_upper(drawn, 0.0, 1.0, 1.0 - confidence)
                    lower = betting_lower(drawn, 0.0, 1.0, 1.0 - confidence)
                    count += 1
                    low += upper < truth - 1e-12
                    high += lower > truth + 1e-12
                    if 0 < truth <= 0.5:
                        halves += 1
                        passes += upper <= 2 * truth
            if count:
                table.append(
                    {
                        "confidence": confidence, "episodes": size, "policies": len(pools), "draws": count,
                        "false_pass": low / count, "false_fail": high / count,
                        "false_pass_interval": _interval(low, count),
                        "false_fail_interval": _interval(high, count),
                        "pass_at_twice_the_cost": passes / max(halves, 1),
                    }
                )  # fmt: skip
    return table
