"""Algorithms by name, and their settings from texts."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from slater.deep.algorithms.base import Algorithm, Config
from slater.errors import InputError

_REGISTRY: dict[str, type[Algorithm[Any, Any]]] = {}


AlgorithmT = TypeVar("AlgorithmT", bound=type[Algorithm[Any, Any]])


def register(algorithm: AlgorithmT) -> AlgorithmT:
    """Class decorator: make an algorithm known by its name."""
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def algorithms() -> tuple[str, ...]:
    """Names of all algorithms: PDCA, others of this folder (found without a list), those of packages."""
    package = import_module(__name__.rpartition(".")[0])
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    ours = sorted(_REGISTRY, key=lambda name: (name != "pdca", name))
    others = (point.name for point in entry_points(group="slater.algorithms"))
    return (*ours, *(name for name in others if name not in _REGISTRY))


def find(name: str, preset: str | None = None) -> type[Algorithm[Any, Any]]:
    """The algorithm called `name`; with a preset, the class that plays it."""
    known = algorithms()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}."
        raise InputError(f"there is no algorithm {name!r}; {hint}")
    if name not in _REGISTRY:
        (point,) = entry_points(group="slater.algorithms", name=name)
        loaded = point.load()
        own = getattr(loaded, "name", None)
        if own != name:
            raise InputError(
                f"the entry point {name!r} gives the algorithm {own!r}; its package must register it under "
                "its own name."
            )
        _REGISTRY[name] = loaded
    found = _REGISTRY[name]
    return found if preset is None else found.variants.get(preset, found)


def make_algorithm(
    name: str, settings: Mapping[str, Any] | None = None, preset: str | None = None
) -> Algorithm[Any, Any]:
    """The algorithm called `name` with its settings."""
    kind = find(name, preset)
    return kind(make_config(kind, settings or {}, preset))


def preset_names(algorithm: type[Algorithm[Any, Any]]) -> tuple[str, ...]:
    """Every preset of an algorithm, those of its variants too."""
    return (*algorithm.presets, *algorithm.variants)


def make_config(
    algorithm: type[Algorithm[Any, Any]], settings: Mapping[str, Any], preset: str | None = None
) -> Config:
    """The algorithm's config from a preset and settings by name; texts are read as the field's type."""
    if preset is not None and preset in algorithm.variants:
        algorithm = algorithm.variants[preset]
    if preset is not None and preset not in algorithm.presets:
        known = ", ".join(preset_names(algorithm)) or "none"
        raise InputError(f"{algorithm.name} has no preset {preset!r}; presets: {known}.")
    merged = {**(algorithm.presets[preset] if preset else {}), **settings}
    hints = get_type_hints(algorithm.Config)
    names = [f.name for f in dataclasses.fields(algorithm.Config)]
    for name in merged:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"settings: {', '.join(names)}."
            raise InputError(f"{algorithm.name} has no setting {name!r}; {hint}")
    return algorithm.Config(**{name: _read(name, value, hints[name]) for name, value in merged.items()})


def _read(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`: bool, int, float, str, a Literal, a tuple of these, or None."""
    options = get_args(hint)
    if type(None) in options:
        if value is None or value == "none":
            return None
        return _read(name, value, next(option for option in options if option is not type(None)))
    try:
        if get_origin(hint) is tuple:
            parts = value.split("x" if "x" in value else ":") if isinstance(value, str) else list(value)
            if "" in parts:
                raise InputError(f"the setting {name} is {value!r}; write several numbers as 256x256.")
            return tuple(_read(name, part, options[0]) for part in parts)
        if options:  # a Literal
            if value not in options:
                raise InputError(f"{name} must be one of {', '.join(map(str, options))}, not {value!r}.")
            return value
        if hint is bool:
            if str(value).lower() not in ("true", "false", "1", "0", "yes", "no"):
                raise ValueError
            return str(value).lower() in ("true", "1", "yes")
        if hint is int and float(value) != int(float(value)):
            raise ValueError
        return int(float(value)) if hint is int else hint(value)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError):
        kind = {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "numbers")
        raise InputError(f"the setting {name} must be {kind}, not {value!r}.") from None
