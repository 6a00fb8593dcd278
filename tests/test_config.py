import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asynccfr.config import Config, load_config, presets, settings_yaml
from asynccfr.errors import SettingsError

SECTIONS = sorted(Config.model_fields)
KEYS = sorted(
    f"{name}.{key}"
    for name, section in Config.model_fields.items()
    for key in section.annotation.model_fields  # type: ignore[union-attr]
)


def write(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def message(*arguments: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_config(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_no_file_gives_the_defaults() -> None:
    assert load_config() == Config()


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "network:\n  num_layers: 2\n# traversal:\n"))
    assert config.network.num_layers == 2
    assert config.network.hidden_size == Config().network.hidden_size
    assert config.traversal == Config().traversal


def test_a_section_with_every_line_commented_out_keeps_its_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "run:\n  # seed: 3\nnetwork:\n")) == Config()


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == Config()


def test_overrides_come_on_top_of_the_file_and_the_last_one_wins(tmp_path: Path) -> None:
    file = write(tmp_path, "run:\n  seed: 1\n  iterations: 7\n")
    config = load_config(file, ["run.seed=2", "run.seed=3"])
    assert (config.run.seed, config.run.iterations) == (3, 7)


def test_overrides_may_be_a_mapping() -> None:
    assert load_config(None, {"run.seed": 5, "run.max_minutes": 1.5}).run.max_minutes == 1.5


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("advantage.learning_rate=1e-3", "advantage", "learning_rate", 1e-3),
        ("game.utility_scale=2.5", "game", "utility_scale", 2.5),
        ("game.name=goofspiel(num_cards=4)", "game", "name", "goofspiel(num_cards=4)"),
        ("run.name=42", "run", "name", "42"),
        ("run.max_minutes=null", "run", "max_minutes", None),
        ("inference.cache=off", "inference", "cache", "off"),
        ("inference.cache=on", "inference", "cache", "on"),
        ("training.amp=off", "training", "amp", "off"),
        ("advantage.reinitialise=false", "advantage", "reinitialise", False),
    ],
)
def test_override_values_are_read_as_meant(
    override: str, section: str, key: str, value: object
) -> None:
    assert getattr(getattr(load_config(None, [override]), section), key) == value


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_loads_and_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert load_config(write(tmp_path, config.to_yaml())) == config


def test_the_presets_that_are_promised_exist() -> None:
    assert {"default", "smoke", "home", "remote"} <= set(presets())


def test_default_yaml_is_what_the_settings_command_prints() -> None:
    assert presets()["default"].read_text(encoding="utf-8") == settings_yaml()


def test_default_yaml_spells_out_every_setting_with_its_default() -> None:
    values = yaml.safe_load(settings_yaml())
    assert sorted(f"{name}.{key}" for name in values for key in values[name]) == KEYS
    assert load_config("default") == Config()


def test_every_setting_has_a_description() -> None:
    for name in SECTIONS:
        model: Any = Config.model_fields[name].annotation
        assert model.__doc__
        for key, field in model.model_fields.items():
            assert (field.description or "").endswith("."), f"{name}.{key}"


@pytest.mark.parametrize(
    ("overrides", "fragments"),
    [
        (["traversal.concurency=3"], ["'traversal.concurency'", "'traversal.concurrency'"]),
        (["traversals.concurrency=3"], ["unknown setting 'traversals'", "'traversal'"]),
        (["run.iterations=many"], ["'run.iterations'", "'many'", "integer"]),
        (["run.iterations=true"], ["'run.iterations'", "number"]),
        (["run.iterations=1.5"], ["'run.iterations'", "1.5"]),
        (["run.iterations=0"], ["'run.iterations' is 0", "1"]),
        (["traversal.concurrency=-4"], ["'traversal.concurrency' is -4", "1"]),
        (["inference.max_batch=0"], ["'inference.max_batch' is 0"]),
        (["inference.max_wait_us=.nan"], ["'inference.max_wait_us'"]),
        (["inference.threads=1000000"], ["'inference.threads'", "1024"]),
        (["inference.backend=remote"], ["'inference.backend'", "'local'", "'async'"]),
        (["game.utility_scale=-1"], ["'game.utility_scale'"]),
        (["run=3"], ["'run'", "section"]),
        (["run.seed.more=3"], ["'run.seed'"]),
        (["run.seed"], ["'run.seed'", "section.key=value"]),
        (["=3"], ["section.key=value"]),
        (["run.seed=1", "run.seed.more=3"], ["'run.seed.more'"]),
        (["run.iterations=0x" + "f" * 5_000], ["'run.iterations'"]),
    ],
)
def test_bad_overrides_are_named(overrides: list[str], fragments: list[str]) -> None:
    text = message(None, overrides)
    assert all(fragment in text for fragment in fragments), text


