"""Policies as ONNX files, for controllers that run neither Python nor NumPy.

One graph serves drawn and mean actions, with no randomness inside:

    observation  (batch, obs_dim) float32, raw: the normaliser is in the graph
    noise        float32; zeros give the mean action, draws of the distribution that the metadata name give
                 drawn actions: standard normal (batch, action_dim), Gumbel (batch, actions), or standard
                 normal (batch, samples, latent) for a policy that takes the best of several proposals
    member       () int64, for a mixture alone: which member acts. Draw it once per episode, with the
                 probabilities `weights` of the metadata, and keep it to the end of the episode
    action       (batch, action_dim) float32 in the data's units, or (batch,) int64

The metadata hold `slater`, a JSON text: what `contract` says, and the policy's own description.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.disk import write_atomic
from slater.errors import InputError
from slater.policy.base import SavedPolicy
from slater.policy.candidates import CandidatesPolicy
from slater.policy.layers import Layers
from slater.policy.mixture import Mixture
from slater.policy.networks import CategoricalPolicy, GaussianPolicy

__all__ = ["OPSET", "save_onnx"]

#: the version of ONNX' operators that the graph is written in
OPSET = 17
#: version of the file format; runtimes from 2022 on read it
IR_VERSION = 8


def save_onnx(
    policy: SavedPolicy | Mixture, path: str | os.PathLike[str], *, contract: Mapping[str, Any] | None = None
) -> None:
    """Write a policy without memory, or a mixture of such, as one ONNX file; atomic.

    contract: what users of the file should know (names, ranges, limits, verdict), as JSON; it goes into the
    metadata. A policy with memory (`cdt`) is refused: its history is no argument of one call.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ModuleNotFoundError as error:
        raise InputError(
            "writing ONNX needs the package onnx; install it with: pip install 'slater-rl[onnx]'"
        ) from error
    members = policy.members if isinstance(policy, Mixture) else (policy,)
    graph = _Graph()
    built = [_member(graph, f"m{index}", member) for index, member in enumerate(members)]
    if len({(noise, discrete) for _, noise, discrete, _ in built}) != 1:
        raise InputError("the members of this mixture take different kinds of noise; export them one by one.")
    outputs, (noise_shape, discrete, noise_name) = [b[0] for b in built], built[0][1:]
    if isinstance(policy, Mixture):
        stacked = graph.node(
            "Concat", [graph.node("Unsqueeze", [o, graph.ints([0])]) for o in outputs], axis=0
        )
        graph.node("Gather", [stacked, "member"], outputs=["action"], axis=0)
    else:
        graph.node("Identity", outputs, outputs=["action"])
    action_shape: list[str | int] = ["batch"] if discrete else ["batch", _action_dim(members[0])]
    inputs = [
        helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", _obs_dim(members[0])]),
        helper.make_tensor_value_info("noise", TensorProto.FLOAT, ["batch", *noise_shape]),
    ]
    if isinstance(policy, Mixture):
        inputs.append(helper.make_tensor_value_info("member", TensorProto.INT64, []))
    kind = TensorProto.INT64 if discrete else TensorProto.FLOAT
    made = helper.make_graph(
        graph.nodes, "slater-policy", inputs,
        [helper.make_tensor_value_info("action", kind, action_shape)], graph.constants,
    )  # fmt: skip
    model = helper.make_model(
        made, producer_name="slater", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    about: dict[str, Any] = {
        "members": [member.description() for member in members],
        "noise": noise_name,
        "opset": OPSET,
        **dict(contract or {}),
    }
    if isinstance(policy, Mixture):
        about["weights"] = policy.weights.tolist()
    helper.set_model_props(model, {"slater": json.dumps(about)})
    checker.check_model(model)
    write_atomic(Path(path), model.SerializeToString())


class _Graph:
    """Nodes and constants of a graph under construction; every method gives the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def array(self, name: str, value: NDArray[Any]) -> str:
        """A constant."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, value: float) -> str:
        """A float constant."""
        return self.array(f"c{len(self.constants)}", np.array(value, dtype=np.float32))

    def ints(self, values: Sequence[int]) -> str:
        """A vector of whole numbers."""
        return self.array(f"c{len(self.constants)}", np.array(values, dtype=np.int64))

    def node(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str] | None = None, **attributes: Any
    ) -> str:
        """One operation; the name of its first output."""
        from onnx import helper

        names = list(outputs or [f"v{len(self.nodes)}"])
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0]

    def network(self, name: str, x: str, layers: Layers) -> str:
        """A ReLU network on x, shape (rows, in); the last layer without activation."""
        for index, (weight, bias) in enumerate(layers):
            x = self.node("MatMul", [x, self.array(f"{name}.{index}.weight", weight)])
            x = self.node("Add", [x, self.array(f"{name}.{index}.bias", bias)])
            if index < len(layers) - 1:
                x = self.node("Relu", [x])
        return x

    def clip(self, x: str, low: float, high: float) -> str:
        """The value cut to [low, high]."""
        return self.node("Clip", [x, self.number(low), self.number(high)])

    def normalised(self, name: str, obs_mean: NDArray[Any], obs_std: NDArray[Any]) -> str:
        """(observation - mean) / std."""
        centred = self.node("Sub", ["observation", self.array(f"{name}.obs_mean", obs_mean)])
        return self.node("Div", [centred, self.array(f"{name}.obs_std", obs_std)])

    def stretched(self, name: str, x: str, low: NDArray[Any], high: NDArray[Any]) -> str:
        """Actions from [-1, 1] to [low, high]."""
        half = self.node("Mul", [self.node("Add", [x, self.number(1.0)]), self.number(0.5)])
        lows, highs = self.array(f"{name}.low", low), self.array(f"{name}.high", high)
        wide = self.node("Mul", [half, self.array(f"{name}.width", high - low)])
        return self.node("Min", [self.node("Max", [self.node("Add", [lows, wide]), lows]), highs])


