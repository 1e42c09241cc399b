"""Serve an exported policy over HTTP: python serve.py policy.onnx 8000

POST {"episode": "a", "observation": [...]} answers {"action": [...], "member": 0}. One member of a mixture
acts for a whole episode: it is drawn when the episode's name is new. What a policy remembers of its episode
is kept here, by the same name. "mean": true: the most likely action.
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
lock, rng, episodes = threading.Lock(), np.random.default_rng(), OrderedDict()
start = {name: np.array([value], np.float32) for name, value in about.get("start", {}).items()}
if set(start) - {"memory"}:
    sys.exit("this policy keeps a budget: it has to be told what its actions cost, which this server is not.")


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
        kept = episode_of(asked.get("episode")) if "weights" in about or start else {}
        action, *after = session.run(["action", *(f"{name}_out" for name in start)], inputs | kept)
        kept |= dict(zip(start, after, strict=True))
    action = action[0]
    if not np.isfinite(action).all():
        raise ValueError("the policy has no action for this observation.")
    return {"action": action.tolist(), "member": int(kept.get("member", 0))}


def episode_of(episode):
    """The member that acts in an episode, and what is remembered; the oldest episodes are forgotten."""
    if not isinstance(episode, str):
        raise ValueError("episode must be a text: one member, or one memory, acts for a whole episode.")
    if episode not in episodes:
        episodes[episode] = dict(start)
        if "weights" in about:
            episodes[episode]["member"] = np.array(rng.choice(len(about["weights"]), p=about["weights"]))
        if len(episodes) > EPISODES:
            episodes.popitem(last=False)
    return episodes[episode]


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
