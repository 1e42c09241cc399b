"""Quadratic programs over cones, by Clarabel: one way of asking for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
#: rows (m, n) and right side (m,) of `right - rows x` in a cone
Block = tuple[Any, F64, Literal["zero", "nonnegative", "second-order"]]


def cone_program(quadratic: Any, cost: F64, blocks: Sequence[Block]) -> tuple[F64, F64, str]:
    """Minimise `x' quadratic x / 2 + cost.x`: x (n,), the rows' multipliers, and what went wrong, or nothing.

    quadratic: (n, n), dense or sparse; a second-order cone has its bound in the first row.
    """
    import clarabel
    from scipy import sparse

    kinds = {
        "zero": clarabel.ZeroConeT,
        "nonnegative": clarabel.NonnegativeConeT,
        "second-order": clarabel.SecondOrderConeT,
    }
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    answer = clarabel.DefaultSolver(
        sparse.csc_matrix(quadratic),
        cost,
        sparse.csc_matrix(sparse.vstack([sparse.csr_array(rows) for rows, _, _ in blocks])),
        np.concatenate([right for _, right, _ in blocks]),
        [kinds[kind](len(right)) for _, right, kind in blocks],
        settings,
    ).solve()
    status = str(answer.status)
    return np.array(answer.x), np.array(answer.z), "" if status in ("Solved", "AlmostSolved") else status
