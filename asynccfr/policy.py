"""The trained average policy: asked state by state or in batches, saved and loaded alone."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_spiel.python.policy import Policy

from asynccfr.config import Config, NetworkSettings
from asynccfr.errors import InputError
from asynccfr.games.base import (
    BoolArray,
    FloatArray,
    Game,
    IntArray,
    State,
    bytes_encoder,
    mark_players,
    stack_encodings,
)
from asynccfr.games.openspiel import pyspiel_game_of
from asynccfr.games.registry import load_game
from asynccfr.inference.heads import masked_softmax
from asynccfr.networks import ActionNetwork

FORMAT = 1

_ROWS_PER_FORWARD = 8_192


def strategy_encoding_size(game: Game) -> int:
    """The length of what the strategy network sees: an encoding marked with its player."""
    return game.encoding_size + game.num_players


def new_strategy_network(game: Game, settings: NetworkSettings) -> ActionNetwork:
    """A strategy network for `game`, weights not yet drawn."""
    return ActionNetwork(strategy_encoding_size(game), game.num_actions, settings)


class AveragePolicy(Policy):  # type: ignore[misc]
    """The average strategy of a run; also an OpenSpiel `Policy`, for OpenSpiel's own tools.

    Args:
        game: what it plays.
        network: the fitted strategy network; its outputs are logits. Kept on the CPU in float32.
        config: the settings it was trained under.
        iteration: after how many iterations.
    """

    def __init__(self, game: Game, network: ActionNetwork, config: Config, iteration: int) -> None:
        super().__init__(pyspiel_game_of(game) or game, list(range(game.num_players)))
        self.played_game = game
        self.network = network.cpu().float().eval()
        self.config = config
        self.iteration = iteration
        self._encode = bytes_encoder(game)

    @torch.inference_mode()
    def probabilities(
        self, encodings: FloatArray, legal: BoolArray, players: IntArray
    ) -> FloatArray:
        """Policies at many information states.

        Args:
            encodings: float32[N, F].
            legal: bool[N, A].
            players: whose information states these are, int64[N].

        Returns:
            float32[N, A], rows summing to 1, 0 at illegal actions.
        """
        marked = mark_players(encodings, players, self.played_game.num_players)
        pieces = [
            masked_softmax(
                self.network(torch.from_numpy(marked[start:stop])).numpy(), legal[start:stop]
            )
            for start in range(0, len(marked), _ROWS_PER_FORWARD)
            for stop in (start + _ROWS_PER_FORWARD,)
        ]
        return np.concatenate(pieces) if pieces else np.zeros(legal.shape, np.float32)

    def action_probabilities(self, state: State, player_id: int | None = None) -> dict[int, float]:
        """Legal action -> probability for the player to move (or `player_id`) at `state`."""
        player = state.current_player() if player_id is None else player_id
        actions = state.legal_actions()
        legal = np.zeros((1, self.played_game.num_actions), np.bool_)
        legal[0, actions] = True
        row = stack_encodings((self._encode(state, player),), self.played_game.encoding_size)
        policy = self.probabilities(row, legal, np.array([player]))[0]
        return {action: float(policy[action]) for action in actions}

    def save(self, path: Path) -> None:
        """Writes the policy to `path`; `load_policy` needs that file and nothing else."""
        torch.save(
            {
                "format": FORMAT,
                "config": self.config.model_dump(mode="json"),
                "iteration": self.iteration,
                "network": self.network.state_dict(),
            },
            path,
        )


def load_policy(path: str | Path) -> AveragePolicy:
    """The policy saved at `path`, or inside the run directory `path`.

    Weights are read as plain tensors; no code in the file is ever run. A game given as
    `package.module:Factory` is imported, as it was for training.

    Raises:
        InputError: where there is no policy at `path`, or it cannot be read.
    """
    path = Path(path)
    file = path / "policy.pt" if os.path.isdir(path) else path
    if not os.path.isfile(file):  # Unlike Path's, false for what no file system could hold.
        raise InputError(
            f"there is no policy at {str(file)!r}; give a run directory whose training has ended"
        )
    try:
        saved: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if saved["format"] != FORMAT:
            raise InputError(
                f"the policy {str(file)!r} has format {saved['format']!r}, and this version of "
                f"asynccfr reads format {FORMAT}; use the version that wrote it"
            )
        config = Config.model_validate(saved["config"])
        game = load_game(config.game.name, config.game.encoding)
        network = new_strategy_network(game, config.network)
        network.load_state_dict(saved["network"])
        return AveragePolicy(game, network, config, int(saved["iteration"]))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the policy {str(file)!r} is damaged or no policy of asynccfr "
            f"({type(error).__name__}); copy it again or train anew"
        ) from error
