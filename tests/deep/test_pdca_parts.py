"""PDCA's switchable parts on the engine: they are trained, saved and gone on with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.batches import draw, prepare
from slater.limits import resolve_limits

from .problems import pointmass


@pytest.mark.parametrize(
    ("estimator", "mixture", "dual", "ope_steps"),
    [
        ("rollouts", "posterior", "exponentiated_gradient", 5),
        ("rollouts", "auto", "greedy", 5),
        ("fqe", "uniform", "greedy_box", 5),
        ("fqe", "lp", "projected_gradient", 5),
    ],
)
def test_an_iteration_keeps_the_shape_of_the_state_whatever_parts_meet(estimator, mixture, dual, ope_steps):
    """Else no loop could carry it."""
    data = pointmass()
    task, device = prepare(data, resolve_limits([5], data.cost_names), 0.9)
    config = PDCAConfig(
        batch_size=8, hidden=(4,), gamma=0.9, estimator=estimator, mixture=mixture, dual=dual,
        ope_steps=ope_steps,
    )  # fmt: skip
    algorithm, key = PDCA(config), jax.random.key(0)
    state = jax.eval_shape(lambda: algorithm.init(task, key))
    for phase in ("start", "play", "climb", "ope") if algorithm.player else ("joint", "ope"):

        def update(state, phase=phase):
            batch = draw(device, task, key, config.batch_size)
            return algorithm.update(task, state, batch, key, jnp.asarray(0), phase)[0]

        after = jax.eval_shape(update, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        for one, two in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
            assert (one.shape, one.dtype) == (two.shape, two.dtype)


def test_the_networks_of_a_rounds_fqe_start_elsewhere_for_every_seed():
    data = pointmass()
    task, device = prepare(data, resolve_limits([5], data.cost_names), 0.9)
    config = PDCAConfig(batch_size=8, hidden=(4,), gamma=0.9, estimator="fqe", warm_steps=0, eta_fast=1e-9)
    algorithm = PDCA(config)
    state = algorithm.init(task, jax.random.key(0))
    batch, first = draw(device, task, jax.random.key(0), config.batch_size), jnp.asarray(config.joint_steps)
    one, again, other = (
        algorithm.update(task, state, batch, jax.random.key(seed), first, "ope")[0].estimator.h
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one[0].mlp.weights[0], again[0].mlp.weights[0])
    assert not np.allclose(one[0].mlp.weights[0], other[0].mlp.weights[0])
    later = algorithm.update(task, state, batch, jax.random.key(2), first + 1, "ope")[0].estimator.h
    assert np.allclose(later[0].mlp.weights[0], state.estimator.h[0].mlp.weights[0])  # not started anew
