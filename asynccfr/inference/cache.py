"""A policy cache: an inferer around another."""

from dataclasses import replace
from typing import Literal

from torch import nn

from asynccfr.inference.base import Inferer, InfererContext, Statistics
from asynccfr.inference.heads import Head

PROBATION = 20_000
"""Requests after which `auto` judges, at the next change of weights, whether the cache pays."""

PAYING_HIT_SHARE = 0.35
"""Below this share of hits, what a miss adds costs more than the hits save."""


class CachingInferer(InfererContext):
    """Remembers the answers of `inner` until the network that gave them changes.

    Between two fits a network is a fixed function, so a policy never needs computing twice. The
    key is the network's name and the encoding's bytes: equal encodings have equal legal actions.
    An answer that arrives after its network has changed goes into the map that was dropped with
    the old weights, so a stale policy is never served.

    Args:
        inner: answers what is not remembered.
        mode: `on`; or `auto`, which gives up for good once fewer than `PAYING_HIT_SHARE` of at
            least `PROBATION` requests were hits.
        capacity: the most policies remembered for a network; a full map takes no more.
    """

    def __init__(
        self, inner: Inferer, *, mode: Literal["on", "auto"] = "on", capacity: int = 200_000
    ) -> None:
        self._inner = inner
        self._auto = mode == "auto"
        self._capacity = capacity
        self._policies: dict[str, dict[bytes, list[float]]] = {}
        self._hits = 0
        self._trial_hits = 0
        self._trial_misses = 0
        self.active = True
        """False once `auto` has found that the cache does not pay."""

    async def infer(self, network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        """See `Inferer.infer`. The list is shared between callers: do not change it."""
        policies = self._policies.get(network)
        if policies is None:
            return await self._inner.infer(network, encoding, legal)
        policy = policies.get(encoding)
        if policy is not None:
            self._hits += 1
            self._trial_hits += 1
            return policy
        self._trial_misses += 1
        policy = await self._inner.infer(network, encoding, legal)
        if len(policies) < self._capacity:
            policies[encoding] = policy
        return policy

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """See `Inferer.load`; forgets the policies of `name`."""
        self._inner.load(name, network, head)
        trial = self._trial_hits + self._trial_misses
        if self._auto and trial >= PROBATION:
            self.active = self.active and self._trial_hits >= PAYING_HIT_SHARE * trial
            self._trial_hits = self._trial_misses = 0
        if self.active:
            self._policies[name] = {}
        else:
            self._policies.clear()

    def statistics(self) -> Statistics:
        """See `Inferer.statistics`."""
        inner = self._inner.statistics()
        return replace(inner, requests=inner.requests + self._hits, cache_hits=self._hits)

    def reset_statistics(self) -> None:
        """See `Inferer.reset_statistics`."""
        self._inner.reset_statistics()
        self._hits = 0

    async def aclose(self) -> None:
        """See `Inferer.aclose`."""
        await self._inner.aclose()
