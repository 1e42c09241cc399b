"""The cache of log models: what is read back is what was fitted; what is damaged is refused by its name."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from slater.deep.log_model import log_model
from slater.deep.log_model.log_model import fit_log_model, settings_of
from slater.deep.task import state_task
from slater.errors import InputError
from slater.limits import Limit

from ..problems import pointmass

DATA = pointmass()
TASK = state_task(DATA, (Limit.episode(5, "c0"),), 0.9)


def _fitted(folder, monkeypatch):
    """From the folder, not from memory."""
    monkeypatch.setattr(log_model, "_last", OrderedDict())
    return fit_log_model(DATA, TASK, settings_of(DATA, steps=4, hidden=(8,)), folder)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        return _fitted(folder, patch), folder


def test_what_is_kept_is_what_was_fitted(kept, monkeypatch):
    first, folder = kept
    again = _fitted(folder, monkeypatch)
    assert again.kinds == first.kinds
    assert again.past == first.past
    np.testing.assert_array_equal(again.behaviours.labels, first.behaviours.labels)


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "text", "another"])
def test_what_is_damaged_is_named(kept, monkeypatch, tmp_path, damage):
    _, folder = kept
    (path,) = folder.glob("log-*.safetensors")
    whole = path.read_bytes()
    bad = {
        "empty": b"", "cut": whole[: len(whole) // 2], "text": b"not a model",
        "bit": whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:], "another": whole[:8] + b"{}" + whole[10:],
    }[damage]  # fmt: skip
    (tmp_path / path.name).write_bytes(bad)
    with pytest.raises(InputError, match=path.name):
        _fitted(tmp_path, monkeypatch)
