"""Configurations in files: an experiment in Python, and the JSON that a run keeps."""

import dataclasses
import importlib.util
import inspect
import json
import sys
import traceback
import typing
from collections.abc import Callable
from pathlib import Path

from transformer_jax.config import Config
from transformer_jax.errors import UserError


def load_experiment(name: str) -> Config:
    """Runs the experiment file of `FILE` or `FILE:VARIANT` and returns what its function gives.

    That is `get_config()`, or `get_config(variant)` with the text after the colon, where there is
    one. Raises UserError where the file is missing, fails, or has no such function.
    """
    path, variant = _split_variant(name)
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{path}: no such experiment file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        get_config = getattr(module, "get_config", None)
        if not callable(get_config):
            raise UserError("an experiment file must define get_config() -> Config")
        _check_call(get_config, variant)
        config = get_config(*variant)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise UserError(f"{error.filename or file}{line}: {error.msg}") from None
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        raise UserError(f"{line.filename}, line {line.lineno}: {kind}: {error}") from None
    if not isinstance(config, Config):
        raise UserError(f"{file}: get_config() returned {type(config).__name__}, not Config")
    return config


def _check_call(get_config: Callable, variant: list[str]) -> None:
    try:
        inspect.signature(get_config).bind(*variant)
    except TypeError:
        call = f"get_config({', '.join(map(repr, variant))})"
        raise UserError(
            f"{call} does not fit its parameters: FILE calls it with none, FILE:VARIANT with one"
        ) from None


def _split_variant(name: str) -> tuple[str, list[str]]:
    """The path, and the variant where one is given; a file whose name has a colon is a file."""
    path, colon, variant = name.rpartition(":")
    if not colon or Path(name).expanduser().is_file():
        return name, []
    return path, [variant]


def to_json(config: Config) -> str:
    """The configuration as indented JSON text, one field a line."""
    return json.dumps(dataclasses.asdict(config), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, where: str) -> Config:
    """The configuration that `to_json` wrote.

    Raises UserError, naming `where`, for JSON that is broken, an unknown field, or a value of
    the wrong type.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}, line {error.lineno}: not JSON ({error.msg})") from None
    return _build(Config, values, where, "")


def _build(cls: type, values: object, where: str, section: str) -> typing.Any:
    if not isinstance(values, dict):
        raise UserError(f"{where}: {section or 'the file'} must be an object of named values")
    hints = typing.get_type_hints(cls)
    built = {}
    for name, value in values.items():
        path = f"{section}.{name}" if section else name
        if name not in hints:
            raise UserError(f"{where}: unknown field {path}; known here: {', '.join(hints)}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = _build(hint, value, where, path)
        else:
            built[name] = _from_json_value(hint, value)
    try:
        return cls(**built)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _from_json_value(hint: typing.Any, value: typing.Any) -> typing.Any:
    """Undoes what JSON does to tuples and to whole floats; the section checks the rest."""
    if hint == tuple[str, ...] and isinstance(value, list):
        return tuple(value) if all(isinstance(text, str) for text in value) else value
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    return value
