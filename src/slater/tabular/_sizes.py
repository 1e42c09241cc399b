"""The sizes that a finite problem and the data of one have in common."""

from __future__ import annotations

from slater.tabular._check import Float

__all__ = ["Sizes"]


class Sizes:
    """S, A, I and H, from what the subclass holds: `costs`, shape `(I, S, A)`, and `discount`."""

    costs: Float
    discount: float

    @property
    def num_states(self) -> int:
        """S."""
        return self.costs.shape[1]

    @property
    def num_actions(self) -> int:
        """A."""
        return self.costs.shape[2]

    @property
    def num_costs(self) -> int:
        """I."""
        return len(self.costs)

    @property
    def horizon(self) -> float:
        """H = 1 / (1 - discount): the factor between occupancy-weighted means and J-units."""
        return 1.0 / (1.0 - self.discount)
