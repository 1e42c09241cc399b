"""The plug-in rival: solve the CMDP's linear program on the empirical model, as if it were true."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from slater.tabular.cmdp import Infeasible
from slater.tabular.counts import Counts, Unseen
from slater.tabular.mixture import Mixture
from slater.tabular.result import BOUND_FACTOR, Result


@dataclass(frozen=True)
class PlugIn:
    """Settings of the plug-in linear program; `unseen` as in `Counts.model`."""

    unseen: Unseen = "pessimistic"

    def run(self, data: Counts, limits: ArrayLike | None = None) -> Result:
        """Solve the empirical problem; if no policy meets the limits there, come as close as possible."""
        data = data.with_limits(limits)
        model = data.model(self.unseen)
        notes: tuple[str, ...] = ()
        try:
            solution = model.solve()
        except Infeasible as error:
            model = model.with_limits(model.limits + error.excess * (1 + 1e-6) + 1e-9)
            solution = model.solve()
            notes = (
                f"on the empirical model every policy exceeds a limit; all were raised by {error.excess:.4g}",
            )
        policy = Mixture.single(solution.policy[: data.num_states])
        bound = 1.0 + BOUND_FACTOR * float(solution.multipliers.sum())
        return Result("plugin", policy, solution.multipliers, bound, 1, notes)
