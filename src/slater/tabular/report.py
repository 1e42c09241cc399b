"""One run on one problem, as the record that the command line prints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slater.tabular.certificate import certify, estimate_certificate
from slater.tabular.cmdp import CMDP, Solution
from slater.tabular.counts import Counts
from slater.tabular.ope import standard_error
from slater.tabular.pessimism import RARE, rare_share
from slater.tabular.pooling import pooled
from slater.tabular.result import Result

#: the share of decisions in rarely visited pairs from which a reader is warned
MANY_RARE = 0.2


def run_record(
    data: Counts, result: Result, cmdp: CMDP | None, best: Solution | None = None
) -> dict[str, Any]:
    """What a run gave, as plain numbers ready for JSON; J-units unless a name says otherwise.

    The fields under `estimate` are computed from the data alone. Those at the top are exact values on
    the true model, and None where there is none. On large problems the estimates are made on pooled rows
    (`pooling`): on the log's own, a policy that was chosen on them looks better than it is. best: the model's
    optimum, where it is known already.
    """
    model = data if data.successors.small else pooled(data)
    offline = estimate_certificate(model, result.policy, result.multipliers, result.multiplier_bound)
    errors = [standard_error(model, result.policy, cost) for cost in model.costs]
    record: dict[str, Any] = {
        "algorithm": result.algorithm,
        "n": data.size,
        "J_R": None,
        "J_R_star": None,
        "J_C": None,
        "limits": data.limits.tolist(),
        "gap": None,
        "lambda_mean": result.multipliers.tolist(),
        "lambda_star": None,
        "phi": None,
        "multiplier_bound": result.multiplier_bound,
        "rounds": result.rounds,
        "estimate": {
            "J_R": offline.J_R,
            "J_C": offline.J_C.tolist(),
            "J_C_standard_error": errors,
            "gap": offline.gap,
            "slack": offline.slack.tolist(),
            "seen_pairs": data.coverage.share,
            "rare_pairs": rare_share(data, result.policy),
            "starts_left_out": data.starts_left_out,
        },
        "notes": list(result.notes),
    }
    if data.starts_left_out:
        record["notes"].append(
            f"{data.starts_left_out:.2%} of the starts are in states without data and were left out"
        )
    if record["estimate"]["rare_pairs"] > MANY_RARE:
        record["notes"].append(
            f"{record['estimate']['rare_pairs']:.0%} of the policy's decisions are in pairs with fewer than "
            f"{RARE} visits: its estimates rest on little"
        )
    gaps = result.trace.get("critic_gap")
    if gaps is not None and np.isfinite(gaps).all():
        record["estimate"]["critic_gap"] = float(gaps.max())
    if cmdp is not None:
        exact = certify(cmdp, result.policy, result.multipliers, result.multiplier_bound)
        record |= {"J_R": exact.J_R, "J_C": exact.J_C.tolist(), "gap": exact.gap} | problem_record(cmdp, best)
        need = sum(record["lambda_star"])
        if 0.0 < result.multiplier_bound <= need:
            record["notes"].append(
                f"B = {result.multiplier_bound:.4g} is not above the true multiplier {need:.4g}"
            )
    return _finite(record)


def problem_record(cmdp: CMDP, best: Solution | None = None) -> dict[str, Any]:
    """The optimum of a problem: `J_R_star`, `lambda_star`, `phi` (normalised)."""
    best = best or cmdp.solve()
    return {
        "J_R_star": best.J_R,
        "lambda_star": best.multipliers.tolist(),
        "phi": cmdp.slater_margin() if cmdp.num_costs else None,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity or NaN: they become None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
