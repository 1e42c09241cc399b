"""The example of serving an exported policy, for real: a process, a port, requests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from slater.policy import Mixture
from slater.policy.onnx_file import save_onnx

from .test_onnx import categorical, gaussian
from .test_remembering import OBS, episode, made

SERVE = Path(__file__).parents[2] / "examples" / "serve" / "serve.py"
pytest.importorskip("onnxruntime", reason="pip install 'slater-rl[onnx]' onnxruntime")

MEMBERS = (gaussian(0), gaussian(1))


def _serving(policy, folder):
    save_onnx(policy, folder / "policy.onnx")
    process = subprocess.Popen(
        [sys.executable, str(SERVE), str(folder / "policy.onnx"), "0"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline().split()[-1])


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    process, port = _serving(Mixture(MEMBERS, np.array([0.5, 0.5])), tmp_path_factory.mktemp("serve"))
    yield port
    process.kill()
    process.wait()


def _post(port: int, body: bytes) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", body, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_an_exported_mixture_is_served_one_member_per_episode(port):
    def ask(episode: str, mean: bool) -> dict:
        body = json.dumps({"episode": episode, "observation": [0.5] * 8, "mean": mean}).encode()
        code, answer = _post(port, body)
        assert code == 200
        return answer

    first = ask("a", True)
    expected = MEMBERS[first["member"]].act(
        np.full((1, 8), 0.5, np.float32), rng=np.random.default_rng(0), deterministic=True
    )
    np.testing.assert_allclose(first["action"], expected[0], atol=1e-6)
    assert {ask("a", False)["member"] for _ in range(12)} == {first["member"]}
    assert {ask(str(number), False)["member"] for number in range(24)} == {0, 1}
    assert ask("a", False)["action"] != ask("a", False)["action"]


GOOD = ", ".join(["0.5"] * 8)


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "{}", "not JSON", '{"observation": null, "episode": "a"}',
        f'{{"observation": [{GOOD}]}}',
        '{"episode": "a", "observation": [0.5]}', '{"episode": "a", "observation": "0.5"}',
        *(
            f'{{"episode": "a", "observation": [{", ".join([*["0.5"] * 7, entry])}]}}'
            for entry in ("null", "NaN", "Infinity", "1e300", "3e38", '"1"', "true", "[1]")
        ),
        f'{{"episode": ["a"], "observation": [{GOOD}]}}',
        f'{{"episode": "a", "observation": [{GOOD}], "mean": "yes"}}',
    ],
)  # fmt: skip
def test_what_is_no_observation_gets_a_sentence_and_no_action(port, body):
    code, answer = _post(port, body.encode() or b" ")
    assert 400 <= code < 500
    assert set(answer) == {"error"}
    assert _post(port, f'{{"episode": "a", "observation": [{GOOD}]}}'.encode())[0] == 200


def test_a_stalled_client_blocks_nobody(port):
    with socket.create_connection(("127.0.0.1", port)) as stalled:
        stalled.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        assert _post(port, f'{{"episode": "a", "observation": [{GOOD}]}}'.encode())[0] == 200


def test_a_body_without_a_length_or_without_end_is_refused(port):
    for head in (b"", b"Content-Length: -1\r\n", b"Content-Length: x\r\n", b"Content-Length: 99999999\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
            assert client.recv(100).split()[1].startswith(b"4")


def test_one_policy_with_discrete_actions_needs_no_episode(tmp_path):
    process, port = _serving(categorical(0), tmp_path)
    try:
        code, answer = _post(port, f'{{"observation": [{GOOD}], "mean": true}}'.encode())
    finally:
        process.kill()
        process.wait()
    assert code == 200
    assert answer["action"] in range(5)


def test_what_a_policy_remembers_of_an_episode_is_kept_by_its_name(tmp_path):
    policy = made()
    process, port = _serving(policy, tmp_path)
    try:
        answers = {
            name: [
                _post(port, json.dumps({"episode": name, "observation": row.tolist(), "mean": True}).encode())
                for row in OBS
            ]
            for name in ("a", "b")
        }
        refused, _ = _post(port, json.dumps({"observation": OBS[0].tolist()}).encode())
    finally:
        process.kill()
        process.wait()
    for found in answers.values():
        np.testing.assert_allclose([answer["action"] for _, answer in found], episode(policy), atol=1e-5)
    assert refused == 400
