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
    taken = "action"
    if history.actions is not None:
        taken = graph.node("Gather", [graph.constant(np.eye(history.actions)), "action"], axis=0)
    seen = graph.node("Concat", ["observation", taken], axis=1)
    seen = graph.node("Sub", [seen, graph.constant(history.centre)])
    seen = graph.node("Div", [seen, graph.constant(history.spread)])
    column = graph.columns(seen, 0, 1)
    one = graph.node("Add", [graph.node("Mul", [column, graph.number(0.0)]), graph.number(1.0)])
    decay, gain = map(graph.constant, history.weights)
    more = graph.node("Mul", [gain, graph.node("Concat", [one, seen, seen, seen], axis=1)])
    after = graph.node("Add", [graph.node("Mul", [decay, "memory"]), more])
    return StateEntry("memory", (history.size,), [0.0] * history.size, after)


def _counted(graph: Graph, left: str, spent: str, gamma: float | None = None) -> str:
    """What is left now: `left` less `spent`, over gamma for a discounted budget; itself at the first step."""
    rest = graph.node("Sub", [left, spent])
    if gamma is not None:
        rest = graph.node("Div", [rest, graph.number(gamma)])
    started = graph.node("Greater", ["time", graph.ints(0)])
    return graph.node("Where", [started, rest, left])


def _next_time(graph: Graph) -> str:
    return graph.node("Add", ["time", graph.ints(1)])


def switching_graph(graph: Graph, name: str, policy: SwitchingPolicy) -> Built:
    """The rule of `SwitchingPolicy.choose`."""
    budget, heads, costs = policy.budget, policy.heads, len(policy.limits)
    gamma = budget.gamma if budget.ends == "never" and budget.gamma > 0 else None
    left = _counted(graph, "left", "costs", gamma)
    time = graph.node("Cast", ["time"], to=1)
    room = graph.node("Max", [left, graph.number(0.0)])
    if budget.ends == "horizon":
        room = graph.node("Div", [room, graph.number(budget.horizon * (1.0 - budget.gamma))])
    elif budget.ends == "timeouts":
        steps = graph.node("Sub", [graph.number(budget.horizon), time])
        steps = graph.node("Max", [steps, graph.number(1.0)])
        power = graph.node("Pow", [graph.number(budget.gamma), steps])
        lived = graph.node("Sub", [graph.number(1.0), power])
        rate = graph.node("Div", [lived, graph.node("Mul", [steps, graph.number(1.0 - budget.gamma)])])
        room = graph.node("Mul", [room, rate])
    room = graph.at(graph.node("Mul", [room, graph.array(f"{name}.cost_scale", policy.cost_scale)]), 1)
    obs = graph.normalised(name, policy.obs_mean, policy.obs_std)
    if budget.ends == "horizon":
        entry = graph.node("Sub", [graph.node("Mul", [time, graph.number(2.0 / budget.horizon)]),
                                   graph.number(1.0)])  # fmt: skip
        column = graph.node("Mul", [graph.columns(obs, 0, 1), graph.number(0.0)])
        obs = graph.node("Concat", [obs, graph.node("Add", [column, entry])], axis=1)
    proposed, flat = _proposed(graph, name, policy, obs)
    rows = graph.node("Tile", [graph.at(obs, 1), graph.ints([1, heads, 1])])
    rows = graph.reshaped(rows, -1, policy.network[0][0].shape[0])
    values = []
    for utility, copies in enumerate(policy.critics):
        each = []
        for copy, layers in enumerate(copies):
            x = rows if policy.low is None else graph.node("Concat", [rows, flat], axis=1)
            value = graph.network(f"{name}.critic_{utility}_{copy}", x, layers)
            if policy.low is None:
                value = graph.node("GatherElements", [value, flat], axis=1)
            each.append(value)
        values.append(graph.reshaped(graph.node("Min" if utility == 0 else "Max", each), -1, heads))
    to_go = graph.node("Concat", [graph.at(value, 2) for value in values[1:]], axis=2)
    if policy.clip:
        to_go = graph.node("Max", [to_go, graph.number(0.0)])
    worst = graph.node("ReduceMax", [graph.node("Sub", [to_go, room])], axes=[2], keepdims=0)
    fits = graph.node("Less", [worst, graph.number(0.0)])
    any_fits = graph.node("Greater", [
        graph.node("ReduceMax", [graph.node("Cast", [fits], to=1)], axes=[1], keepdims=1), graph.number(0.5)
    ])  # fmt: skip
    else_ = graph.node("Where", [any_fits, graph.number(-3e38), graph.node("Neg", [worst])])
    best = graph.node("ArgMax", [graph.node("Where", [fits, values[0], else_])], axis=1, keepdims=1)
    size = policy.noise_shape()[1]
    if policy.low is None or policy.high is None:
        action = graph.reshaped(graph.node("GatherElements", [proposed, best], axis=1), -1)
    else:
        action = graph.stretched(name, graph.row(proposed, best, size), policy.low, policy.high)
    state = (
        StateEntry("time", None, 0, _next_time(graph)),
        StateEntry("left", (costs,), budget.start(policy.limits).tolist(), left),
        StateEntry("costs", (costs,), [0.0] * costs, None),
    )
    noise = "Gumbel" if policy.low is None else "standard normal"
    return Built(action, policy.noise_shape(), policy.low is None, noise, state)


