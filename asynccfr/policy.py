"""The trained average policy: asked state by state or in batches, saved and loaded alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_spiel.python.policy import Policy

from asynccfr.config import Config
from asynccfr.errors import InputError
from asynccfr.games.base import BoolArray, FloatArray, Game, State
from asynccfr.games.openspiel import pyspiel_game_of
from asynccfr.games.registry import load_game
from asynccfr.inference.heads import masked_softmax
from asynccfr.networks import ActionNetwork

FORMAT = 1

_ROWS_PER_FORWARD = 8_192


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
        self._row = np.zeros((1, game.encoding_size), np.float32)

    @torch.inference_mode()
    def probabilities(self, encodings: FloatArray, legal: BoolArray) -> FloatArray:
        """Policies at many information states.

        Args:
            encodings: float32[N, F].
            legal: bool[N, A].

        Returns:
            float32[N, A], rows summing to 1, 0 at illegal actions.
        """
        pieces = [
            masked_softmax(
                self.network(torch.from_numpy(encodings[start:stop])).numpy(), legal[start:stop]
            )
            for start in range(0, len(encodings), _ROWS_PER_FORWARD)
            for stop in (start + _ROWS_PER_FORWARD,)
        ]
        return np.concatenate(pieces) if pieces else np.zeros(legal.shape, np.float32)

    def action_probabilities(self, state: State, player_id: int | None = None) -> dict[int, float]:
        """Legal action -> probability for the player to move (or `player_id`) at `state`."""
        player = state.current_player() if player_id is None else player_id
        actions = state.legal_actions()
        legal = np.zeros((1, self.played_game.num_actions), np.bool_)
        legal[0, actions] = True
        self.played_game.encode(state, player, self._row[0])
        policy = self.probabilities(self._row, legal)[0]
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
    file = path / "policy.pt" if path.is_dir() else path
    if not file.is_file():
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
        network = ActionNetwork(game.encoding_size, game.num_actions, config.network)
        network.load_state_dict(saved["network"])
        return AveragePolicy(game, network, config, int(saved["iteration"]))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the policy {str(file)!r} is damaged or no policy of asynccfr "
            f"({type(error).__name__}); copy it again or train anew"
        ) from error
