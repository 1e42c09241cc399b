"""Serve an exported policy over HTTP: python serve.py policy.onnx 8000

POST {"episode": "a", "observation": [...]} answers {"action": [...], "member": 0}. One member of a mixture
acts for a whole episode: it is drawn when the episode's name is new. "mean": true: the most likely action.
What is no observation of finite numbers gets 400 and {"error": "..."}, never an action.
"""

import json
import sys
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime

#: seconds that a client may take; bytes of a request; size of an entry; episodes that are remembered
TIMEOUT, MOST_BYTES, LARGEST, EPISODES = 10, 2**20, 1e18, 100_000

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["slater"])
entries = session.get_inputs()[0].shape[1]
shape = [size if isinstance(size, int) else 1 for size in session.get_inputs()[1].shape]
# requests are answered side by side; the generator and the episodes are shared
lock, rng, members = threading.Lock(), np.random.default_rng(), OrderedDict()


def is_number(value):
    """Whether a value of JSON is a number that a policy can take; null, true and NaN are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def action_for(asked):
    """The answer to a request; ValueError with a sentence if it is none."""
    if not isinstance(asked, dict):
        raise ValueError("send a JSON object.")
    seen, mean = asked.get("observation"), asked.get("mean", False)
    if not (isinstance(seen, list) and len(seen) == entries and all(map(is_number, seen))):
        raise ValueError(
            f"observation must be a list of {entries} finite numbers, up to {LARGEST:g} in size."
        )
    if not isinstance(mean, bool):
        raise ValueError("mean must be true or false.")
    inputs = {"observation": np.array([seen], np.float32)}
    with lock:
        draw = rng.gumbel if about["noise"] == "Gumbel" else rng.standard_normal
        inputs["noise"] = (np.zeros(shape) if mean else draw(size=shape)).astype(np.float32)
        if "weights" in about:
            inputs["member"] = np.array(member_of(asked.get("episode")))
    action = session.run(["action"], inputs)[0][0]
    if not np.isfinite(action).all():
        raise ValueError("the policy has no action for this observation.")
    return {"action": action.tolist(), "member": int(inputs.get("member", 0))}


def member_of(episode):
    """The member that acts in an episode; the oldest episodes are forgotten."""
    if not isinstance(episode, str):
        raise ValueError("episode must be a text: one member of the mixture acts for a whole episode.")
    if episode not in members:
        members[episode] = rng.choice(len(about["weights"]), p=about["weights"])
        if len(members) > EPISODES:
            members.popitem(last=False)
    return members[episode]


class Handler(BaseHTTPRequestHandler):  # noqa: D101
    timeout = TIMEOUT  # of the socket: a client that stalls is let go

    def do_POST(self):  # noqa: D102
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= MOST_BYTES):
            return self.answer(400, {"error": f"say the length of the request, at most {MOST_BYTES} bytes."})
        try:
            return self.answer(200, action_for(json.loads(self.rfile.read(int(length)))))
        except (ValueError, RecursionError) as error:  # no JSON is a ValueError too
            return self.answer(400, {"error": str(error)})

    def answer(self, code, record):
        """Send JSON."""
        body = json.dumps(record).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print(f"serving on port {server.server_port}", flush=True)
server.serve_forever()