def _proposed(graph: Graph, name: str, policy: SwitchingPolicy, obs: str) -> tuple[str, str]:
    """One action per head, (batch, heads, action_dim) or (batch, heads), and the same with a row per head."""
    heads, size = policy.noise_shape()
    out = graph.reshaped(graph.network(f"{name}.heads", obs, policy.network), -1, heads,
                         size * (1 if policy.low is None else 2))  # fmt: skip
    if policy.low is None:
        taken = graph.node("ArgMax", [graph.node("Add", [out, "noise"])], axis=2, keepdims=0)
        return taken, graph.reshaped(taken, -1, 1)
    drawn = graph.drawn(out, size, policy.log_std_range, "noise", axis=2)
    taken = graph.node("Tanh", [drawn])
    return taken, graph.reshaped(taken, -1, size)


def sequence_graph(graph: Graph, name: str, policy: SequencePolicy) -> Built:
    """One step of a decision transformer, computed anew from the embedded tokens of its context."""
    # the norms are written where they are used
    named = {key: value for key, value in policy.arrays.items() if "norm" not in key}
    arrays = {key: graph.array(f"{name}.{key}", value) for key, value in named.items()}
    width = policy.arrays["embed.norm_in"].shape[1]
    costs = len(policy.limits)
    left, want = _counted(graph, "left", "costs"), _counted(graph, "want", "reward")
    togo = graph.node("Concat", [want, left], axis=1)
    if policy.targets.least is not None and policy.targets.most is not None:
        least, most = (graph.constant(bound) for bound in (policy.targets.least, policy.targets.most))
        togo = graph.node("Min", [graph.node("Max", [togo, least]), most])
    centred = graph.node("Sub", [togo, graph.constant(policy.targets.centre)])
    scaled = graph.node("Div", [centred, graph.constant(policy.targets.spread)])
    to_earn, to_spend = graph.split(scaled, (1, costs))
    last_time = len(policy.arrays["embed.time"]) - 1
    when = graph.node("Gather", [arrays["embed.time"],
                                 graph.node("Min", ["time", graph.ints(last_time)])], axis=0)  # fmt: skip

    def token(kind: int, value: str) -> str:
        """An embedded token, (batch, 1, width)."""
        part = ("return", "cost", "obs", "action")[kind]
        bias = graph.node("Gather", [arrays["embed.token_bias"], graph.ints(kind)], axis=0)
        x = graph.affine(value, arrays[f"embed.{part}_weight"], graph.node("Add", [bias, when]))
        return graph.at(_normed(graph, x, policy, "embed.norm_in"), 1)

    obs = graph.normalised(name, policy.obs_mean, policy.obs_std)
    # a context that is full drops its oldest steps
    full = graph.node("GreaterOrEqual", [graph.length("tokens"), graph.ints([4 * policy.context])])
    drop = graph.node("Where", [full, graph.ints([4 * policy.jump]), graph.ints([0])])
    kept = graph.node("Slice", ["tokens", drop, graph.ints([2**31]), graph.ints([1])])
    parts = [token(0, to_earn), token(1, to_spend), token(2, obs)]
    context = graph.node("Concat", [kept, *parts], axis=1)
    outputs = _transformed(graph, policy, arrays, context, width)
    size = len(policy.arrays["embed.action_weight"])
    if policy.low is None or policy.high is None:
        action = graph.node("ArgMax", [graph.node("Add", [outputs, "noise"])], axis=1, keepdims=0)
        choice = graph.node("Gather", [graph.constant(np.eye(size)), action], axis=0)
    else:
        drawn = graph.drawn(outputs, size, policy.log_std_range, "noise", axis=1)
        choice = graph.clip(drawn, -1.0, 1.0)
        action = graph.stretched(name, choice, policy.low, policy.high)
    grown = graph.node("Concat", [context, token(3, choice)], axis=1)
    state = (
        StateEntry("time", None, 0, _next_time(graph)),
        StateEntry("left", (costs,), policy.limits.tolist(), left),
        StateEntry("costs", (costs,), [0.0] * costs, None),
        StateEntry("want", (1,), [policy.target_return], want),
        StateEntry("reward", (1,), [0.0], None),
        StateEntry("tokens", ("context", width), [], grown),
    )
    noise = "Gumbel" if policy.low is None else "standard normal"
    return Built(action, (size,), policy.low is None, noise, state)


