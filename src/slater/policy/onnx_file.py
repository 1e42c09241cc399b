"""Policies as ONNX files, for controllers that run neither Python nor NumPy.

One graph serves drawn and mean actions, with no randomness inside:

    observation  (batch, obs_dim) float32, raw: the normaliser is in the graph
    noise        float32; zeros give the mean action, draws of the distribution that the metadata name give
                 drawn actions: standard normal (batch, action_dim), Gumbel (batch, actions), or standard
                 normal (batch, samples, latent) for a policy that takes the best of several proposals.
                 A mixture of K Gaussians takes standard normal noise (batch, K + action_dim): the first K
                 columns z draw the component, as Gumbel noise -log(-log(Phi(z))) on its logits, the others
                 the action; zeros give the mean of the likeliest component
    member       () int64, for a mixture alone: which member acts. Draw it once per episode, with the
                 probabilities `weights` of the metadata, and keep it to the end of the episode
    action       (batch, action_dim) float32 in the data's units, or (batch,) int64

A policy that keeps a budget or remembers its episode has that as inputs and outputs
(`slater.policy.onnx_budget`). The metadata hold `slater`, a JSON text: what `contract` says, and the
policy's own description.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slater.disk import write_atomic
from slater.errors import InputError, optional
from slater.policy.base import SavedPolicy
from slater.policy.candidates import CandidatesPolicy
from slater.policy.mixture import Mixture
from slater.policy.networks import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy
from slater.policy.onnx_budget import memory_entry, sequence_graph, switching_graph
from slater.policy.onnx_graph import Built, Graph
from slater.policy.remembering import RememberingPolicy
from slater.policy.sequence import SequencePolicy
from slater.policy.switching import SwitchingPolicy

#: the version of ONNX' operators that the graph is written in
OPSET = 17
#: version of the file format; runtimes from 2022 on read it
IR_VERSION = 8


def save_onnx(
    policy: SavedPolicy | Mixture, path: str | os.PathLike[str], *, contract: Mapping[str, Any] | None = None
) -> None:
    """Write a policy, or a mixture of policies without memory, as one ONNX file; atomic.

    contract: what users of the file should know (names, ranges, limits, verdict), as JSON; it goes into the
    metadata. What a policy remembers (`caps`, `cdt`, any with history) is an input and an output:
    `slater.policy.onnx_budget`.
    """
    optional("onnx", "writing ONNX needs the package onnx", "onnx")
    from onnx import TensorProto, checker, helper

    policy = lone(policy)
    members: tuple[Any, ...] = policy.members if isinstance(policy, Mixture) else (policy,)
    histories = [getattr(member, "history", None) for member in members]
    if any(history != histories[0] for history in histories):
        raise InputError("the members of this mixture remember different things; export them one by one.")
    members = tuple(m.policy if isinstance(m, RememberingPolicy) else m for m in members)
    graph = Graph(max(getattr(member, "components", 0) for member in members))
    entries = len(members[0].obs_mean) if histories[0] is None else histories[0].entries
    if histories[0] is not None:
        graph.observation = graph.joined("observation", "memory")
    built = [_member(graph, f"m{index}", member) for index, member in enumerate(members)]
    if len({(b.noise_shape, b.discrete) for b in built}) != 1:
        raise InputError("the members of this mixture take different kinds of noise; export them one by one.")
    first = built[0]
    if isinstance(policy, Mixture):
        if any(b.state for b in built):
            raise InputError("the members of this mixture keep budgets of their own; export them one by one.")
        stacked = graph.joined(*(graph.at(b.action, 0) for b in built), axis=0)
        graph.node("Gather", stacked, "member", outputs=["action"], axis=0)
    else:
        graph.node("Identity", first.action, outputs=["action"])
    state = first.state
    if histories[0] is not None:
        state = (*state, memory_entry(graph, histories[0]))
    action_shape = ["batch", *([] if first.discrete else [len(members[0].low)])]
    real, whole = TensorProto.FLOAT, TensorProto.INT64
    inputs = [
        helper.make_tensor_value_info("observation", real, ["batch", entries]),
        helper.make_tensor_value_info("noise", real, ["batch", *first.noise_shape]),
    ]
    outputs = [helper.make_tensor_value_info("action", whole if first.discrete else real, action_shape)]
    if isinstance(policy, Mixture):
        inputs.append(helper.make_tensor_value_info("member", whole, []))
    for entry in state:
        kind, shape = (whole, []) if entry.shape is None else (real, ["batch", *entry.shape])
        inputs.append(helper.make_tensor_value_info(entry.name, kind, shape))
        if entry.output is not None:
            graph.node("Identity", entry.output, outputs=[f"{entry.name}_out"])
            grown = [f"{d}_out" if d == "context" else d for d in shape]
            outputs.append(helper.make_tensor_value_info(f"{entry.name}_out", kind, grown))
    made = helper.make_graph(graph.nodes, "slater-policy", inputs, outputs, graph.constants)
    model = helper.make_model(
        made, producer_name="slater", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    about: dict[str, Any] = {
        "members": [member.description() for member in members],
        **({} if histories[0] is None else {"history": histories[0].to_json()}),
        "noise": first.noise,
        "opset": OPSET,
        **dict(contract or {}),
    }
    if state:
        about["start"] = {entry.name: entry.start for entry in state}
    if isinstance(policy, Mixture):
        about["weights"] = policy.weights.tolist()
    helper.set_model_props(model, {"slater": json.dumps(about)})
    checker.check_model(model)
    write_atomic(Path(path), model.SerializeToString())


def lone(policy: SavedPolicy | Mixture) -> SavedPolicy | Mixture:
    """The one member that a mixture ever draws, if it is of a kind that keeps a budget; else the policy."""
    if isinstance(policy, Mixture):
        drawn = [m for m, w in zip(policy.members, policy.weights, strict=True) if w > 0]
        inside = [getattr(m, "policy", m) for m in drawn]
        if len(drawn) == 1 and isinstance(inside[0], SwitchingPolicy | SequencePolicy):
            return drawn[0]
    return policy


def _member(graph: Graph, name: str, member: SavedPolicy) -> Built:
    if isinstance(member, GaussianPolicy):
        return _drawn(graph, name, member, _outputs(graph, name, member))
    if isinstance(member, GaussianMixturePolicy):
        return _gaussian_mixture(graph, name, member)
    if isinstance(member, CategoricalPolicy):
        drawn = graph.best(_outputs(graph, name, member) + "noise")
        return Built(drawn, (member.weights[-1].shape[1],), True, "Gumbel")
    if isinstance(member, CandidatesPolicy):
        return _candidates(graph, name, member)
    if isinstance(member, SwitchingPolicy):
        return switching_graph(graph, name, member)
    if isinstance(member, SequencePolicy):
        return sequence_graph(graph, name, member)
    raise InputError(
        f"a policy of kind {member.description()['kind']!r} cannot be written as ONNX: it is more than a "
        "function of one observation. Run it with slater.policy.load, which needs NumPy alone."
    )


def _outputs(graph: Graph, name: str, member: Any) -> Any:
    """The outputs of a policy's network for the observation."""
    return graph.network(name, graph.normalised(name, member.obs_mean, member.obs_std), member.layers)


