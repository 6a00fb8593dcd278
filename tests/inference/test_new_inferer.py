"""From settings to inferers."""

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.config import InferenceSettings
from asynccfr.inference import BatchingInferer, CachingInferer, LocalInferer, new_inferer
from asynccfr.inference.heads import regret_matching


class SmallGame:
    """As much of a game as an inferer needs: F = 3, A = 3."""

    encoding_size = 3
    num_actions = 3


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"backend": "local", "cache": "off"}, LocalInferer),
        ({"backend": "async", "cache": "off"}, BatchingInferer),
        ({"backend": "local", "cache": "on"}, CachingInferer),
        ({"backend": "async", "cache": "auto"}, CachingInferer),
    ],
)
async def test_settings_choose_the_inferer_and_it_answers(settings, kind: type):
    chosen = InferenceSettings(**settings)
    async with new_inferer(chosen, SmallGame(), torch.device("cpu"), 64) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        encoding = np.array([1, 3, 4], np.float32).tobytes()

        assert isinstance(inferer, kind)
        assert await inferer.infer("echo", encoding, (0, 1)) == [0.25, 0.75, 0]
        assert await inferer.infer("echo", encoding, (0, 1)) == [0.25, 0.75, 0]
        assert inferer.statistics().requests == 2


async def test_threads_are_honoured():
    chosen = InferenceSettings(backend="async", threads=2)
    async with new_inferer(chosen, SmallGame(), torch.device("cpu"), 64) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        await inferer.infer("echo", np.ones(3, np.float32).tobytes(), (0, 1))

        assert inferer.statistics().threads == 2


async def test_max_batch_is_honoured():
    chosen = InferenceSettings(backend="async", cache="off", max_batch=1)
    async with new_inferer(chosen, SmallGame(), torch.device("cpu"), 64) as inferer:
        inferer.load("echo", nn.Identity(), regret_matching)
        await inferer.infer("echo", np.ones(3, np.float32).tobytes(), (0, 1))

        assert inferer.statistics().reasons == {"size": 1}
