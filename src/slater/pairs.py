"""`NAME=VALUE` and `NAME=V1,V2,...`, as people type them: parsed once for settings, sweeps, columns."""

from __future__ import annotations

from collections.abc import Iterable

from slater.errors import InputError


def parse_pair(text: str, what: str = "setting") -> tuple[str, str]:
    """Name and value of `NAME=VALUE`; `what` it is, for the error. Dashes in a name mean underscores."""
    name, separator, value = (part.strip() for part in text.partition("="))
    if not separator or not name or not value:
        raise InputError(f"the {what} {text!r} is not NAME=VALUE; write for example gamma=0.99.")
    return name.replace("-", "_"), value


def parse_pairs(texts: Iterable[str], what: str = "setting") -> dict[str, str]:
    """Every `NAME=VALUE`, by name; a name may come once."""
    found: dict[str, str] = {}
    for name, value in (parse_pair(text, what) for text in texts):
        if name in found:
            raise InputError(f"the {what} {name} is given twice, as {found[name]} and as {value}; keep one.")
        found[name] = value
    return found


def parse_values(texts: Iterable[str], what: str, example: str) -> dict[str, tuple[str, ...]]:
    """As `parse_lists`, each value once; the names are of settings, whose dashes mean underscores."""
    found = parse_lists((_setting(text) for text in texts), what, example)
    return {name: tuple(dict.fromkeys(values)) for name, values in found.items()}


def _setting(text: str) -> str:
    name, separator, values = text.partition("=")
    return name.replace("-", "_") + separator + values


def parse_lists(texts: Iterable[str], what: str, example: str) -> dict[str, tuple[str, ...]]:
    """The values of every `NAME=V1,V2,...`, by name, in their order; a name may come once."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, separator, values = (part.strip() for part in text.partition("="))
        parts = tuple(part.strip() for part in values.split(",") if part.strip())
        if not separator or not name or not parts:
            raise InputError(f"the {what} {text!r} is not NAME=V1,V2,...; write for example {example}.")
        if name in found:
            raise InputError(f"the {what} names {name!r} twice; give all its values at once.")
        found[name] = parts
    return found
