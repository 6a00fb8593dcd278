"""From a name to a game, or to one sentence that helps."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynccfr.errors import GameError
from asynccfr.games import load_game
from asynccfr.games.one_card_poker import OneCardPoker


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("leduk_poker", "unknown game 'leduk_poker'; did you mean 'leduc_poker'?"),
        ("Kuhn_Poker", "did you mean 'kuhn_poker'?"),
        ("goofspeil(num_cards=4)", "unknown game 'goofspeil'; did you mean 'goofspiel'?"),
        ("xyzzy", "unknown game 'xyzzy'; `asynccfr games` lists them all"),
        ("", "unknown game ''"),
        ("kuhn_poker(players=99)", "kGameType.max_num_players = 10); its parameters are players"),
        ("kuhn_poker(seats=3)", "(Unknown parameter 'seats'); its parameters are players"),
        ("kuhn_poker(players=two)", "Wrong type for parameter players"),
        ("python_kuhn_poker(x=1)", "(Unknown parameter 'x'); it takes no parameters"),
        ("kuhn_poker(players=3", "brackets of the game 'kuhn_poker(players=3' do not match"),
        ("kuhn_poker(players=3))", "do not match; write name(key=value)"),
        ("nfg_game", "its parameters are filename"),
        ("misere", "Missing parameter game"),
        ("fhp(stack=3)", "the preset 'fhp' takes no parameters; to change it, edit"),
        ("mfg_garnet", "'mfg_garnet' is a mean-field game, which Deep CFR does not play"),
        ("tic_tac_toe", "no information-state tensor; set game.encoding=observation"),
        ("coin_game", "no information-state tensor; choose another game"),
        ("my-game:Factory", "write package.module:Factory"),
        ("absent:Factory", "no module 'absent' here; start in the folder that holds it"),
        ("absent.py:Factory", "write package.module:Factory, without .py"),
        ("asynccfr.absent:Factory", "there is no module 'asynccfr.absent' here"),
        ("math:factory", "the module 'math' has no 'factory' to call"),
        ("math:pi", "the module 'math' has no 'pi' to call"),
        ("builtins:dict", "is a dict that lacks encode, encoding_size, max_utility"),
    ],
)
def test_a_name_that_loads_nothing_is_answered_in_one_sentence(
    name: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GameError) as caught:
        load_game(name)
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message
    assert "Available games" not in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sheriff", "the game 'sheriff' has no observation tensor; choose another game"),
        ("crossword", "the game 'crossword' has no observation tensor; choose another game"),
    ],
)
def test_an_observation_tensor_that_is_not_there_is_told(
    name: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GameError, match=message):
        load_game(name, "observation")
    assert capfd.readouterr() == ("", "")


def complaint(name: str) -> str:
    """What `load_game` says of `name`; empty where it loads."""
    try:
        load_game(name)
    except GameError as error:
        return str(error)
    return ""


@given(text=st.text(max_size=20).filter(lambda text: ":" not in text))
def test_no_text_does_worse_than_a_sentence(text: str) -> None:
    said = complaint(f"?{text}")
    assert said
    assert "\n" not in said


@given(text=st.text("playersx=0123,.-() ", max_size=12))
def test_no_parameters_do_worse_than_a_sentence(text: str) -> None:
    assert "\n" not in complaint(f"kuhn_poker({text})")


def test_names_may_stand_between_spaces() -> None:
    assert load_game(" kuhn_poker\n").name == "kuhn_poker"


def test_a_preset_is_its_game_string_under_a_name_of_its_own() -> None:
    fhp = load_game("fhp")
    assert fhp.name == "fhp"
    # Fold, call, raise; a player loses at most the big blind of 100 and 2 + 3 raises of 100.
    assert (fhp.num_players, fhp.num_actions, fhp.max_utility) == (2, 3, 600.0)


def test_simultaneous_games_become_turn_based() -> None:
    game = load_game("goofspiel(num_cards=4,imp_info=True,points_order=descending)")
    state = game.new_initial_state()
    assert state.current_player() == 0
    assert state.child(3).current_player() == 1


Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the working directory, which no entry of sys.path names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", "."}])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: list[str] = []

    def module(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        names.append(name)
        return name

    yield module
    for name in names:
        sys.modules.pop(name, None)


GAME = "from asynccfr.games.one_card_poker import OneCardPoker\n"


def test_a_module_in_the_working_directory_is_found(write: Write) -> None:
    before = list(sys.path)
    name = write("my_game_here", GAME + "def make():\n    return OneCardPoker(4)\n")
    game = load_game(f"{name}:make")
    assert isinstance(game, OneCardPoker)
    assert game.ranks == 4
    assert sys.path == before


def test_the_factory_itself_may_import_from_the_working_directory(write: Write) -> None:
    write("my_helper", GAME)
    name = write(
        "my_lazy_game", "def make():\n    import my_helper\n    return my_helper.OneCardPoker(4)\n"
    )
    assert load_game(f"{name}:make").encoding_size == 8


def test_a_factory_may_stand_inside_a_class(write: Write) -> None:
    name = write("my_nested_game", GAME + "class Table:\n    Game = OneCardPoker\n")
    assert isinstance(load_game(f"{name}:Table.Game"), OneCardPoker)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "import absent_library\n",
            "ModuleNotFoundError: No module named 'absent_library' (line 1 of faulty_game.py)",
        ),
        (
            "x = 1 / 0\n",
            "fails when it is imported, with ZeroDivisionError: division by zero (line "
            "1 of faulty_game.py); mend it there",
        ),
        ("def broken(:\n", "fails when it is imported, with SyntaxError: "),
        ("import sys\nsys.exit('bye')\n", "with SystemExit: bye (line 2 of faulty_game.py)"),
        (
            "def make():\n    raise ValueError('two\\nlines')\n",
            "the factory of the game "
            "'faulty_game:make' raises ValueError: two lines (line 2 of faulty_game.py)",
        ),
        (
            "def make(ranks):\n    return ranks\n",
            "raises TypeError: make() missing 1 required "
            "positional argument: 'ranks'; it is called with no argument",
        ),
        ("def make():\n    pass\n", "'faulty_game:make' is a NoneType that lacks encode, "),
        (
            GAME + "class Part(OneCardPoker):\n    encode = property()\ndef make():\n"
            "    return Part()\n",
            "is a Part that lacks encode; see asynccfr.games.Game",
        ),
    ],
)
def test_a_faulty_module_is_told_with_its_place(write: Write, text: str, sentence: str) -> None:
    before = list(sys.path)
    name = write("faulty_game", text)
    with pytest.raises(GameError) as caught:
        load_game(f"{name}:make")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sys.path == before


def test_a_missing_openspiel_is_told_by_the_name_of_its_package() -> None:
    code = "import sys; sys.modules['pyspiel'] = None; import asynccfr.games"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: asynccfr needs OpenSpiel" in done.stderr
    assert "pip install open_spiel" in done.stderr
