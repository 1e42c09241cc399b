"""The example of serving an exported policy, for real: a process, a port, requests."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from slater.policy import Mixture
from slater.policy.onnx_file import save_onnx

from .test_onnx import gaussian

SERVE = Path(__file__).parents[2] / "examples" / "serve" / "serve.py"
pytest.importorskip("onnxruntime", reason="pip install 'slater-rl[onnx]' onnxruntime")


def test_an_exported_mixture_is_served_one_member_per_episode(tmp_path):
    members = (gaussian(0), gaussian(1))
    save_onnx(Mixture(members, np.array([0.5, 0.5])), tmp_path / "policy.onnx")
    serving = subprocess.Popen(
        [sys.executable, str(SERVE), str(tmp_path / "policy.onnx"), "0"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert serving.stdout is not None
        port = int(serving.stdout.readline().split()[-1])

        def ask(episode: str, mean: bool) -> dict:
            body = json.dumps({"episode": episode, "observation": [0.5] * 8, "mean": mean}).encode()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}", body, timeout=60) as answer:
                return json.load(answer)

        first = ask("a", True)
        expected = members[first["member"]].act(
            np.full((1, 8), 0.5, np.float32), rng=np.random.default_rng(0), deterministic=True
        )
        np.testing.assert_allclose(first["action"], expected[0], atol=1e-6)
        assert {ask("a", False)["member"] for _ in range(12)} == {first["member"]}
        assert {ask(str(number), False)["member"] for number in range(24)} == {0, 1}
        assert ask("a", False)["action"] != ask("a", False)["action"]
    finally:
        serving.kill()
        serving.wait()