#: an output's name, the shape of the noise beyond the batch, whether actions are discrete, the noise's name
_Built = tuple[str, tuple[int, ...], bool, str]


def _member(graph: _Graph, name: str, member: SavedPolicy) -> _Built:
    if isinstance(member, GaussianPolicy):
        return _gaussian(graph, name, member)
    if isinstance(member, CategoricalPolicy):
        obs = graph.normalised(name, member.obs_mean, member.obs_std)
        logits = graph.network(name, obs, tuple(zip(member.weights, member.biases, strict=True)))
        noisy = graph.node("Add", [logits, "noise"])
        drawn = graph.node("ArgMax", [noisy], axis=1, keepdims=0)
        return drawn, (member.weights[-1].shape[1],), True, "Gumbel"
    if isinstance(member, CandidatesPolicy):
        return _candidates(graph, name, member)
    raise InputError(
        f"a policy of kind {member.description()['kind']!r} cannot be written as ONNX: it is more than a "
        "function of one observation. Run it with slater.policy.load, which needs NumPy alone."
    )


def _gaussian(graph: _Graph, name: str, member: GaussianPolicy) -> _Built:
    """tanh(mean + exp(clip(log std)) noise), stretched to the box."""
    obs = graph.normalised(name, member.obs_mean, member.obs_std)
    out = graph.network(name, obs, tuple(zip(member.weights, member.biases, strict=True)))
    size = len(member.low)
    graph.node("Split", [out, graph.ints([size, size])], outputs=[f"{name}.mean", f"{name}.log_std"], axis=1)
    std = graph.node("Exp", [graph.clip(f"{name}.log_std", *member.log_std_range)])
    drawn = graph.node("Add", [f"{name}.mean", graph.node("Mul", [std, "noise"])])
    action = graph.stretched(name, graph.node("Tanh", [drawn]), member.low, member.high)
    return action, (size,), False, "standard normal"


def _candidates(graph: _Graph, name: str, member: CandidatesPolicy) -> _Built:
    """Proposals of the decoder, perturbed; the one of the best score."""
    obs_dim, actions = len(member.obs_mean), len(member.low)
    latent, n = len(member.decoder[0][0]) - obs_dim, member.samples
    obs = graph.normalised(name, member.obs_mean, member.obs_std)
    tiled = graph.node("Tile", [graph.node("Unsqueeze", [obs, graph.ints([1])]), graph.ints([1, n, 1])])
    rows = graph.node("Reshape", [tiled, graph.ints([-1, obs_dim])])
    z = graph.node(
        "Reshape", [graph.clip("noise", -member.latent_cut, member.latent_cut), graph.ints([-1, latent])]
    )
    joined = graph.node("Concat", [rows, z], axis=1)
    v = graph.node("Tanh", [graph.network(f"{name}.decoder", joined, member.decoder)])
    shift = graph.network(
        f"{name}.perturbation", graph.node("Concat", [rows, v], axis=1), member.perturbation
    )
    moved = graph.node("Mul", [graph.node("Tanh", [shift]), graph.number(member.phi)])
    proposed = graph.clip(graph.node("Add", [v, moved]), -1.0, 1.0)
    x, score = graph.node("Concat", [rows, proposed], axis=1), ""
    for u, lean in enumerate(member.leans):
        pair = [
            graph.network(f"{name}.critic_{k}", x, member.critics[k]) for k in (2 * u, 2 * u + 1)
        ]  # fmt: skip
        least = graph.node("Mul", [graph.node("Min", pair), graph.number(lean)])
        most = graph.node("Mul", [graph.node("Max", pair), graph.number(1.0 - lean)])
        value = graph.node("Add", [least, most])
        if u == 0:
            score = value
        else:
            priced = graph.node("Mul", [value, graph.number(float(member.multipliers[u - 1]))])
            score = graph.node("Sub", [score, priced])
    best = graph.node("ArgMax", [graph.node("Reshape", [score, graph.ints([-1, n])])], axis=1, keepdims=1)
    by_state = graph.node("Reshape", [proposed, graph.ints([-1, n, actions])])
    index = graph.node(
        "Tile", [graph.node("Unsqueeze", [best, graph.ints([2])]), graph.ints([1, 1, actions])]
    )
    chosen = graph.node("Squeeze", [graph.node("GatherElements", [by_state, index], axis=1), graph.ints([1])])
    action = graph.stretched(name, chosen, member.low, member.high)
    return action, (n, latent), False, "standard normal"


def _obs_dim(member: Any) -> int:
    return len(member.obs_mean)


def _action_dim(member: Any) -> int:
    return len(member.low) if hasattr(member, "low") else 0