#: cumulative chances that a float tells from 0 and from 1
LEAST_CHANCE, MOST_CHANCE = 1e-7, 1.0 - 6e-8


def _gaussian_mixture(graph: Graph, name: str, member: GaussianMixturePolicy) -> Built:
    """The component of the largest logit plus Gumbel noise; then as a Gaussian."""
    count, size = member.components, len(member.low)
    logits, moments = graph.split(_outputs(graph, name, member), (count, 2 * count * size))
    chance = (graph.node("Erf", graph.columns("noise", 0, count) * 0.5**0.5) + 1.0) * 0.5
    rate = graph.node("Log", graph.clip(chance, LEAST_CHANCE, MOST_CHANCE))
    noisy = logits - graph.node("Log", rate * -1.0)
    own = graph.reshaped(moments, -1, count, 2 * size)
    return _drawn(graph, name, member, graph.row(own, graph.best(noisy, keepdims=1), 2 * size))


def _drawn(graph: Graph, name: str, member: GaussianPolicy | GaussianMixturePolicy, moments: Any) -> Built:
    """An action by mean and log standard deviation, (batch, 2 action_dim)."""
    size = len(member.low)
    before = graph.drawn(moments, size, member.log_std_range, graph.last_noise(size))
    action = graph.stretched(name, graph.node("Tanh", before), member.low, member.high)
    return Built(action, (graph.components + size,), False, "standard normal")


def _candidates(graph: Graph, name: str, member: CandidatesPolicy) -> Built:
    """Proposals of the decoder, perturbed; the one of the best score."""
    obs_dim, actions = len(member.obs_mean), len(member.low)
    latent, n = len(member.decoder[0][0]) - obs_dim, member.samples
    obs = graph.normalised(name, member.obs_mean, member.obs_std)
    rows = graph.reshaped(graph.node("Tile", graph.at(obs, 1), [1, n, 1]), -1, obs_dim)
    z = graph.reshaped(graph.clip("noise", -member.latent_cut, member.latent_cut), -1, latent)
    v = graph.node("Tanh", graph.network(f"{name}.decoder", graph.joined(rows, z), member.decoder))
    shift = graph.network(f"{name}.perturbation", graph.joined(rows, v), member.perturbation)
    proposed = graph.clip(v + graph.node("Tanh", shift) * member.phi, -1.0, 1.0)
    x, values = graph.joined(rows, proposed), []
    for u, lean in enumerate(member.leans):
        pair = [graph.network(f"{name}.critic_{k}", x, member.critics[k]) for k in (2 * u, 2 * u + 1)]
        values.append(graph.node("Min", *pair) * lean + graph.node("Max", *pair) * (1.0 - lean))
    score = values[0]
    for value, multiplier in zip(values[1:], member.multipliers.tolist(), strict=True):
        score = score - value * multiplier
    best = graph.best(graph.reshaped(score, -1, n), keepdims=1)
    chosen = graph.row(graph.reshaped(proposed, -1, n, actions), best, actions)
    action = graph.stretched(name, chosen, member.low, member.high)
    return Built(action, (n, latent), False, "standard normal")
