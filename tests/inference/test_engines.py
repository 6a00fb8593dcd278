"""The eager engine and the choice of its precision."""

import numpy as np
import pytest
import torch
from torch import nn

from asynccfr.inference import engines
from asynccfr.inference.engines import BFLOAT16_FROM_WIDTH, EagerEngine, resolve_precision

CPU = torch.device("cpu")
WIDE = BFLOAT16_FROM_WIDTH


def say_of_the_cpu(monkeypatch: pytest.MonkeyPatch, computes_bfloat16: bool) -> None:
    """Whatever this machine has, makes torch say that it does or does not compute in bfloat16."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: computes_bfloat16)


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
@pytest.mark.parametrize("native", [False, True])
def test_a_precision_that_was_asked_for_is_taken(monkeypatch, asked, native: bool):
    say_of_the_cpu(monkeypatch, native)

    assert resolve_precision(asked, CPU, 8) == asked
    assert resolve_precision(asked, CPU, WIDE) == asked


@pytest.mark.parametrize(
    ("native", "width", "precision"),
    [
        (True, WIDE, "bfloat16"),
        (True, WIDE - 1, "float32"),
        (False, WIDE, "float32"),
        (False, 8, "float32"),
    ],
)
def test_auto_takes_bfloat16_where_the_hardware_has_it_and_the_network_is_wide(
    monkeypatch, native: bool, width: int, precision: str
):
    say_of_the_cpu(monkeypatch, native)

    assert resolve_precision("auto", CPU, width) == precision


@pytest.mark.parametrize("native", [False, True])
def test_auto_on_a_gpu_asks_the_gpu(monkeypatch, native: bool):
    say_of_the_cpu(monkeypatch, not native)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)

    precision = resolve_precision("auto", torch.device("cuda"), WIDE)

    assert precision == ("bfloat16" if native else "float32")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 63, 64, 65, 100, 129])
def test_outputs_are_the_networks_for_any_number_of_rows(random_network, count: int):
    network = random_network(6, 4, 1)
    rows = np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)
    engine = EagerEngine(CPU)
    engine.load("net", network)

    outputs = engine.forward("net", rows)

    assert outputs.shape == (count, 4)
    assert outputs.dtype == np.float32
    with torch.no_grad():
        np.testing.assert_allclose(outputs, network(torch.from_numpy(rows)), atol=1e-5)


def test_bfloat16_is_close_to_float32(random_network):
    # bfloat16 keeps 8 bits, so each number is off by at most 2**-9, 0.2 %. Through two layers,
    # outputs of size 1 and sums whose errors partly cancel, 2 % bounds the difference with room.
    network = random_network(6, 4, 1)
    rows = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    outputs = {}
    for precision in ("float32", "bfloat16"):
        engine = EagerEngine(CPU, precision)
        engine.load("net", network)
        outputs[precision] = engine.forward("net", rows)

    assert outputs["bfloat16"].dtype == np.float32
    assert not np.array_equal(outputs["bfloat16"], outputs["float32"])
    largest = np.abs(outputs["float32"]).max()
    np.testing.assert_allclose(outputs["bfloat16"], outputs["float32"], atol=0.02 * largest)


def test_a_loaded_network_is_a_copy(random_network):
    network = random_network(6, 4, 1)
    rows = np.ones((3, 6), np.float32)
    engine = EagerEngine(CPU, "bfloat16")
    engine.load("net", network)
    before = engine.forward("net", rows).copy()

    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()

    np.testing.assert_array_equal(engine.forward("net", rows), before)
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_networks_have_names_and_the_latest_under_a_name_answers(random_network):
    rows = np.ones((1, 6), np.float32)
    engine = EagerEngine(CPU)
    engine.load("a", random_network(6, 4, 1))
    engine.load("b", random_network(6, 4, 2))
    first, second = engine.forward("a", rows), engine.forward("b", rows)
    engine.load("a", random_network(6, 4, 2))

    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(engine.forward("a", rows), second)


def test_networks_answer_as_in_evaluation_and_without_gradients():
    network = nn.Sequential(nn.Dropout(0.5))
    network.train()
    engine = EagerEngine(CPU)
    engine.load("net", network)

    outputs = engine.forward("net", np.ones((8, 3), np.float32))

    np.testing.assert_array_equal(outputs, np.ones((8, 3)))
    assert network.training


@pytest.mark.parametrize("count", [*range(1, 70), 127, 128, 129, 512, 4096])
def test_padding_never_shrinks_a_batch_and_at_most_doubles_it(count: int):
    padded = engines.padded_rows(count)

    assert count <= padded < 2 * count + 1
    assert engines.padded_rows(padded) == padded


def test_padding_leaves_few_sizes():
    # 1, 2, 4, ..., 64 are seven; then 128, 192, ..., 512 are seven more.
    assert len({engines.padded_rows(count) for count in range(1, 513)}) == 14
