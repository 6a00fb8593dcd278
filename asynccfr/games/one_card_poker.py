"""A game of one's own, written against the Game and State protocols alone.

One-card poker: a deck of `ranks` cards, one of each rank; each of two players antes 1 and is
dealt one card. The first player passes or bets 1; a bet is answered by a call (bet) or a fold
(pass); after a pass the second player may bet, which the first then answers. The higher card
wins where nobody folds. With three ranks this is Kuhn poker (Kuhn 1950), worth -1/18 to the
first player.

Train on it by `--set game.name=asynccfr.games.one_card_poker:OneCardPoker`; a game in a file of
your own is `my_game:MyGame`, started in the folder that holds `my_game.py`.
"""

from asynccfr.games.base import CHANCE, TERMINAL, FloatArray, State

PASS, BET = 0, 1

_MOST_MOVES = 3
"""Pass, bet, and the answer to it; only the first two are ever seen by a player to move."""


class OneCardPokerState:
    """One node: the cards dealt and the moves made so far.

    Both are tuples, which a move replaces and never changes, so that copies may share them.

    Args:
        ranks: how many cards the deck holds.
        cards: the first player's card, then the second's; fewer while they are dealt.
        moves: PASS and BET, the first player's first.
    """

    def __init__(
        self, ranks: int, cards: tuple[int, ...] = (), moves: tuple[int, ...] = ()
    ) -> None:
        self.ranks = ranks
        self.cards = cards
        self.moves = moves

    def current_player(self) -> int:
        """Chance deals two cards, then the players move in turn."""
        if len(self.cards) < 2:
            return CHANCE
        if self.is_terminal():
            return TERMINAL
        return len(self.moves) % 2

    def legal_actions(self) -> list[int]:
        """Always both: what a bet and a pass mean depends on the move before."""
        return [PASS, BET]

    def chance_outcomes(self) -> list[tuple[int, float]]:
        """Each card left in the deck, all alike."""
        deck = [card for card in range(self.ranks) if card not in self.cards]
        return [(card, 1.0 / len(deck)) for card in deck]

    def apply_action(self, action: int) -> None:
        """Deals the card `action`, or makes the move `action`."""
        if len(self.cards) < 2:
            self.cards = (*self.cards, action)
        else:
            self.moves = (*self.moves, action)

    def child(self, action: int) -> "OneCardPokerState":
        """See `State.child`."""
        state = self.clone()
        state.apply_action(action)
        return state

    def clone(self) -> "OneCardPokerState":
        """See `State.clone`."""
        return type(self)(self.ranks, self.cards, self.moves)

    def is_terminal(self) -> bool:
        """After two moves, unless the second is a bet still to be answered."""
        return len(self.moves) >= 2 and self.moves[-2:] != (PASS, BET)

    def returns(self) -> list[float]:
        """The winner takes the loser's ante, and the loser's bet where it was called."""
        if self.moves[-2:] == (BET, PASS):
            stake, winner = 1.0, len(self.moves) % 2
        else:
            stake = 2.0 if self.moves[-1] == BET else 1.0
            winner = 0 if self.cards[0] > self.cards[1] else 1
        return [stake, -stake] if winner == 0 else [-stake, stake]

    def information_state_string(self, player: int) -> str:
        """The player's own card and the moves, as `2pb`; the first player's card is dealt first."""
        return f"{self.cards[player]}{''.join('pb'[move] for move in self.moves)}"


class OneCardPoker:
    """One-card poker for two players.

    Args:
        ranks: how many cards the deck holds, at least 2.
    """

    name = "asynccfr.games.one_card_poker:OneCardPoker"
    num_players = 2
    num_actions = 2
    min_utility = -2.0
    max_utility = 2.0

    def __init__(self, ranks: int = 5) -> None:
        if ranks < 2:
            raise ValueError(f"ranks is {ranks}; two players need at least 2 cards")
        self.ranks = ranks
        self.encoding_size = ranks + 2 * (_MOST_MOVES - 1)

    def new_initial_state(self) -> State:
        """The root, where chance deals the first card."""
        return OneCardPokerState(self.ranks)

    def encode(self, state: State, player: int, out: FloatArray) -> None:
        """Writes the player's card, then each move seen: one entry for pass, one for bet.

        Args:
            state: a node of this game.
            player: whose information is written; the other's card is not.
            out: float32[ranks + 4].
        """
        assert isinstance(state, OneCardPokerState)
        out[:] = 0.0
        out[state.cards[player]] = 1.0
        for index, move in enumerate(state.moves[:2]):
            out[self.ranks + 2 * index + move] = 1.0
