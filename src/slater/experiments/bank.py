"""The bank of policies of known truth that calibrates verdicts from the log alone (Tier 3).

Every kept policy of every given run is a row: what the estimators say of it, fitted to the run's held-out
episodes (or to all of its data, where none were held out), and what it costs in `episodes` episodes of its
simulator. `calibrate` then finds the factor on the estimators' spread, each task judged by the factor of the
others, and its rate of false passes. A row is written when it is done; a bank that was stopped goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from slater.certify.estimates import UNCALIBRATED, BankRow, Calibration, calibrate
from slater.certify.held_out import certifying_part, read_held_out, training_part
from slater.disk import write_atomic
from slater.errors import InputError
from slater.runs import SavedRun, open_run

__all__ = ["run"]

CONFIDENCES = (0.9, 0.95, 0.975, 0.99)
#: intervals are asked for with `UNCALIBRATED` spreads, whatever calibration the package has
NONE = Calibration(0.99, UNCALIBRATED, 0, 0, 0, 0, 0)


def run(
    folders: Sequence[Path],
    out: Path,
    *,
    episodes: int = 50,
    tick: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Judge every member of the runs, and write `bank.jsonl` and `calibration.json` to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "bank.jsonl"
    rows = [BankRow(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row.task, row.policy) for row in rows}
    with path.open("a") as file:
        for folder in folders:
            saved = open_run(folder)
            if saved.env is None:
                raise InputError(f"the run in {folder} names no environment to learn the truth from.")
            names = [f"{folder}/{member.step}" for member in saved.result.members]
            if all((saved.env, name) in done for name in names):
                continue
            for found in _judged(saved, names, episodes, done, tick):
                file.writelines(json.dumps(asdict(row)) + "\n" for row in found)
                file.flush()
                rows += found
    tasks = {row.task for row in rows}
    policies = {(row.task, row.policy) for row in rows}
    found = []
    if len({row.task for row in rows if row.gated}) >= 2:
        found = [calibrate(rows, confidence).as_dict() for confidence in CONFIDENCES]
    record = {"episodes": episodes, "calibrations": [row for row in found if np.isfinite(row["factor"])]}
    write_atomic(out / "calibration.json", (json.dumps(record, indent=1) + "\n").encode())
    return {
        "out": str(out), "policies": len(policies), "tasks": len(tasks),
        "gated": sum(row.gated for row in rows), "calibrations": record["calibrations"],
    }  # fmt: skip


def _judged(
    saved: SavedRun,
    names: Sequence[str],
    episodes: int,
    done: set[tuple[str, str]],
    tick: Callable[[str], None],
) -> Any:
    """Rows of each member that is not in the bank yet, one per cost."""
    from slater.certify.opinions import certify_estimates
    from slater.certify.pools import episode_limits
    from slater.data import load
    from slater.deep.engine.folder import member_policies
    from slater.deep.ope.study import cache_folder
    from slater.envs import rollout

    assert saved.env is not None
    whole = load(saved.run.data)
    kept = read_held_out(saved.folder)
    part, _ = certifying_part(whole, kept, None)
    limits = episode_limits(saved)
    policies = member_policies(saved.folder, training_part(whole, kept))
    for index, (name, policy) in enumerate(zip(names, policies, strict=True)):
        if (saved.env, name) in done:
            continue
        tick(name)
        certificate = certify_estimates(
            part, policy, limits=[f"{c}={x!r}" for c, x in zip(saved.task.costs, limits, strict=True)],
            gamma=saved.task.gamma, cache=cache_folder(), name=name, calibration=NONE,
        )  # fmt: skip
        ran = rollout(policy, saved.env, episodes, seed=10_000 * (index + 1), discount=1.0)
        truths = ran.mean_costs(list(saved.task.costs))
        rows = []
        for limit, truth in zip(certificate.limits, truths, strict=True):
            # the union of both intervals as one mean and one spread: its half width in units of the factor
            upper = max(limit.evidence, key=lambda e: e.upper)
            spread = (upper.upper - upper.estimate) / UNCALIBRATED
            gated = all(gate.passed for gate in limit.gates if gate.name != "calibration")
            rows.append(BankRow(saved.env, name, limit.limit, truth, upper.estimate, spread, gated))
        yield rows
