"""Whether limits are kept, as far as it is known: one word per limit, which everybody reads."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class LimitStatus(StrEnum):
    """What is known about a limit from the data alone, before any certificate.

    WITHIN: an estimate that passed its check keeps it. ABOVE: an estimate exceeds it, checked or not.
    NOT_KNOWN: nothing is estimated, or what is kept by estimates failed its check.
    """

    WITHIN = "within"
    ABOVE = "above"
    NOT_KNOWN = "not known"

    @classmethod
    def of(cls, limits: Iterable[LimitStatus]) -> LimitStatus:
        """Of several limits together: the worst of them; of none, nothing is known."""
        found = set(limits)
        return next((one for one in (cls.ABOVE, cls.NOT_KNOWN, cls.WITHIN) if one in found), cls.NOT_KNOWN)

    @classmethod
    def by_estimate(cls, value: float | None, limit: float | None, *, trusted: bool) -> LimitStatus:
        """Of one limit, by an estimate in its unit; trusted: whether it passed its check on the data."""
        if value is None or limit is None:
            return cls.NOT_KNOWN
        if is_above(value, limit):
            return cls.ABOVE
        return cls.WITHIN if trusted else cls.NOT_KNOWN


def is_above(value: float, limit: float) -> bool:
    """Whether an estimate is above a limit by more than its rounding."""
    return not value <= limit * (1 + 1e-6) + 1e-9
