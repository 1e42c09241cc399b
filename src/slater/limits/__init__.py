"""What a cost limit means, and the one place where its units are converted.

A limit c can be said in three ways: as the cost summed over an episode of T steps, undiscounted (what a
person means by "20 per episode"); as the discounted sum J = E sum_t gamma^t C_t (what a critic
estimates); or as the mean cost of a step. Comparing a limit in one unit with an estimate in another is
the commonest mistake of the field, so a `Limit` carries its unit and `Units` converts.

All conversions assume a constant cost rate r per step. With T the horizon in steps:

    episode     c = r T
    per step    r
    discounted  J = r w,  w = 1/(1-gamma)            critics bootstrap through timeouts (endless process)
                          w = (1-gamma^T)/(1-gamma)  critics stop at timeouts (episodes of T steps)
    normalised  (1-gamma) J                          mean cost under the discounted occupancy

Choose the row that matches the mask of the critics, and use the same mask for reward and costs. So
"discounted" alone says too little: in estimates and limits it is the endless process unless they say
otherwise; the sums of single episodes that a rollout lists end with the episode. `Units.measure` gives what
episodes cost in every unit of a setting, to be compared with limits in the same one.
"""

from __future__ import annotations

from slater.limits.limit import LARGEST, Limit, Quantity, Unit, duration
from slater.limits.resolving import Limits, limit_list, resolve_limits
from slater.limits.units import Units, limit_records, limit_table

__all__ = [
    "LARGEST",
    "Limit",
    "Limits",
    "Quantity",
    "Unit",
    "Units",
    "duration",
    "limit_list",
    "limit_records",
    "limit_table",
    "resolve_limits",
]
