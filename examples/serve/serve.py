"""Serve an exported policy over HTTP: python serve.py policy.onnx 8000

POST {"episode": "a", "observation": [...]} answers {"action": [...], "member": 0}. One member of a mixture
acts for a whole episode: it is drawn when the episode's name is new. "mean": true: the most likely action.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["slater"])
shape = [size if isinstance(size, int) else 1 for size in session.get_inputs()[1].shape]
rng, members = np.random.default_rng(), {}


class Handler(BaseHTTPRequestHandler):  # noqa: D101
    def do_POST(self):  # noqa: D102
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        draw = rng.gumbel if about["noise"] == "Gumbel" else rng.standard_normal
        noise = np.zeros(shape) if asked.get("mean") else draw(size=shape)
        inputs = {"observation": np.float32([asked["observation"]]), "noise": noise.astype(np.float32)}
        if "weights" in about:
            drawn = rng.choice(len(about["weights"]), p=about["weights"])
            inputs["member"] = np.array(members.setdefault(asked["episode"], drawn))
        action = session.run(["action"], inputs)[0][0]
        answer = json.dumps({"action": action.tolist(), "member": int(inputs.get("member", 0))}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)


server = HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print(f"serving on port {server.server_port}", flush=True)
server.serve_forever()
