"""A small CMDP whose answers are known exactly, and data from it: the ruler for the neural world."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slater import tabular as tab
from slater.data import Dataset, Metadata
from slater.policy import CategoricalPolicy, Mixture, Policy, SavedPolicy

GAMMA = 0.8


@dataclass(frozen=True)
class ExactCMDP:
    """P (S, A, S); U (1+I, S, A), reward first; start state 0; limits tau (I,) on discounted costs."""

    P: np.ndarray
    U: np.ndarray
    tau: np.ndarray

    @cached_property
    def model(self) -> tab.CMDP:
        """The same problem in `slater.tabular`, which solves and evaluates it."""
        return tab.CMDP(self.P, self.U[0], self.U[1:], self.tau, GAMMA)

    def J(self, pi: np.ndarray) -> np.ndarray:
        reward, costs = self.model.returns(pi / pi.sum(axis=1, keepdims=True))
        return np.append(reward, costs)

    def optimum(self) -> tuple[np.ndarray, np.ndarray]:
        """pi* (S, A) and its J (1+I,)."""
        best = self.model.solve()
        return best.policy, np.append(best.J_R, best.J_C)

    def J_simulated(self, policy: Policy, episodes: int = 300, length: int = 25) -> np.ndarray:
        """Mean discounted sums (1+I,) over episodes of `length` steps, for a policy with a memory."""
        rng, eye, total = np.random.default_rng(0), np.eye(len(self.P), dtype=np.float32), 0.0
        for _ in range(episodes):
            actor, state = policy.begin(rng=rng), 0
            for t in range(length):
                action = int(actor.act(eye[state]))
                utilities = self.U[:, state, action]
                total = total + GAMMA**t * utilities
                actor.observe(float(utilities[0]), utilities[1:])
                state = int((self.P[state, action].cumsum() > rng.random()).argmax())
        return total / episodes  # type: ignore[return-value]

    def dataset(self, pi: np.ndarray, n: int, seed: int, length: int = 25) -> Dataset:
        """n rows of episodes of `length` steps under pi, observations one-hot."""
        rng = np.random.default_rng(seed)
        S, A = pi.shape
        episodes = n // length
        state = np.zeros(episodes, dtype=int)
        states, actions, following = [], [], []
        for _ in range(length):
            action = (pi[state].cumsum(1) > rng.random((episodes, 1))).argmax(1)
            after = (self.P[state, action].cumsum(1) > rng.random((episodes, 1))).argmax(1)
            states.append(state)
            actions.append(action)
            following.append(after)
            state = after
        s, a, t = (np.stack(x, axis=1).ravel() for x in (states, actions, following))
        ends = np.zeros((episodes, length), dtype=bool)
        ends[:, -1] = True
        one_hot = np.eye(S, dtype=np.float32)
        return Dataset.from_arrays(
            observations=one_hot[s], actions=a, rewards=self.U[0, s, a], costs=self.U[1:, s, a].T,
            terminals=np.zeros_like(ends.ravel()), timeouts=ends.ravel(), next_observations=one_hot[t],
            cost_names=[f"c{i}" for i in range(len(self.tau))],
            metadata=Metadata(horizon=length, num_actions=A),
        )  # fmt: skip

    def J_of(self, policy: SavedPolicy | Mixture) -> np.ndarray:
        """J (1+I,) of a policy on one-hot observations; of a mixture, the weighted mean.

        Exact, but by simulation for a policy with a memory, whose action is not a function of the state.
        """
        members, weights = (
            (policy.members, policy.weights) if isinstance(policy, Mixture) else ((policy,), [1.0])
        )
        if not all(isinstance(m, CategoricalPolicy) for m in members):
            return self.J_simulated(policy)
        eye = np.eye(len(self.P), dtype=np.float32)
        return sum(
            w * self.J(m.probabilities(eye).astype(float)) for w, m in zip(weights, members, strict=True)
        )  # type: ignore[return-value]


def random_cmdp(seed: int, costs: int = 1, states: int = 10, actions: int = 5, tau: float = 0.5) -> ExactCMDP:
    """The paper's tabular protocol: Dirichlet transitions on all states, Beta(.2,.2) costs, a free action.

    Redrawn until every limit binds at the optimum.
    """
    rng = np.random.default_rng(seed)
    while True:
        P = rng.dirichlet(np.ones(states), size=(states, actions))
        U = np.concatenate([rng.random((1, states, actions)), rng.beta(0.2, 0.2, (costs, states, actions))])
        free = rng.integers(actions, size=states)
        U[1:, np.arange(states), free] = 0.0
        cmdp = ExactCMDP(P, U, np.full(costs, tau))
        _, J = cmdp.optimum()
        if np.all(J[1:] > tau * (1 - 1e-6)):
            return cmdp


def behaviour(cmdp: ExactCMDP) -> np.ndarray:
    """Half the optimal policy, half uniform, per state."""
    return tab.half_optimal_behaviour(cmdp.model)
