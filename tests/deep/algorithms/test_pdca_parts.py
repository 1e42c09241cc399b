"""PDCA's default on the engine: its parts make one state that a loop can carry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.batches import draw, prepare
from slater.deep.log_model.columns import MOST_LEVELS, NAMES
from slater.limits import resolve_limits

from ..exact import random_cmdp
from ..problems import pointmass


@pytest.mark.parametrize("levels", [0, NAMES, MOST_LEVELS])
@pytest.mark.parametrize("discrete", [False, True])
def test_an_iteration_keeps_the_shape_of_the_state_in_every_phase(discrete, levels):
    """Else no loop could carry it."""
    data = pointmass(discrete=discrete)
    task, device = prepare(data, resolve_limits([5], data.cost_names), 0.9)
    algorithm, key = PDCA(PDCAConfig(batch_size=8, hidden=(4,), gamma=0.9, levels=levels)), jax.random.key(0)
    state = jax.eval_shape(lambda: algorithm.init(task, key))
    for phase in ("start", "play", "climb", "ope"):

        def update(state, phase=phase):
            batch = draw(device, task, key, 8)
            return algorithm.update(task, state, batch, key, jnp.asarray(1), phase)[0]

        after = jax.eval_shape(update, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        for one, two in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
            assert (one.shape, one.dtype) == (two.shape, two.dtype)


def test_what_is_left_open_follows_the_log():
    config = PDCAConfig(hidden=(8,), gamma=0.9)
    found = PDCA(config).config_for(pointmass(episodes=4))
    assert (found.levels, found.model_hidden) == (0, (8,))
    names = PDCA(config).config_for(random_cmdp(0).dataset(np.full((10, 5), 1 / 5), 50, 0))
    assert names.levels == NAMES
    assert names.log_model().dynamics.levels == NAMES
    assert PDCA(names).config_for(pointmass(episodes=4)) == names  # what was decided stays
