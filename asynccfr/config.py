"""Settings: frozen models, YAML files, dotted overrides."""

import difflib
import os
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from asynccfr.errors import SettingsError


def _number(value: object) -> object:
    """Python counts True as 1; a setting that wants a number does not."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "input should be a number, not a boolean")
    return value


Count = Annotated[int, Field(ge=1, le=10**9), BeforeValidator(_number)]
Threads = Annotated[int, Field(ge=1, le=1024), BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_number)]


def _words(value: object) -> object:
    """YAML reads a bare `on` or `off` as a boolean; settings that offer these words want them."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, coerce_numbers_to_str=True
    )


class RunSettings(_Section):
    """The run as a whole."""

    name: str = Field("leduc", min_length=1, description="Part of the run directory's name.")
    seed: Annotated[int, BeforeValidator(_number)] = Field(
        0, ge=0, lt=2**32, description="Every random number derives from it."
    )
    iterations: Count = Field(50, description="Deep CFR iterations T.")
    max_minutes: Positive | None = Field(
        None, description="Stop early so that the whole run ends within this many minutes."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where networks live; auto takes a GPU where there is one."
    )


class GameSettings(_Section):
    """What is played."""

    name: str = Field(
        "leduc_poker",
        min_length=1,
        description="A preset, an OpenSpiel game string, or package.module:Factory.",
    )
    utility_scale: Literal["auto"] | Positive = Field(
        "auto",
        description="Utilities are divided by this before they become targets; "
        "auto takes the game's largest absolute utility.",
    )
    encoding: Literal["information_state", "observation"] = Field(
        "information_state",
        description="The network's input; observation is for games without an information-state "
        "tensor and gives up perfect recall.",
    )


class NetworkSettings(_Section):
    """The shape of every network."""

    hidden_size: Count = Field(128, description="Units in each hidden layer.")
    num_layers: Count = Field(3, description="Hidden layers.")


class TraversalSettings(_Section):
    """Sampling the game tree."""

    traversals_per_player: Count = Field(
        1000, description="Traversals K for each player in each iteration."
    )
    concurrency: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(_number)] = Field(
        512, description="Traversals in flight at a time."
    )


class InferenceSettings(_Section):
    """Answering policy requests."""

    backend: Literal["local", "async"] = Field(
        "async", description="async batches many traversals; local runs one forward a request."
    )
    max_batch: Count = Field(512, description="Most rows in a batch.")
    max_wait_us: Positive = Field(
        20_000.0, description="Longest that a batch stays open, in microseconds."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Arithmetic of the forwards; auto takes bfloat16 where the hardware computes "
        "in it and the network is at least 256 wide.",
    )
    threads: Threads = Field(1, description="Torch threads of the inference thread.")
    cache: Annotated[Literal["auto", "on", "off"], BeforeValidator(_words)] = Field(
        "auto",
        description="Remember policies until weights change; auto gives up where hits do not pay.",
    )
    cache_entries: Count = Field(200_000, description="Most policies remembered for a network.")


class FitSettings(_Section):
    """Fitting one network to its memory."""

    train_steps: Count = Field(200, description="Training steps in a fit.")
    batch_size: Count = Field(
        8192,
        description="Rows drawn for a training step; those of one information state are merged, "
        "so a small game affords large batches.",
    )
    learning_rate: Positive = Field(4e-3, description="Adam's rate at the first step.")
    final_learning_rate_share: float = Field(
        0.05, ge=0, le=1, description="Rate at the last step over the rate at the first; linear."
    )
    gradient_clip: Positive | None = Field(1.0, description="Largest gradient norm; null: none.")
    memory_capacity: Count = Field(1_000_000, description="Rows that the reservoir holds.")


class AdvantageSettings(FitSettings):
    """Each player's advantage network and memory."""

    reinitialise: bool = Field(
        True, description="Start each fit from fresh weights; false goes on from the last fit."
    )
    fallback: Literal["best", "uniform"] = Field(
        "best",
        description="Where no legal action has a positive advantage: best plays the legal action "
        "with the largest, uniform plays all alike.",
    )


class StrategySettings(FitSettings):
    """The network of the average strategy and its memory."""

    train_steps: Count = Field(1000, description="Training steps in a fit.")


class TrainingSettings(_Section):
    """How fits use the machine."""

    threads: Threads | None = Field(
        None,
        description="Torch threads of a fit; null takes every core this process may use for "
        "networks at least 256 wide, and one for smaller ones, which it serves better.",
    )
    amp: Annotated[Literal["auto", "off", "bf16"], BeforeValidator(_words)] = Field(
        "auto",
        description="bf16 runs the forwards of a fit in bfloat16 under autocast, weights and "
        "losses staying float32; auto does so where the hardware computes in it.",
    )


class EvaluationSettings(_Section):
    """Measuring the average strategy."""

    eval_every: Annotated[int, BeforeValidator(_number)] = Field(
        10, ge=0, description="Iterations between evaluations; 0 evaluates only at the end."
    )
    exact: bool = Field(True, description="Compute NashConv where the game is small enough.")
    max_histories: Count = Field(
        1_000_000, description="Largest number of histories for which NashConv is computed."
    )


