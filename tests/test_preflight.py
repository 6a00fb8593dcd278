import pytest
import torch

from asynccfr import preflight
from asynccfr.config import load_config
from asynccfr.errors import SettingsError
from asynccfr.games import load_game
from asynccfr.networks import new_network, parameter_count

KUHN = load_game("kuhn_poker")


def test_cuda_without_cuda_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match=r"--set run\.device=cpu"):
        preflight.resolve_device("cuda")
    assert preflight.resolve_device("auto") == torch.device("cpu")


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert preflight.resolve_device("auto") == torch.device("cuda")
    assert preflight.resolve_device("cpu") == torch.device("cpu")


def test_memory_bytes_by_hand() -> None:
    # Kuhn: encodings of 11 floats, 2 actions. A row is 11 + 2 + 1 floats, 2 flags and a key of 8
    # bytes, 66 bytes; in the strategy memory the player's mark adds 2 floats.
    config = load_config(
        None, {"advantage.memory_capacity": 100, "strategy.memory_capacity": 1_000}
    )
    needed = preflight.memory_bytes(config, KUHN)
    assert needed["advantage.memory_capacity"] == 2 * 100 * 66
    assert needed["strategy.memory_capacity"] == 1_000 * 74


def test_networks_are_counted_by_their_parameters() -> None:
    config = load_config(None, {"network.hidden_size": 48, "network.num_layers": 4})
    network = new_network(KUHN.encoding_size, KUHN.num_actions, config.network, torch.Generator())
    needed = preflight.memory_bytes(config, KUHN)["network.hidden_size"]
    assert needed % (4 * parameter_count(network)) == 0


@pytest.mark.parametrize(
    "key", ["advantage.memory_capacity", "strategy.memory_capacity", "network.hidden_size"]
)
def test_memory_that_the_machine_lacks_names_the_largest_setting(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 2**30)
    small = {"advantage.memory_capacity": 10, "strategy.memory_capacity": 10}
    preflight.check_memory(load_config(None, small), KUHN)
    with pytest.raises(SettingsError, match=rf"1\.0 GiB available; lower '{key}'"):
        preflight.check_memory(load_config(None, {**small, key: 100_000_000}), KUHN)


def test_this_machine_has_memory_and_cores() -> None:
    assert preflight.available_memory_bytes() > 0
    assert preflight.available_cores() >= 1


def test_utility_scale_is_the_largest_absolute_utility_or_what_is_set() -> None:
    assert preflight.utility_scale(load_config(), KUHN) == 2.0
    assert preflight.utility_scale(load_config(None, {"game.utility_scale": 7}), KUHN) == 7.0


@pytest.mark.parametrize(
    ("overrides", "threads"),
    [
        ({"network.hidden_size": 64}, 1),
        ({"network.hidden_size": 512}, preflight.available_cores()),
        ({"network.hidden_size": 64, "training.threads": 3}, 3),
        ({"network.hidden_size": 512, "training.threads": 3}, 3),
    ],
)
def test_fits_share_their_work_where_there_is_enough_of_it(overrides, threads) -> None:
    assert preflight.fit_threads(load_config(None, overrides)) == threads
