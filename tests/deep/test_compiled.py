"""Compiled code is shared between equals, and only between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import slater.deep as deep
from slater.deep.compiled import shared

from .problems import QUICK, pointmass


def make(*of: Any) -> Any:
    return lambda: of


def test_equal_things_share_and_different_ones_do_not() -> None:
    one = shared(make, np.arange(3.0), optax.adam(0.1))
    assert shared(make, np.arange(3.0), optax.adam(0.1)) is one
    assert shared(make, np.array([0.0, 1.0, 2.0 + 4e-16]), optax.adam(0.1)) is not one
    assert shared(make, np.arange(3.0), optax.adam(0.2)) is not one
    assert shared(lambda *of: make(*of), np.arange(3.0), optax.adam(0.1)) is not one


def test_what_cannot_be_compared_is_made_anew() -> None:
    lock = __import__("threading").Lock()
    assert shared(make, lock) is not shared(make, lock)


@pytest.fixture
def compilations():
    found: list[str] = []

    def hear(name: str, seconds: float, **_: Any) -> None:
        if name.endswith("backend_compile_duration"):
            found.append(name)

    jax.monitoring.register_event_duration_secs_listener(hear)
    yield found
    jax.monitoring.unregister_event_duration_listener(hear)


def test_another_seed_is_not_compiled_again(tmp_path: Path, compilations: list[str]) -> None:
    for seed in (0, 1):
        compilations.clear()
        deep.train("bc", pointmass(), ["5"], tmp_path / str(seed), seed=seed, **QUICK)
    assert not compilations
