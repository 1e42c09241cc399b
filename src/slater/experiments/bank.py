"""The bank of policies of known truth that calibrates verdicts from the log alone (Tier 3).

The episodes of a log are split. By the part that judges, the estimators of Tier 3 are fitted, as a
certificate fits them; the rest trains the policies (`slater.experiments.bank_policies`), and each of
them is judged and then run in the simulator. A line of `bank.jsonl` has what the estimators said, the gates'
numbers and the cost of every episode, so that rates (`slater.experiments.bank_rates`) are made anew from
it. A bank that was stopped goes on; one that was begun with other settings is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slater.disk import append_json_line, read_json_lines, write_atomic
from slater.errors import InputError
from slater.experiments.bank_policies import BankPlan, BankTask, Candidate, candidates_of, open_task
from slater.experiments.bank_rates import Line, summary

__all__ = ["read_lines", "run"]

FILE, SETTINGS, CALIBRATION = "bank.jsonl", "settings.json", "calibration.json"


def read_lines(folder: Path) -> list[Line]:
    """What the bank in `folder` holds, of every policy the last line; nothing where there is none."""
    found = read_json_lines(folder / FILE) if (folder / FILE).exists() else []
    return list({(line["task"], line["policy"]): line for line in found}.values())


def run(
    out: Path,
    *,
    behaviours: Path | None = None,
    data: Path | None = None,
    tasks: Sequence[str] = (),
    episodes: int = 50,
    plan: BankPlan | None = None,
    tick: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Judge every policy that is not in the bank yet, and write `bank.jsonl` and `calibration.json`.

    behaviours, data: folders of NAME.safetensors and NAME.hdf5, `tasks` of them or all that are in both;
    without them the bank in `out` is summed up as it is. episodes: that tell the truth of every policy.
    """
    plan = plan or BankPlan()
    if behaviours is not None or data is not None:
        if behaviours is None or data is None:
            raise InputError("a bank needs the folder of behaviours and that of their datasets, both.")
        known = list(tasks) or sorted(path.stem for path in behaviours.glob("*.safetensors"))
        names = [
            name for name in known
            if (data / f"{name}.hdf5").exists() and (behaviours / f"{name}.safetensors").exists()
        ]  # fmt: skip
        if not names or (tasks and len(names) < len(known)):
            missing = [name for name in known if name not in names]
            raise InputError(f"{', '.join(missing) or 'no behaviour'}: not in both {behaviours} and {data}.")
        _begin(out, plan, episodes)
        for name in names:
            done = {line["policy"] for line in read_lines(out) if line["name"] == name}
            task = open_task(name, behaviours, data, out / "runs", plan)
            for line in _judged(task, plan, episodes, done, tick):
                append_json_line(out / FILE, line)
    lines = read_lines(out)
    if not lines:
        raise InputError(f"{out} holds no bank; give the folders of behaviours and of their datasets.")
    record = {**summary(lines), "settings": json.loads((out / SETTINGS).read_text())["estimators"]}
    write_atomic(out / CALIBRATION, (json.dumps(record, indent=1) + "\n").encode())
    return record


def _begin(out: Path, plan: BankPlan, episodes: int) -> None:
    """Write what the bank is made with, or refuse to go on with something else."""
    from slater.certify.estimators import CERTIFYING, settings_record

    settings = {"estimators": settings_record(CERTIFYING), "plan": asdict(plan), "episodes": episodes}
    text = json.dumps(settings, indent=1, default=str) + "\n"
    path = out / SETTINGS
    if path.exists() and json.loads(path.read_text()) != json.loads(text):
        raise InputError(f"the bank in {out} was begun with other settings; choose another folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def _judged(
    task: BankTask, plan: BankPlan, episodes: int, done: set[str], tick: Callable[[str], None]
) -> Iterator[Line]:
    """A line for each policy that is not in the bank yet."""
    from slater.certify.estimators import estimators_of, with_limits
    from slater.limits import Limit

    log, cost = task.judges, task.whole.cost_names[0]
    estimators: Any = None
    checks = []
    for number, one in enumerate(candidates_of(task, plan, tick)):
        if one.name in done:
            continue
        if estimators is None:
            tick(f"{task.name}: fitting")
            stated = [Limit.episode(task.limits[0], cost)]
            estimators = estimators_of(log, stated, 0.99, None, task.folder / "study")
            for limit in task.limits:
                check = estimators.check(with_limits(estimators, [Limit.episode(limit, cost)]))
                (own,) = estimators.standings(check, [limit])
                checks.append(
                    {
                        "limit": limit, "passes": check.passes, "error": check.score,
                        "weights": list(own.weights), "cost_error": own.error,
                    }
                )  # fmt: skip
        tick(f"{task.name}: {one.name}")
        (said,) = estimators.judged([one.policy])
        seed = 10_000 * (number + 1)
        yield {
            "name": task.name, "task": task.behaviour.env_id, "policy": one.name, "kind": one.kind,
            "imitates": one.imitates,
            "episodes_of_log": len(log.episodes), "fingerprint": log.fingerprint[:12],
            "horizon": int(log.horizon or 0), "means": [o.mean[0] for o in said.opinions],
            "spreads": [o.spread[0] for o in said.opinions], "outside": said.outside, "checks": checks,
            "seed": seed, "logged": len(one.logged),
            "costs": [*one.logged, *_simulated(task, one, cost, episodes - len(one.logged), seed)],
        }  # fmt: skip


def _simulated(task: BankTask, one: Candidate, cost: str, episodes: int, seed: int) -> list[float]:
    """Costs of so many episodes in the simulator."""
    from slater.envs import rollout

    if episodes <= 0:
        return []
    ran = rollout(one.policy, task.behaviour.env_id, episodes, seed=seed, discount=1.0)
    own = ran.costs[:, ran.cost_names.index(cost)] if cost in ran.cost_names else ran.cost
    return [float(x) for x in own]