class Config(_Section):
    """Every setting. With no file at all this trains Leduc poker."""

    run: RunSettings = Field(default_factory=RunSettings)
    game: GameSettings = Field(default_factory=GameSettings)
    network: NetworkSettings = Field(default_factory=NetworkSettings)
    traversal: TraversalSettings = Field(default_factory=TraversalSettings)
    inference: InferenceSettings = Field(default_factory=InferenceSettings)
    advantage: AdvantageSettings = Field(default_factory=AdvantageSettings)
    strategy: StrategySettings = Field(default_factory=StrategySettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)

    def to_yaml(self) -> str:
        """The resolved settings as YAML that `load_config` reads back to an equal Config."""
        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)
        return text


def load_config(
    settings: str | Path | None = None, overrides: Iterable[str] | Mapping[str, object] = ()
) -> Config:
    """Settings from a file or a preset, with overrides on top of it.

    Args:
        settings: a YAML file; or the name of a preset such as `kuhn`; or None for the defaults.
        overrides: `section.key=value` strings, values read as YAML; or a mapping of dotted keys.

    Raises:
        SettingsError: one sentence that names what is wrong and what would be right.
    """
    values = {} if settings is None else _read(_find(settings))
    if isinstance(overrides, Mapping):
        pairs = list(overrides.items())
    else:
        pairs = [_split(text) for text in overrides]
    for key, value in pairs:
        _assign(values, key, value)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error.errors()[0])) from None


def settings_yaml() -> str:
    """A settings file that spells out every setting: its default, and above it what it does."""
    lines = [
        "# Every setting with its default. Copy it, keep the lines that you change, and train by",
        "# `python -m asynccfr train --settings FILE`; what a file leaves out keeps its default.",
    ]
    for name, section in Config().model_dump(mode="json").items():
        model: Any = Config.model_fields[name].annotation
        lines += ["", f"# {model.__doc__}", f"{name}:"]
        for key, value in section.items():
            field = model.model_fields[key]
            about = field.description
            if get_origin(field.annotation) is Literal:
                about += f" One of: {', '.join(get_args(field.annotation))}."
            lines += textwrap.wrap(about, 96, initial_indent="  # ", subsequent_indent="  # ")
            lines.append(f"  {key}: {yaml.safe_dump(value).splitlines()[0]}")
    return "\n".join(lines) + "\n"


def presets() -> dict[str, Path]:
    """The settings files that come with asynccfr, by name."""
    package = Path(__file__).parent
    for folder in (package / "settings", package.parent / "settings"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known word most like `word`, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _find(settings: str | Path) -> Path:
    path = Path(settings)
    known = presets()
    if str(settings) in known:
        return known[str(settings)]
    if os.path.exists(path):  # Unlike Path.exists, false for what no file system could hold.
        return path
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        raise SettingsError(f"the settings file {str(path)!r} does not exist; check its path")
    names = ", ".join(known)
    raise SettingsError(
        f"there are no settings named {str(settings)!r}{nearest(str(settings), known)}; "
        f"give a YAML file or one of {names}"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise SettingsError(
            f"the settings file {str(path)!r} cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"the settings file {str(path)!r} is not UTF-8 text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise SettingsError(
            f"the settings file {str(path)!r} is not valid YAML{place}: {problem}"
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"the settings file {str(path)!r} must hold sections such as 'run:', "
            f"not a {type(values).__name__}"
        )
    # A section whose every line is commented out reads as null.
    return {key: {} if value is None else value for key, value in values.items()}


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice; YAML alone would drop the first without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _split(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(
            f"the override {text!r} must read section.key=value, as traversal.concurrency=512"
        )
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return key.strip(), value


def _assign(values: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.get(section)
        if inner is None:
            inner = values[section] = {}
        if not isinstance(inner, dict):
            raise SettingsError(f"the override {key!r} goes into {section!r}, which is no section")
        values = inner
    values[last] = value


def _explain(error: ErrorDetails) -> str:
    # A union's branch ("constrained-float", "literal[...]") is no part of the key.
    parts: list[str] = []
    model: Any = Config
    for part in error["loc"]:
        fields = getattr(model, "model_fields", None)
        if fields is None:
            break
        parts.append(str(part))
        model = fields[str(part)].annotation if str(part) in fields else None
    key = ".".join(parts)
    if "." in key and key in _keys() and error["loc"] == (key,):
        section, _, name = key.partition(".")
        nested = f"{section}: {{{name}: ...}}"
        return f"a settings file holds no dotted keys such as {key!r}; write {nested}"
    if error["type"] == "extra_forbidden":
        return f"unknown setting {key!r}{nearest(key, _keys())}; `asynccfr settings` lists them all"
    if error["type"] == "model_type":
        return f"the setting {key!r} is a section, not a value; set what is in it"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"the setting {key!r} is {_shown(error['input'])}: {message}"


def _shown(value: object) -> str:
    kind = f"of type {type(value).__name__}"
    if not isinstance(value, bool | int | float | str | None):
        return kind
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of many thousand digits.
        return kind
    return text if len(text) <= 60 else kind


def _keys() -> list[str]:
    keys = list(Config.model_fields)
    for name, section in Config.model_fields.items():
        fields: Mapping[str, object] = getattr(section.annotation, "model_fields", {})
        keys += [f"{name}.{field}" for field in fields]
    return keys
