"""Compiled code is shared between equals, and only between them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import jax
import numpy as np
import optax
import pytest

import slater.deep as deep
from slater.deep.algorithms.registry import make_algorithm
from slater.deep.compiled import jit_once, shared

from .problems import QUICK, pointmass
from .runs import weights
from .toy import Toy


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


def test_first_weights_are_the_same_bits_compiled_quickly_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # the tests' own flags set a level for everything, which a user has not
    monkeypatch.setattr("slater.deep.compiled._QUICK", {"xla_backend_optimization_level": 1})
    data = pointmass()
    for name in ("pdca", "cpq", "cdt"):
        algorithm = make_algorithm(name, QUICK)
        algorithm = type(algorithm)(algorithm.config_for(data))
        task = algorithm.task(data, ["5"])
        algorithm = algorithm.informed(data, task)

        def init(key, algorithm=algorithm, task=task):
            return algorithm.init(task, key)

        key = jax.random.key(3)
        # the default of XLA, which the tests' own flags lower
        usually = jax.jit(init, compiler_options={"xla_backend_optimization_level": 3})
        for quick, usual in zip(
            jax.tree.leaves(jit_once(init)(key)), jax.tree.leaves(usually(key)), strict=True
        ):
            np.testing.assert_array_equal(
                jax.random.key_data(quick)
                if jax.dtypes.issubdtype(quick.dtype, jax.dtypes.prng_key)
                else quick,
                usual,
            )


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


class TwoPhases(Toy):
    """The toy in two phases; where each was traced."""

    name = "two-phases"
    traced: ClassVar[list[tuple[str, bool]]] = []

    def phase(self, step: int) -> tuple[str, int]:
        return ("first", 20) if step < 20 else ("second", self.config.steps)

    def update(self, task, state, batch, key, step, phase):
        self.traced.append((phase, threading.current_thread() is threading.main_thread()))
        return super().update(task, state, batch, key, step, phase)


def test_a_thread_compiles_each_phase_once_and_the_bits_are_those_of_compiling_when_it_is_due(
    tmp_path,
) -> None:
    from slater.deep.algorithms import registry
    from slater.deep.engine.iterations import CompilingAhead

    with mock.patch.dict(registry._REGISTRY, {"two-phases": TwoPhases}):
        deep.train("two-phases", pointmass(), ["5"], tmp_path / "ahead", **QUICK)
        assert TwoPhases.traced == [("first", False), ("second", False)]
        TwoPhases.traced.clear()
        with mock.patch.object(CompilingAhead, "_compile", return_value=None):
            # another limit is another task, which shares no code with the one before
            deep.train("two-phases", pointmass(), ["5.0001"], tmp_path / "due", **QUICK)
    assert TwoPhases.traced == [("first", True), ("second", True)]
    assert weights(tmp_path / "ahead") == weights(tmp_path / "due")


def test_compiled_code_stays_for_later_processes(tmp_path: Path) -> None:
    """In the user's cache; where JAX was told of another folder, that stays."""
    code = (
        "import jax\nfrom slater.deep.compiled import keep_compiled\nkeep_compiled()\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\n"
        "jax.jit(lambda x: x * 3 + 1)(2.0)\nprint(jax.config.jax_compilation_cache_dir)"
    )
    own = {name: text for name, text in os.environ.items() if not name.startswith("JAX_")}
    own |= {"SLATER_CACHE": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    for told in (None, str(tmp_path / "told")):
        env = own | ({"JAX_COMPILATION_CACHE_DIR": told} if told else {})
        said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
        folder = Path(said.strip())
        assert folder.is_relative_to(told or tmp_path / "cache")
        assert any(folder.iterdir())
