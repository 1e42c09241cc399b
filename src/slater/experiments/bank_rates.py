"""What a bank says: factors, rates of error with one task left out, Tier 1 on draws of the same episodes.

Made anew from the bank's lines, under the gates as they are now.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.certify.bounds import betting_lower, betting_upper, share_lower, share_upper
from slater.certify.calibration import ERRORS, KINDS, BankRow, Calibration, calibrate, left_out
from slater.certify.estimates import LARGEST_SHARE_OUTSIDE, Standing, agree, combined

__all__ = ["CONFIDENCES", "Line", "bank_rows", "summary"]

CONFIDENCES = tuple(1.0 - error for error in ERRORS)
#: see `slater.experiments.bank`
Line = Mapping[str, Any]


def _standing(check: Mapping[str, Any]) -> Standing:
    first, second = check["weights"]
    return Standing((first, second), check["cost_error"])


def bank_rows(lines: Sequence[Line]) -> list[BankRow]:
    """A row per policy and limit, under the gates as they are now."""
    rows = []
    for line in lines:
        for check in line["checks"]:
            limit = float(check["limit"])
            centre, spread = combined(line["means"], line["spreads"], limit, _standing(check))
            gated = (
                check["passes"] and line["outside"] <= LARGEST_SHARE_OUTSIDE
                and agree(line["means"], line["spreads"], limit)
            )  # fmt: skip
            truth = float(np.mean(line["costs"]))
            rows.append(
                BankRow(
                    line["task"], line["policy"], limit, truth, centre, spread, bool(gated), line["imitates"]
                )
            )  # fmt: skip
    return rows


def summary(lines: Sequence[Line], draws: int = 5) -> dict[str, Any]:
    """Calibrations, the table by task, and Tier 1 on `draws` of the same episodes a policy, as JSON."""
    rows = bank_rows(lines)
    of_kind = {
        KINDS[True]: [row for row in rows if row.imitates],
        KINDS[False]: [row for row in rows if not row.imitates],
    }
    found = {kind: _calibrated(part, kind) for kind, part in of_kind.items()}
    table = []
    for task in sorted({row.task for row in rows}):
        part = [row for row in rows if row.task == task]
        own = [line for line in lines if line["task"] == task]
        middle = own[0]["checks"][len(own[0]["checks"]) // 2]  # weights are those at the middle limit
        said = np.array([np.dot(middle["weights"], line["means"]) for line in own])
        truth = np.array([np.mean(line["costs"]) for line in own])
        met = np.isin([line["policy"] for line in own], [row.policy for row in part if row.gated])
        table.append(
            {
                "task": task, "policies": len(own),
                "gated": int(met.sum()), "rms_error_gated": _root_mean_square((said - truth)[met]),
                "check_passes": [check["passes"] for check in own[0]["checks"]],
                "inside": sum(line["outside"] <= LARGEST_SHARE_OUTSIDE for line in own),
                "rms_error": _root_mean_square(said - truth),
                "mean_truth": float(truth.mean()),
            }
        )  # fmt: skip
    gated = {
        task: sorted({row.policy for row in rows if row.task == task and row.gated})
        for task in sorted({row.task for row in rows})
    }
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "policies": len({(line["task"], line["policy"]) for line in lines}), "tasks": len(table),
        "episodes": min((len(line["costs"]) for line in lines), default=0),
        "calibrations": {kind: [one.as_dict() for one in part if one.finite] for kind, part in found.items()},
        "rates": {kind: [_rates(one, of_kind[kind]) for one in part] for kind, part in found.items()},
        "table": table,
        "gated": gated, "rollouts": _tier_one(lines, draws),
    }  # fmt: skip


def _calibrated(rows: Sequence[BankRow], kind: str) -> list[Calibration]:
    """At every confidence; none where policies of fewer than three tasks met the gates."""
    if len({row.task for row in rows if row.gated}) < 3:
        return []
    return [replace(calibrate(rows, confidence), kind=kind) for confidence in CONFIDENCES]


def _rates(found: Calibration, rows: Sequence[BankRow]) -> dict[str, Any]:
    """Rates of error with one task left out at a time, as JSON."""
    return {
        "confidence": found.confidence, "gated": found.gated, "tried": found.tried,
        "tasks": found.gated_tasks,
        "factor": found.factor if found.finite else None,
        "lower_factor": found.lower_factor if found.finite else None,
        **_rate("too_low", found.too_low, found.tried), **_rate("too_high", found.too_high, found.tried),
        **_rate("false_pass", found.false_passes, found.over),
        **_rate("false_fail", found.false_fails, found.within),
        "pairs": found.pairs, "passes": found.passes, "fails": found.fails,
        "by_task": {
            task: {"gated": len(one.scores), "too_low": one.wrong[0], "too_high": one.wrong[1]}
            for task, one in left_out(rows, found.confidence).items()
        },
    }  # fmt: skip


def _root_mean_square(errors: NDArray[np.float64]) -> float | None:
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else None


def _rate(name: str, hits: int, count: int) -> dict[str, Any]:
    """A rate by its name, with counts and the exact 95% interval."""
    return {
        name: hits / max(count, 1), f"{name}_counts": [hits, count],
        f"{name}_interval": _interval(hits, count),
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
