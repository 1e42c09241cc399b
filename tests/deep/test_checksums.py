"""One flipped bit is another policy: what a run or the cache reads back is what was written, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slater.deep as deep
from slater.deep import checkpoint
from slater.errors import InputError

from .problems import QUICK, pointmass
from .runs import StopAt
from .toy import Toy

OPTIONS = {"log_every": 10, "checkpoint_every": 10, "estimate": False}


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """The toy algorithm is known, in this test only."""
    from slater.deep.algorithms import registry

    monkeypatch.setitem(registry._REGISTRY, "toy", Toy)


def _flip(path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "members/00000020.safetensors"])
def test_a_flipped_bit_of_a_checkpoint_or_a_member_stops_the_run(tmp_path, name):
    data = pointmass()
    with pytest.raises(KeyboardInterrupt):
        deep.train("toy", data, [5], tmp_path, options=OPTIONS, watcher=StopAt(30), **QUICK)
    _flip(tmp_path / name, -40)
    with pytest.raises(InputError, match=r"damaged.*checksum"):
        deep.resume(tmp_path, data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused_or_changes_nothing(tmp_path, share, bit):
    tree = {"a": np.arange(5, dtype=np.float32), "b": np.eye(3, dtype=np.float32)}
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, tree, {"step": 3})
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1 << bit
    path.write_bytes(bytes(content))
    try:
        found, record = checkpoint.restore(path, tree)
    except InputError:
        return
    assert record["step"] == 3
    for name, array in tree.items():
        np.testing.assert_array_equal(found[name], array)