def _normed(graph: Graph, x: str, policy: SequencePolicy, name: str) -> str:
    scale, shift = policy.arrays[name]
    inputs = [x, graph.constant(scale), graph.constant(shift)]
    return graph.node("LayerNormalization", inputs, axis=-1, epsilon=1e-5)


def _transformed(graph: Graph, policy: SequencePolicy, arrays: Any, x: str, width: int) -> str:
    """Action outputs at the last token, (batch, outputs)."""
    size, longest = width // policy.heads, 4 * policy.context
    length = graph.length(x)
    future = np.where(np.tri(longest) > 0, 0.0, -1e9)
    ends = graph.node("Concat", [length, length], axis=0)
    mask = graph.node("Slice", [graph.constant(future), graph.ints([0, 0]), ends, graph.ints([0, 1])])
    block = 0
    while f"blocks.{block}.norm_1" in policy.arrays:
        part = {key: arrays[f"blocks.{block}.{key}"] for key in
                ("qkv_weight", "qkv_bias", "out_weight", "out_bias", "up_weight", "up_bias", "down_weight",
                 "down_bias")}  # fmt: skip
        inner = _normed(graph, x, policy, f"blocks.{block}.norm_1")
        qkv = graph.affine(inner, part["qkv_weight"], part["qkv_bias"])
        split = graph.node("Transpose", [graph.reshaped(qkv, 0, 0, 3, policy.heads, size)],
                           perm=[2, 0, 3, 1, 4])  # fmt: skip
        q, k, v = (graph.node("Gather", [split, graph.ints(n)], axis=0) for n in range(3))
        scores = graph.node("MatMul", [q, graph.node("Transpose", [k], perm=[0, 1, 3, 2])])
        scores = graph.node("Add", [graph.node("Div", [scores, graph.number(np.sqrt(size))]), mask])
        mixed = graph.node("MatMul", [graph.node("Softmax", [scores], axis=-1), v])
        mixed = graph.reshaped(graph.node("Transpose", [mixed], perm=[0, 2, 1, 3]), 0, 0, width)
        x = graph.node("Add", [x, graph.affine(mixed, part["out_weight"], part["out_bias"])])
        inner = _normed(graph, x, policy, f"blocks.{block}.norm_2")
        inner = _gelu(graph, graph.affine(inner, part["up_weight"], part["up_bias"]))
        x = graph.node("Add", [x, graph.affine(inner, part["down_weight"], part["down_bias"])])
        block += 1
    last = graph.node("Gather", [x, graph.ints(-1)], axis=1)
    return graph.affine(_normed(graph, last, policy, "embed.norm_out"), arrays["action_weight"],
                        arrays["action_bias"])  # fmt: skip


def _gelu(graph: Graph, x: str) -> str:
    cube = graph.node("Mul", [graph.node("Mul", [x, x]), x])
    inner = graph.node("Add", [x, graph.node("Mul", [cube, graph.number(0.044715)])])
    inner = graph.node("Mul", [inner, graph.number(np.sqrt(2.0 / np.pi))])
    gate = graph.node("Add", [graph.node("Tanh", [inner]), graph.number(1.0)])
    return graph.node("Mul", [graph.node("Mul", [x, graph.number(0.5)]), gate])
