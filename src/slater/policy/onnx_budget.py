"""Policies that keep a budget or remember their episode, as ONNX: an input and an output of every call.

Beside `observation`, `noise` and `action` (`slater.policy.onnx_file`) such a graph has

    time, left    the step, () int64, and what is left of each limit, (batch, I): at the first step 0 and
                  `start.left` of the metadata, later what `time_out` and `left_out` were
    costs         (batch, I) what the last action cost; ignored at the first step
    want, reward  of a sequence policy: (batch, 1) the return still to earn (`want_out`), and what the last
                  action earned
    tokens        of a sequence policy: (batch, n, width) its context (`tokens_out`), n = 0 at the first step
    memory        of a policy with history: (batch, size) running features (`memory_out`), 0 at the first step

A limit is changed in the middle of an episode by adding the difference to `left`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slater.history import History
from slater.policy.onnx_graph import Built, Graph, StateEntry
from slater.policy.sequence import SequencePolicy
from slater.policy.switching import SwitchingPolicy


def memory_entry(graph: Graph, history: History) -> StateEntry:
    """The memory after the step, by `History.after`; all members of a mixture share it."""
    taken: Any = "action"
    if history.actions is not None:
        taken = graph.node("Gather", np.eye(history.actions), "action", axis=0)
    seen = (graph.joined("observation", taken) - np.array(history.centre)) / np.array(history.spread)
    decay, gain = map(graph.value, history.weights)
    shown = graph.joined(graph.like(seen, 1.0), seen, seen, seen)
    after = decay * graph.value("memory") + gain * shown
    return StateEntry("memory", (history.size,), [0.0] * history.size, after)


def _counted(graph: Graph, left: str, spent: str, gamma: float | None = None) -> Any:
    """What is left now: `left` less `spent`, over gamma for a discounted budget; itself at the first step."""
    rest = graph.value(left) - spent
    rest = rest if gamma is None else rest / gamma
    return graph.node("Where", graph.value("time") > 0, rest, left)


def _kept(graph: Graph, left: Any, start: list[float]) -> tuple[StateEntry, ...]:
    """The time, what is left, and what the last action cost."""
    return (
        StateEntry("time", None, 0, graph.value("time") + 1),
        StateEntry("left", (len(start),), start, left),
        StateEntry("costs", (len(start),), [0.0] * len(start), None),
    )


def _noise(policy: SwitchingPolicy | SequencePolicy) -> str:
    return "Gumbel" if policy.low is None else "standard normal"


def switching_graph(graph: Graph, name: str, policy: SwitchingPolicy) -> Built:
    """The rule of `SwitchingPolicy.choose`."""
    budget, (heads, size) = policy.budget, policy.noise_shape()
    gamma = budget.gamma if budget.ends == "never" and budget.gamma > 0 else None
    left = _counted(graph, "left", "costs", gamma)
    time = graph.node("Cast", "time", to=1)
    room = graph.node("Max", left, 0.0)
    if budget.ends == "horizon":
        room = room / (budget.horizon * (1.0 - budget.gamma))
    elif budget.ends == "timeouts":
        steps = graph.node("Max", float(budget.horizon) - time, 1.0)
        room = room * ((1.0 - budget.gamma**steps) / (steps * (1.0 - budget.gamma)))
    room = graph.at(room * policy.cost_scale, 1)
    obs = graph.normalised(name, policy.obs_mean, policy.obs_std)
    if budget.ends == "horizon":
        obs = graph.joined(obs, graph.like(obs, time * (2.0 / budget.horizon) - 1.0))
    out = graph.network(f"{name}.heads", obs, policy.network)
    out = graph.reshaped(out, -1, heads, size * (1 if policy.low is None else 2))
    if policy.low is None:
        proposed = graph.best(out + "noise", axis=2)
        flat = graph.reshaped(proposed, -1, 1)
    else:
        proposed = graph.node("Tanh", graph.drawn(out, size, policy.log_std_range, "noise", axis=2))
        flat = graph.reshaped(proposed, -1, size)
    rows = graph.node("Tile", graph.at(obs, 1), [1, heads, 1])
    rows = graph.reshaped(rows, -1, policy.network[0][0].shape[0])
    x = rows if policy.low is None else graph.joined(rows, flat)
    values = []
    for utility, copies in enumerate(policy.critics):
        each = [graph.network(f"{name}.critic_{utility}_{k}", x, net) for k, net in enumerate(copies)]
        if policy.low is None:
            each = [graph.node("GatherElements", value, flat, axis=1) for value in each]
        values.append(graph.reshaped(graph.node("Max" if utility else "Min", *each), -1, heads))
    to_go = graph.joined(*(graph.at(value, 2) for value in values[1:]), axis=2)
    if policy.clip:
        to_go = graph.node("Max", to_go, 0.0)
    worst = graph.node("ReduceMax", to_go - room, axes=[2], keepdims=0)
    fits = worst < 0.0
    any_fits = graph.node("ReduceMax", graph.node("Cast", fits, to=1), axes=[1], keepdims=1) > 0.5
    score = graph.node("Where", fits, values[0], graph.node("Where", any_fits, -3e38, worst * -1.0))
    best = graph.best(score, keepdims=1)
    if policy.low is None or policy.high is None:
        action = graph.reshaped(graph.node("GatherElements", proposed, best, axis=1), -1)
    else:
        action = graph.stretched(name, graph.row(proposed, best, size), policy.low, policy.high)
    state = _kept(graph, left, budget.start(policy.limits).tolist())
    return Built(action, (heads, size), policy.low is None, _noise(policy), state)


def sequence_graph(graph: Graph, name: str, policy: SequencePolicy) -> Built:
    """One step of a decision transformer, computed anew from the embedded tokens of its context."""
    # the norms are written where they are used
    arrays = {k: graph.value(v, f"{name}.{k}") for k, v in policy.arrays.items() if "norm" not in k}
    width, targets = policy.arrays["embed.norm_in"].shape[1], policy.targets
    left, want = _counted(graph, "left", "costs"), _counted(graph, "want", "reward")
    togo = graph.joined(want, left)
    if targets.least is not None and targets.most is not None:
        togo = graph.node("Min", graph.node("Max", togo, targets.least), targets.most)
    to_earn, to_spend = graph.split((togo - targets.centre) / targets.spread, (1, len(policy.limits)))
    last_time = len(policy.arrays["embed.time"]) - 1
    when = graph.node("Gather", arrays["embed.time"], graph.node("Min", "time", last_time), axis=0)

    def token(kind: int, value: Any) -> Any:
        """An embedded token, (batch, 1, width)."""
        part = ("return", "cost", "obs", "action")[kind]
        bias = graph.node("Gather", arrays["embed.token_bias"], kind, axis=0)
        x = graph.value(value) @ arrays[f"embed.{part}_weight"] + (bias + when)
        return graph.at(_normed(graph, x, policy, "embed.norm_in"), 1)

    obs = graph.normalised(name, policy.obs_mean, policy.obs_std)
    # a context that is full drops its oldest steps
    full = graph.length("tokens") >= [4 * policy.context]
    kept = graph.node("Slice", "tokens", graph.node("Where", full, [4 * policy.jump], [0]), [2**31], [1])
    context = graph.joined(kept, token(0, to_earn), token(1, to_spend), token(2, obs))
    outputs = _transformed(graph, policy, arrays, context, width)
    size = len(policy.arrays["embed.action_weight"])
    if policy.low is None or policy.high is None:
        action = graph.best(outputs + "noise")
        choice = graph.node("Gather", np.eye(size), action, axis=0)
    else:
        choice = graph.clip(graph.drawn(outputs, size, policy.log_std_range, "noise"), -1.0, 1.0)
        action = graph.stretched(name, choice, policy.low, policy.high)
    state = (
        *_kept(graph, left, policy.limits.tolist()),
        StateEntry("want", (1,), [policy.target_return], want),
        StateEntry("reward", (1,), [0.0], None),
        StateEntry("tokens", ("context", width), [], graph.joined(context, token(3, choice))),
    )
    return Built(action, (size,), policy.low is None, _noise(policy), state)


def _normed(graph: Graph, x: Any, policy: SequencePolicy, name: str) -> Any:
    return graph.node("LayerNormalization", x, *policy.arrays[name], axis=-1, epsilon=1e-5)


def _transformed(graph: Graph, policy: SequencePolicy, arrays: Any, x: Any, width: int) -> Any:
    """Action outputs at the last token, (batch, outputs)."""
    size, longest = width // policy.heads, 4 * policy.context
    length = graph.length(x)
    future = np.where(np.tri(longest) > 0, 0.0, -1e9)
    mask = graph.node("Slice", future, [0, 0], graph.joined(length, length, axis=0), [0, 1])
    block = 0
    while f"blocks.{block}.norm_1" in policy.arrays:
        prefix = f"blocks.{block}."
        part = {k.removeprefix(prefix): value for k, value in arrays.items() if k.startswith(prefix)}
        qkv = _normed(graph, x, policy, f"{prefix}norm_1") @ part["qkv_weight"] + part["qkv_bias"]
        split = graph.reshaped(qkv, 0, 0, 3, policy.heads, size)
        split = graph.node("Transpose", split, perm=[2, 0, 3, 1, 4])
        q, k, v = (graph.node("Gather", split, n, axis=0) for n in range(3))
        scores = q @ graph.node("Transpose", k, perm=[0, 1, 3, 2]) / float(np.sqrt(size)) + mask
        mixed = graph.node("Transpose", graph.node("Softmax", scores, axis=-1) @ v, perm=[0, 2, 1, 3])
        x = x + (graph.reshaped(mixed, 0, 0, width) @ part["out_weight"] + part["out_bias"])
        inner = _normed(graph, x, policy, f"{prefix}norm_2") @ part["up_weight"] + part["up_bias"]
        x = x + (_gelu(graph, inner) @ part["down_weight"] + part["down_bias"])
        block += 1
    last = _normed(graph, graph.node("Gather", x, -1, axis=1), policy, "embed.norm_out")
    return last @ arrays["action_weight"] + arrays["action_bias"]


def _gelu(graph: Graph, x: Any) -> Any:
    inner = (x + x * x * x * 0.044715) * float(np.sqrt(2.0 / np.pi))
    return x * 0.5 * (graph.node("Tanh", inner) + 1.0)
