"""Stand-ins for a network: a scripted inferer for tests, a uniform one for the loop's own bound."""

import asyncio
from collections.abc import Callable, Sequence

from torch import nn

from asynccfr.errors import InferenceClosedError
from asynccfr.inference.base import InfererContext, Statistics
from asynccfr.inference.heads import Head

Script = Callable[[str, bytes, tuple[int, ...]], Sequence[float]]
"""(network, encoding, legal) -> A probabilities."""


class ScriptedInferer(InfererContext):
    """Answers from a function, and remembers what it was asked.

    Args:
        script: computes each policy; what it raises, the waiter gets.
        suspend: hand control to the loop before answering, as a batch would.
    """

    def __init__(self, script: Script, *, suspend: bool = False) -> None:
        self._script = script
        self._suspend = suspend
        self._closed = False
        self.requests: list[tuple[str, bytes, tuple[int, ...]]] = []
        """Every request so far, oldest first."""
        self.loaded: list[tuple[str, nn.Module]] = []
        """Every network loaded so far, oldest first."""

    async def infer(self, network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        """See `Inferer.infer`."""
        if self._closed:
            raise InferenceClosedError("this inferer is closed; make a new one")
        self.requests.append((network, encoding, legal))
        if self._suspend:
            await asyncio.sleep(0)
        return list(self._script(network, encoding, legal))

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """See `Inferer.load`; the script goes on answering."""
        self.loaded.append((name, network))

    def statistics(self) -> Statistics:
        """See `Inferer.statistics`."""
        return Statistics(requests=len(self.requests))

    def reset_statistics(self) -> None:
        """See `Inferer.reset_statistics`; forgets the requests."""
        self.requests.clear()

    async def aclose(self) -> None:
        """See `Inferer.aclose`."""
        self._closed = True


class UniformInferer(InfererContext):
    """Answers uniformly over the legal actions, with a future and a loop pass but no network.

    What traversal reaches with it is the bound that the event loop sets by itself.
    """

    def __init__(self, num_actions: int) -> None:
        self._num_actions = num_actions
        self._policies: dict[tuple[int, ...], list[float]] = {}
        self._waiting: list[tuple[asyncio.Future[list[float]], list[float]]] = []
        self._requests = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def infer(
        self, network: str, encoding: bytes, legal: tuple[int, ...]
    ) -> asyncio.Future[list[float]]:
        """See `Inferer.infer`."""
        if self._closed:
            raise InferenceClosedError("this inferer is closed; make a new one")
        policy = self._policies.get(legal)
        if policy is None:
            policy = [0.0] * self._num_actions
            for action in legal:
                policy[action] = 1.0 / len(legal)
            self._policies[legal] = policy
        future: asyncio.Future[list[float]] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._answer)
        self._waiting.append((future, policy))
        self._requests += 1
        return future

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future, policy in waiting:
            if not future.done():
                future.set_result(policy)

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """See `Inferer.load`; changes nothing."""

    def statistics(self) -> Statistics:
        """See `Inferer.statistics`."""
        return Statistics(requests=self._requests)

    def reset_statistics(self) -> None:
        """See `Inferer.reset_statistics`."""
        self._requests = 0

    async def aclose(self) -> None:
        """See `Inferer.aclose`; what is pending is still answered, at the loop's next pass."""
        self._closed = True