def test_a_missing_file_is_named() -> None:
    assert "'nowhere/mine.yaml' does not exist" in message("nowhere/mine.yaml")


def test_an_unknown_preset_names_the_nearest() -> None:
    assert "did you mean 'smoke'?" in message("smokes")


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    assert "cannot be read" in message(tmp_path)


def test_a_name_longer_than_any_file_system_takes_is_refused() -> None:
    message("x" * 10_000)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("run:\n  seed: [1\n", "line 3, column 1"),
        ("run:\n\tseed: 1\n", "line 2, column 1"),
        ("- 1\n", "not a list"),
        ("just words\n", "not a str"),
        ("run: !!python/object:os.system {}\n", "line 1"),
        ("run:\n  sed: 1\n", "'run.seed'"),
        ("1: 2\n", "'1'"),
    ],
)
def test_a_malformed_file_is_explained(tmp_path: Path, text: str, fragment: str) -> None:
    assert fragment in message(write(tmp_path, text))


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"run:\n  name: \xff\xfe\n")
    assert "UTF-8" in message(file)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["auto", "on", "off", "async", "local", "1e-3", "0", "cpu"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=8), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)
FIELDS = st.one_of(st.sampled_from([key.partition(".")[2] for key in KEYS]), st.text(max_size=8))
FILES = st.dictionaries(
    st.one_of(st.sampled_from(SECTIONS), st.text(max_size=8)),
    st.one_of(VALUES, st.dictionaries(FIELDS, VALUES, max_size=4)),
    max_size=4,
)

fuzz = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def load_or_refuse(*arguments: Any) -> None:
    """A Config whose numbers are all finite, or SettingsError in one line: nothing else."""
    try:
        config = load_config(*arguments)
    except SettingsError as error:
        refusal = str(error)
        assert "\n" not in refusal
        return
    for section in config.model_dump().values():
        assert all(math.isfinite(x) for x in section.values() if isinstance(x, float))


@fuzz
@given(text=st.text(max_size=200))
def test_any_text_is_a_config_or_a_settings_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    load_or_refuse(file)


@fuzz
@given(values=FILES)
def test_any_yaml_is_a_config_or_a_settings_error(values: object, tmp_path: Path) -> None:
    load_or_refuse(write(tmp_path, yaml.safe_dump(values, allow_unicode=True)))


@fuzz
@given(
    key=st.one_of(st.sampled_from(KEYS), st.sampled_from(SECTIONS), st.text(max_size=12)),
    value=VALUES,
    text=st.text(max_size=12),
)
def test_any_override_is_a_config_or_a_settings_error(key: str, value: object, text: str) -> None:
    load_or_refuse(None, {key: value})
    load_or_refuse(None, [f"{key}={text}"])
    load_or_refuse(None, [text])
    load_or_refuse(text)


@pytest.mark.parametrize(
    "text", ["run: {seed: 5}\ngame: {}\nrun: {iterations: 3}\n", "run:\n  seed: 5\n  seed: 6\n"]
)
def test_a_key_that_stands_twice_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"line 3.*stands twice"):
        load_config(file)


def test_a_dotted_key_in_a_file_is_told_apart_from_an_unknown_one(tmp_path: Path) -> None:
    file = tmp_path / "dotted.yaml"
    file.write_text("run.seed: 5\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"write run: \{seed: \.\.\.\}"):
        load_config(file)
