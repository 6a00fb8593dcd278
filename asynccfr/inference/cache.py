"""A policy cache: an inferer around another."""

import asyncio
from dataclasses import replace
from typing import Literal

from torch import nn

from asynccfr.inference.base import Inferer, InfererContext, Statistics, retold
from asynccfr.inference.heads import Head

PROBATION = 20_000
"""Requests after which `auto` judges, at the next change of weights, whether the cache pays."""

PAYING_HIT_SHARE = 0.35
"""Below this share of hits, what a miss adds costs more than the hits save."""


class _Answers:
    """What is known, and what is being asked, under one set of weights."""

    __slots__ = ("pending", "policies")

    def __init__(self) -> None:
        self.policies: dict[bytes, list[float]] = {}
        self.pending: dict[bytes, list[asyncio.Future[list[float] | None]]] = {}


class CachingInferer(InfererContext):
    """Remembers the answers of `inner` until the network that gave them changes.

    Between two fits a network is a fixed function, so a policy never needs computing twice. The
    key is the network's name and the encoding's bytes: equal encodings have equal legal actions.
    Who asks for what another coroutine is asking already waits for that answer; if the other is
    cancelled, it asks itself. An answer that arrives after its network has changed goes into the
    maps that were dropped with the old weights, so a stale policy is never served.

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
        self._answers: dict[str, _Answers] = {}
        self._hits = 0
        self._trial_hits = 0
        self._trial_misses = 0
        self.active = True
        """False once `auto` has found that the cache does not pay."""

    async def infer(self, network: str, encoding: bytes, legal: tuple[int, ...]) -> list[float]:
        """See `Inferer.infer`. The list is shared between callers: do not change it."""
        answers = self._answers.get(network)
        if answers is None:
            return await self._inner.infer(network, encoding, legal)
        policy = answers.policies.get(encoding)
        while policy is None:
            others = answers.pending.get(encoding)
            if others is None:
                return await self._ask(answers, network, encoding, legal)
            mine: asyncio.Future[list[float] | None] = asyncio.get_running_loop().create_future()
            others.append(mine)
            policy = await mine
        self._hits += 1
        self._trial_hits += 1
        return policy

    async def _ask(
        self, answers: _Answers, network: str, encoding: bytes, legal: tuple[int, ...]
    ) -> list[float]:
        self._trial_misses += 1
        others = answers.pending[encoding] = []
        policy: list[float] | None = None
        failure: Exception | None = None
        try:
            policy = await self._inner.infer(network, encoding, legal)
            if len(answers.policies) < self._capacity:
                answers.policies[encoding] = policy
            return policy
        except Exception as error:
            failure = error
            raise
        finally:
            del answers.pending[encoding]
            for other in others:
                if other.done():
                    continue
                if failure is None:
                    other.set_result(policy)  # None, where this asker was cancelled.
                else:
                    other.set_exception(retold(failure))

    def load(self, name: str, network: nn.Module, head: Head) -> None:
        """See `Inferer.load`; forgets the policies of `name`."""
        self._inner.load(name, network, head)
        trial = self._trial_hits + self._trial_misses
        if self._auto and trial >= PROBATION:
            self.active = self.active and self._trial_hits >= PAYING_HIT_SHARE * trial
            self._trial_hits = self._trial_misses = 0
        if self.active:
            self._answers[name] = _Answers()
        else:
            self._answers.clear()

    def statistics(self) -> Statistics:
        """See `Inferer.statistics`."""
        inner = self._inner.statistics()
        return replace(inner, requests=inner.requests + self._hits, cache_hits=self._hits)

    def reset_statistics(self) -> None:
        """See `Inferer.reset_statistics`."""
        self._inner.reset_statistics()
        self._hits = 0

    async def aclose(self) -> None:
        """See `Inferer.aclose`; what was remembered is forgotten."""
        self._answers.clear()
        await self._inner.aclose()
