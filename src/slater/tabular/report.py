"""One run on one problem, as the record that the command line prints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slater.tabular.certificate import certify, estimate_certificate
from slater.tabular.cmdp import CMDP
from slater.tabular.counts import Counts
from slater.tabular.ope import standard_error
from slater.tabular.result import Result

__all__ = ["problem_record", "run_record"]


def run_record(data: Counts, result: Result, cmdp: CMDP | None) -> dict[str, Any]:
    """What a run gave, as plain numbers ready for JSON; J-units unless a name says otherwise.

    The fields under `estimate` are computed from the data alone. Those at the top are exact values on
    the true model, and None where there is none.
    """
    offline = estimate_certificate(data, result.policy, result.multipliers, result.bound)
    errors = [standard_error(data, result.policy, cost) for cost in data.costs]
    record: dict[str, Any] = {
        "algo": result.algorithm,
        "n": data.size,
        "J_R": None,
        "J_R_star": None,
        "J_C": None,
        "limits": data.limits.tolist(),
        "gap": None,
        "lambda_mean": result.multipliers.tolist(),
        "lambda_star": None,
        "phi": None,
        "B": result.bound,
        "iterations": result.iterations,
        "estimate": {
            "J_R": offline.J_R,
            "J_C": offline.J_C.tolist(),
            "J_C_standard_error": errors,
            "gap": offline.gap,
            "slack": offline.slack.tolist(),
            "seen_pairs": data.coverage.share,
        },
        "notes": list(result.notes),
    }
    if cmdp is not None:
        exact = certify(cmdp, result.policy, result.multipliers, result.bound)
        record |= {"J_R": exact.J_R, "J_C": exact.J_C.tolist(), "gap": exact.gap} | problem_record(cmdp)
        need = sum(record["lambda_star"])
        if 0.0 < result.bound <= need:
            record["notes"].append(f"B = {result.bound:.4g} is not above the true multiplier {need:.4g}")
    return _finite(record)


def problem_record(cmdp: CMDP) -> dict[str, Any]:
    """The optimum of a problem: `J_R_star`, `lambda_star`, `phi` (normalised)."""
    best = cmdp.solve()
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
