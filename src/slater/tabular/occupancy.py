"""Quadratic programs over occupancy measures: COptiDICE's core, and the projection of a policy."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from slater.cones import Block, cone_program
from slater.errors import InputError
from slater.tabular._check import Float
from slater.tabular.cmdp import CMDP, Infeasible, normalise_policy


def project_occupancy(cmdp: CMDP, policy: Float) -> Float:
    """The policy `(S, A)` under the limits whose occupancy is chi-square closest to `policy`'s.

    `min sum_x dD(x) (w(x) - 1)^2 / 2` over `w >= 0` with `w dD` an occupancy measure that meets the limits.
    """
    reference = cmdp.occupancy(policy).ravel() + 1e-6
    reference /= reference.sum()
    weights, _ = solve_occupancy_qp(cmdp, reference, np.zeros_like(reference), 1.0, cmdp.limits)
    return normalise_policy((weights * reference).reshape(policy.shape))


def solve_occupancy_qp(
    cmdp: CMDP, reference: Float, utility: Float, alpha: float, limits: Float | None
) -> tuple[Float, Float]:
    """`w = d / dD`, shape `(S*A,)`, of COptiDICE's regularised program on the model `cmdp`.

    Also the multipliers of the cost constraints, shape `(I,)`, zero without limits.

    `max_w  E_dD[w U] - alpha E_dD[(w - 1)^2 / 2]` subject to `w >= 0`, the flow equations for
    `d = w dD`, and `E_dD[w C_i] <= limits_i / H` unless `limits` (J-units) is None.
    """
    flow, inflow = cmdp.flow
    D = sparse.diags_array(reference)
    pairs = len(reference)
    C = cmdp.costs.reshape(cmdp.num_costs, pairs)
    use_costs = limits is not None and cmdp.num_costs > 0
    blocks: list[Block] = [
        (flow @ D, inflow, "zero"),
        (-sparse.eye_array(pairs), np.zeros(pairs), "nonnegative"),
    ]
    if limits is not None and use_costs:
        blocks.append((sparse.csr_array(C * reference), limits / cmdp.horizon, "nonnegative"))
    # a reference far from uniform makes rows of very different size; Clarabel equilibrates them
    w, z, wrong = cone_program(alpha * D, -(reference * utility + alpha * reference), blocks)
    if wrong:
        if use_costs:
            excess, costs = cmdp.closest()
            if excess > 0:
                raise Infeasible(excess, costs, cmdp.limits)
        raise InputError(f"the quadratic program over occupancy measures was not solved: {wrong}.")
    multipliers = z[-cmdp.num_costs :] if use_costs else np.zeros(cmdp.num_costs)
    return np.maximum(w, 0.0), np.maximum(multipliers, 0.0)
