"""`NAME=VALUE` and `NAME=V1,V2,...`, as people type them: parsed once for settings, sweeps, columns."""

from __future__ import annotations

from collections.abc import Iterable

from slater.errors import InputError


def _parted(text: str, error: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise InputError(error)
    return name, value


def parse_pair(text: str, what: str = "setting") -> tuple[str, str]:
    """Name and value of `NAME=VALUE`; `what` it is, for the error. Dashes in a name mean underscores."""
    name, value = _parted(text, f"the {what} {text!r} is not NAME=VALUE; write for example gamma=0.99.")
    return name.replace("-", "_"), value


def parse_pairs(texts: Iterable[str], what: str = "setting") -> dict[str, str]:
    """Every `NAME=VALUE`, by name; a name may come once."""
    found: dict[str, str] = {}
    for name, value in (parse_pair(text, what) for text in texts):
        if name in found:
            raise InputError(f"the {what} {name} is given twice, as {found[name]} and as {value}; keep one.")
        found[name] = value
    return found


def parse_lists(texts: Iterable[str], what: str, example: str) -> dict[str, tuple[str, ...]]:
    """The values of every `NAME=V1,V2,...`, by name, in their order; a name may come once."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        error = f"the {what} {text!r} is not NAME=V1,V2,...; write for example {example}."
        name, values = _parted(text, error)
        if name in found:
            raise InputError(f"the {what} names {name!r} twice; give all its values at once.")
        found[name] = tuple(part.strip() for part in values.split(",") if part.strip())
        if not found[name]:
            raise InputError(error)
    return found


def parse_values(texts: Iterable[str], what: str, example: str) -> dict[str, tuple[str, ...]]:
    """As `parse_lists`, each value once; the names are of settings, whose dashes mean underscores."""
    named = ("=".join((name.replace("-", "_"), *rest)) for name, *rest in (t.split("=", 1) for t in texts))
    return {name: tuple(dict.fromkeys(given)) for name, given in parse_lists(named, what, example).items()}
