"""PDCA's switchable parts on the engine: they are trained, saved and gone on with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import slater.deep as deep
from slater.deep.algorithms.pdca import PDCA, PDCAConfig
from slater.deep.batches import draw, prepare
from slater.limits import resolve_limits
from slater.runs.metrics import read_metrics

from .problems import QUICK, pointmass
from .runs import StopAt

OPTIONS = {"log_every": 5, "checkpoint_every": 10}


def test_layer_norm_exp3_and_atacs_loss_are_saved_resumed_and_used(tmp_path):
    settings = QUICK | {
        "hidden": (8,), "warm_steps": 10, "joint_steps": 5, "ope_steps": 5, "mixture": "uniform",
        "critic": "hinge", "layer_norm": True, "dual": "exp3", "critic_loss": "atac",
    }  # fmt: skip
    data = pointmass()
    with pytest.raises(KeyboardInterrupt):
        deep.train("pdca", data, [5], tmp_path, preset="fqe", options=OPTIONS, watcher=StopAt(40), **settings)
    deep.resume(tmp_path, data)
    saved = load_file(tmp_path / "checkpoint.safetensors")
    for critic in (".critics.f[0]", ".critics.g[0][0]", ".estimator.h[1]", ".estimator.target[0]"):
        assert not np.all(saved[f"{critic}.mlp.gains[0]"] == 1.0)
        assert not np.all(saved[f"{critic}.mlp.shifts[0]"] == 0.0)
    assert not any(name.startswith(".primal") and ("gains" in name or "shifts" in name) for name in saved)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["phase"] == "joint"]
    played = {row["lambda/c0"] for row in rows}
    assert len(played) > 1
    assert played <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}  # B = 5 in 5 steps


@pytest.mark.parametrize(
    ("estimator", "mixture", "dual", "ope_steps"),
    [
        ("model", "uniform", "greedy", 5),
        ("model", "lp", "exp3", 5),
        ("fqe", "uniform", "exp3", 5),
        ("fqe", "uniform", "pi", 5),
        ("residual", "uniform", "exp3", 0),
        ("residual", "lp", "greedy_box", 0),
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
    for phase in ("joint", "ope") if algorithm.schedule.in_rounds else ("game",):

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
