"""Algorithms by name: entry points and near misses."""

import pytest

from slater.deep.algorithms import registry
from slater.errors import InputError

from ..toy import Toy


class Point:
    """An entry point of an installed package."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self):
        return Toy


def installed(monkeypatch, name: str) -> None:
    def entry_points(*, group: str, name: str | None = None, known: str = name):
        return tuple(Point(known) for _ in range(1) if name in (None, known))

    registry.algorithms()  # ours are registered as they are imported, which happens once
    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_an_entry_point_whose_name_is_not_its_algorithms_is_refused(monkeypatch):
    installed(monkeypatch, "my-toy")
    with pytest.raises(InputError, match="the entry point 'my-toy' gives the algorithm 'toy'"):
        registry.find("my-toy")
    assert "my-toy" not in registry._REGISTRY
    installed(monkeypatch, "toy")
    assert registry.find("toy") is Toy


def test_a_near_miss_is_named():
    with pytest.raises(InputError, match=r"no algorithm 'pdcaa'; did you mean 'pdca'\?"):
        registry.find("pdcaa")
