"""Iterations as compiled code: the first state, one iteration, and a chunk of them as one call.

A run has phases with code of their own. XLA compiles without Python's lock, so a thread compiles what comes
later while the first state is made and the first phases run (`CompilingAhead`): a second core, where there is
one, does it in no time of the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from slater.deep.algorithms.base import Algorithm
from slater.deep.compiled import jit_once, shared
from slater.deep.task import Task

#: iterations of one phase as one call: state, sums of metrics, and the first bad step or -1
Chunk = Callable[..., tuple[Any, dict[str, Array], Array]]

#: step, state, sums of metrics, the first bad step or -1
Carry = tuple[Array, Any, dict[str, Array], Array]

#: no loss of scaled utilities comes near this while training is sane
EXPLOSION = 1e8


def initial_state(algorithm: Algorithm[Any, Any], task: Task, key: Array, tau: Array | None = None) -> Any:
    """The first state, compiled in one piece: each array its own buffer, which a chunk may reuse.

    tau: limits other than those of the task, for runs that are one program.
    """
    return shared(_compile_init, algorithm, task)(key, tau)


def blank_state(algorithm: Algorithm[Any, Any], task: Task, key: Array) -> Any:
    """A state of zeros with the shapes of the first one, which is not compiled for it."""
    shapes = jax.eval_shape(shared(_compile_init, algorithm, task), key)
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), shapes)


def with_tau(task: Task, tau: Array | None) -> Task:
    """The problem under other limits, which may be traced."""
    return task if tau is None else replace(task, tau=tau)  # type: ignore[arg-type]  # as NumPy's does here


def _compile_init(algorithm: Algorithm[Any, Any], task: Task) -> Callable[..., Any]:
    @jit_once
    def init(key: Array, tau: Array | None = None) -> Any:
        state = algorithm.init(with_tau(task, tau), jax.random.fold_in(key, 2**32 - 1))
        # a weakly typed scalar would become strongly typed later and have everything compiled twice
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)

    return init


def iteration(
    algorithm: Algorithm[Any, Any], task: Task, data: Any, key: Array, step: Array, state: Any,
    phase: str,
) -> tuple[Any, dict[str, Array]]:  # fmt: skip
    """Iteration `step` of a run: its minibatch and all its noise come from (`key`, `step`)."""
    key_batch, key_update = jax.random.split(jax.random.fold_in(key, step))
    batch = algorithm.draw(task, data, key_batch)
    return algorithm.update(task, state, batch, key_update, step, phase)


def compile_chunk(algorithm: Algorithm[Any, Any], task: Task) -> Chunk:
    """Iterations [start, stop) of one phase; equal algorithms on equal problems share the code.

    The bounds are arguments, not constants: the same machine code runs whatever the length of a chunk, so
    the bits do not depend on where a run was cut.
    """
    return shared(_compile_chunk, algorithm, task)


def _compile_chunk(algorithm: Algorithm[Any, Any], task: Task) -> Chunk:
    @eqx.filter_jit(donate="all-except-first")
    def chunk(
        constants: tuple[Any, Array], state: Any, start: Array, stop: Array, phase: str
    ) -> tuple[Any, dict[str, Array], Array]:
        data, key = constants

        def one(step: Array, state: Any) -> tuple[Any, dict[str, Array]]:
            return iteration(algorithm, task, data, key, step, state, phase)

        return run_iterations(one, state, start, stop)

    return chunk


class CompilingAhead:
    """The phases of a run, compiled in their order by a thread; `await_code` waits for the code of one.

    A phase is compiled by running none of its iterations. What goes wrong there goes wrong again where the
    phase is run, and is raised there.
    """

    def __init__(self, chunk: Chunk, constants: tuple[Any, Array], blank: Any, phases: Sequence[str]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compiling")
        self._state = blank
        self._made = {phase: self._thread.submit(self._compile, chunk, constants, phase) for phase in phases}

    def _compile(self, chunk: Chunk, constants: tuple[Any, Array], phase: str) -> None:
        # the state is given back as it was, in buffers that were reused: one is enough for all phases
        self._state, _, _ = chunk(constants, self._state, jnp.asarray(0), jnp.asarray(0), phase)

    def await_code(self, phase: str) -> None:
        """Wait until `phase` is compiled, if it is one of those ahead."""
        if phase in self._made:
            wait([self._made.pop(phase)])

    def close(self) -> None:
        """Compile no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def run_iterations(
    one: Callable[[Array, Any], tuple[Any, dict[str, Array]]], state: Any, start: Array, stop: Array,
    runs: tuple[int, ...] = (),
) -> tuple[Any, dict[str, Array], Array]:  # fmt: skip
    """Iterations [start, stop) of `one`: (step, state) -> (state, metrics), of one run or of stacked `runs`.

    Gives the state, sums of metrics, and the first step with a bad loss or -1, both of shape `runs`. It stops
    early when every run is bad; the numbers of a run that is bad before others are not to be used.
    """

    def body(carry: Carry) -> Carry:
        step, state, sums, bad = carry
        state, metrics = traced(step, state)
        losses = [value for name, value in metrics.items() if name.startswith("loss/")]
        fine = jnp.all(jnp.abs(jnp.array(losses)) < EXPLOSION, axis=0)  # False for NaN too
        sums = {name: sums[name] + value for name, value in metrics.items()}
        return step + 1, state, sums, jnp.where((bad < 0) & ~fine, step, bad)

    def goes_on(carry: Carry) -> Array:
        return (carry[0] < stop) & jnp.any(carry[3] < 0)

    traced: Any = eqx.filter_closure_convert(one, start, state)  # once, for its shapes and for the loop
    shapes = traced.out_struct[1]
    zeros = {name: jnp.zeros(leaf.shape) for name, leaf in shapes.items()}
    _, state, sums, bad = jax.lax.while_loop(goes_on, body, (start, state, zeros, jnp.full(runs, -1)))
    return state, sums, bad
