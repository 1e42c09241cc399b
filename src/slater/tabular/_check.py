"""Checks on arrays that users hand in: each failure names the entry and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.errors import InputError

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

#: how far a row of probabilities may be from summing to one; larger deviations are errors, not rounding
SUM_TOLERANCE = 1e-6


def _first(mask: Bool) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _entry(name: str, index: Sequence[int]) -> str:
    return f"{name}[{', '.join(map(str, index))}]" if len(index) else name


def raw_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """`value` as an array of any type; ragged lists are refused."""
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{name} is not an array of numbers: its rows differ in length.") from None


def as_array(name: str, value: ArrayLike, shape: Sequence[int | None]) -> Float:
    """`value` as a finite float array of `shape` (None: any length there)."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not an array of numbers with rows of equal length.") from None
    fits = array.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        raise InputError(f"{name} has shape {array.shape}, but shape {wanted} is needed.")
    bad = ~np.isfinite(array)
    if bad.any():
        index = _first(bad)
        raise InputError(f"{_entry(name, index)} is {array[index]}; every entry must be a finite number.")
    return array


def as_indices(name: str, value: ArrayLike) -> Int:
    """`value` as a 1-D array of whole numbers."""
    array = raw_array(name, value)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}, but one row of indices is needed.")
    if array.dtype.kind not in "iub":
        whole = array.dtype.kind == "f" and bool(np.all(np.isfinite(array) & (array == np.floor(array))))
        if not whole and array.size:
            raise InputError(f"{name} has type {array.dtype}, but whole numbers from 0 up are needed.")
    return array.astype(np.int64)


def check_indices(name: str, indices: Int, bound: int | None, what: str) -> None:
    """Raise unless every index is in [0, bound); without a bound, unless every index is at least 0."""
    bad = (indices < 0) | (indices >= bound) if bound is not None else indices < 0
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        known = (
            f"there are {bound} {what} (0 to {bound - 1})" if bound is not None else f"{what} count from 0"
        )
        raise InputError(f"{name}[{row}] is {indices[row]}, but {known}.")


def check_start(start: ArrayLike, states: int) -> Float:
    """The distribution of the first state, `(S,)`, from itself or from the index of the first state."""
    first = raw_array("start", start)
    if first.ndim > 0:
        return check_distribution("start", as_array("start", first, (states,)))
    index = float(as_array("start", first, ()))
    if index != np.floor(index) or not 0 <= index < states:
        raise InputError(f"start is state {index:g}, but there are {states} states (0 to {states - 1}).")
    return np.eye(states)[int(index)]


def check_policy(name: str, policy: ArrayLike, states: int, actions: int) -> Float:
    """A policy `(S, A)` whose rows are probabilities."""
    return check_distribution(name, as_array(name, policy, (states, actions)))


def check_range(name: str, array: Float, low: float, high: float = np.inf, *, hint: str = "") -> None:
    """Raise unless every entry is in [low, high]."""
    bad = (array < low) | (array > high)
    if bad.any():
        index = _first(bad)
        span = f"at least {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"
        raise InputError(f"{_entry(name, index)} is {array[index]:g}, but it must be {span}{hint}.")


def check_distribution(name: str, array: Float) -> Float:
    """Raise unless the last axis holds probabilities; return it normalised exactly."""
    check_range(name, array, 0.0, hint=" (it is a probability)")
    sums = array.sum(axis=-1)
    bad = np.abs(sums - 1.0) > SUM_TOLERANCE
    if bad.any():
        index = _first(np.atleast_1d(bad)) if array.ndim > 1 else ()
        total = float(sums[index]) if index else float(sums)
        where = _entry(name, (*index, ":")) if index else name  # type: ignore[arg-type]
        raise InputError(f"the probabilities {where} sum to {total:.6g}, but they must sum to 1.")
    return np.asarray(array / sums[..., None])


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Raise unless `value` is one of the known words."""
    if value not in known:
        raise InputError(f"{name} is {value!r}; choose one of {', '.join(known)}.")


def check_positive(name: str, value: float) -> None:
    """Raise unless `value` is a finite number above 0."""
    if not 0 < value < np.inf:
        raise InputError(f"{name} is {value:g}, but it must be a positive number.")


def check_rounds(rounds: int) -> None:
    """Raise unless there is at least one round."""
    if rounds < 1:
        raise InputError(f"rounds is {rounds}, but at least one is needed.")


def check_discount(discount: float) -> float:
    """Raise unless the discount is strictly between 0 and 1."""
    value = float(discount)
    if not 0.0 < value < 1.0:
        raise InputError(
            f"discount is {value:g}, but it must be above 0 and below 1 "
            "(an undiscounted problem has no finite value; try 0.99)."
        )
    return value
