"""A new class of policies is one file and a name in a table: saved, loaded, mixed and run as any other."""

import json
import sys

import numpy as np

from slater import policy as policies
from slater.policy import Mixture, files

FILE = '''
"""Takes the action of the nearest of some known states."""

from dataclasses import dataclass

import numpy as np

from slater.policy.base import Described, MemorylessActor


@dataclass(frozen=True, eq=False)
class NearestPolicy(Described):
    """places (n, s) float32; actions (n, a) float32."""

    places: np.ndarray
    actions: np.ndarray

    def act(self, observations, *, rng, deterministic=False):
        far = ((np.asarray(observations)[:, None] - self.places) ** 2).sum(axis=-1)
        return self.actions[far.argmin(axis=1)]

    def begin(self, *, rng, deterministic=False):
        return MemorylessActor(self, rng, deterministic)

    def tensors(self):
        return {"places": self.places, "actions": self.actions}

    def description(self):
        return {"kind": "nearest"}

    @classmethod
    def from_tensors(cls, description, tensors):
        return cls(tensors["places"], tensors["actions"])
'''


def test_one_file_is_a_policy(tmp_path, monkeypatch):
    (tmp_path / "nearest_policy.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(files._KINDS, "nearest", "nearest_policy:NearestPolicy")
    from nearest_policy import NearestPolicy  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    one, other = (
        NearestPolicy(
            rng.normal(size=(5, 2)).astype(np.float32), rng.uniform(-1, 1, (5, 1)).astype(np.float32)
        )
        for _ in range(2)
    )
    policies.save(Mixture((one, other), np.array([0.25, 0.75])), tmp_path / "mixture.safetensors")
    sys.modules.pop("nearest_policy")  # the class is found by the file that names it
    loaded = policies.load(tmp_path / "mixture.safetensors")
    seen = rng.normal(size=(20, 2)).astype(np.float32)
    for mine, theirs in zip((one, other), loaded.members, strict=True):
        np.testing.assert_array_equal(mine.act(seen, rng=rng), theirs.act(seen, rng=rng))
    actor = loaded.begin(rng=np.random.default_rng(1))
    steps = np.stack([actor.act(observation) for observation in seen])
    assert any(np.array_equal(steps, policy.act(seen, rng=rng)) for policy in (one, other))  # one an episode
    assert json.dumps(loaded.members[0].description()) == '{"kind": "nearest"}'
