"""Imports go one way, and nothing heavy is imported before it is needed."""

import ast
import configparser
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import transformer_jax

PACKAGE = Path(transformer_jax.__file__).parent

# Leftmost first: a module imports from groups before its own, and from its own what stands before
# it. A new module gets its place here.
ORDER = [
    ["errors", "console", "config_checks", "config_data", "config"],
    ["presets", "experiment", "array_types"],
    ["distributed", "chips", "hlo", "host_memory", "compilation_cache"],
    ["data.text", "data.cldr", "data.tfds_source", "data.download", "data.multi30k"],
    ["data.sources", "data.tokenizer", "data.sampling", "data.token_store", "data.corpus"],
    ["data.signals", "data.findings", "data.inspection"],
    ["page", "data.inspection_report", "inspection_page"],
    ["data.resampling", "data.batch_plan", "data.loader"],
    ["sharding"],
    ["model.masks", "model.layers", "model.attention", "model.transformer"],
    ["convert"],
    ["loss", "optimizer"],
    ["train_step"],
    ["checkpoint"],
    ["run_directory", "metrics", "results"],
    ["decode_loop", "decode", "decode_sampling"],
    ["translate", "alignment", "scoring"],
    ["moses", "evaluate", "comet", "significance", "test_sets"],
    ["prepare", "loading"],
    ["sentences", "report", "report_page"],
    ["train", "compile"],
    ["commands.shared", "commands.systems", "commands.comparison", "commands.sweep"],
    ["commands.evaluate", "commands.train", "commands.average"],
    ["commands.streams", "commands.translate", "commands.score"],
    ["commands.compile", "commands.inspect", "commands.report"],
    ["__main__"],
]


def module_files() -> dict[str, Path]:
    """The modules by their name in the package; `__init__` files have their package's."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        files[".".join(part for part in parts if part != "__init__")] = path
    return files


FILES = module_files()
MODULES = [name for name, path in FILES.items() if path.name != "__init__.py"]


def imports(source: str, name: str) -> Iterator[str]:
    """Every module that a module imports, inside functions too, by its full name.

    Of `from a import b` the name is `a.b`, which is a module, or a thing in the module `a`.
    """
    package = ["transformer_jax", *name.split(".")][:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def own_imports(source: str, name: str) -> set[str]:
    """The modules of the package that a module imports, without the package's name."""
    found = set()
    for imported in imports(source, name):
        top, _, inner = imported.partition(".")
        if top != "transformer_jax":
            continue
        if inner not in FILES:
            inner = inner.rpartition(".")[0]
        found.add(inner)
    return found


def source_of(name: str) -> str:
    return FILES[name].read_text(encoding="utf-8")


def allowed(name: str) -> set[str]:
    """The modules to the left of a module."""
    names = [one for group in ORDER for one in group]
    return set(names[: names.index(name)])


def test_every_module_has_a_place() -> None:
    names = [name for group in ORDER for name in group]
    assert sorted(names) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name: str) -> None:
    upward = own_imports(source_of(name), name) - allowed(name)
    assert not upward, f"{name} imports {sorted(upward)}, not to its left"


@pytest.mark.parametrize("name", [name for name in FILES if name not in MODULES])
def test_packages_import_nothing(name: str) -> None:
    """What is imported with any of a package's modules is imported always."""
    later = ("def ", "if TYPE_CHECKING:")
    statements = map(ast.unparse, ast.parse(source_of(name)).body)
    at_once = "\n".join(text for text in statements if not text.startswith(later))
    assert set(imports(at_once, name)) <= {"typing.TYPE_CHECKING"}


def test_imports_of_every_form_are_seen() -> None:
    source = """
import os, transformer_jax.train
from transformer_jax import sharding
from transformer_jax.data import text as t
from transformer_jax.data.corpus import TokenStore
from . import loader
from .. import decode
from ..model.layers import dense
if TYPE_CHECKING:
    from transformer_jax import loading
def f():
    from transformer_jax.metrics import MetricsLog
    class A:
        import transformer_jax.loss as loss
"""
    assert own_imports(source, "data.tokenizer") == {
        "train",
        "sharding",
        "data.text",
        "data.corpus",
        "data.loader",
        "decode",
        "model.layers",
        "loading",
        "metrics",
        "loss",
    }


def test_the_data_and_the_decoder_know_no_model() -> None:
    """Two of the lines that the order draws, spelled out."""
    models = {name for name in MODULES if name.startswith("model.")}
    for name in ("data.corpus", "data.loader", "decode", "evaluate"):
        assert not own_imports(source_of(name), name) & models
    assert "evaluate" not in own_imports(source_of("train"), "train")


def uses_linen(name: str) -> bool:
    """By an import, or as an attribute of `flax`."""
    source = source_of(name)
    attributes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return any(f"{one}.".startswith("flax.linen.") for one in imports(source, name)) or any(
        ast.unparse(node) == "flax.linen" for node in attributes
    )


def test_only_the_model_and_sharding_import_linen() -> None:
    with_linen = {name for name in FILES if uses_linen(name)}
    assert "model.transformer" in with_linen
    assert {name for name in with_linen if not name.startswith("model.")} <= {"sharding"}


def test_no_module_imports_tensorflow_or_torch() -> None:
    """G01."""
    for name in FILES:
        tops = {imported.partition(".")[0] for imported in imports(source_of(name), name)}
        assert not tops & {"tensorflow", "torch"}, name


def test_g03_what_computes_is_bounded_from_below_and_above() -> None:
    """And the versions in use, which the tests run with, are within the bounds."""
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg", encoding="utf-8")
    requirements = list(map(Requirement, setup["options"]["install_requires"].split("\n")[1:]))
    for one in requirements:
        operators = {specifier.operator for specifier in one.specifier}
        assert ">=" in operators, one
        assert one.specifier.contains(version(one.name)), one
        if one.name in ("jax", "flax", "optax", "orbax-checkpoint", "grain", "sentencepiece"):
            assert operators == {">=", "<"}, one


def test_g03_a_deprecated_call_of_this_package_is_an_error() -> None:
    with pytest.raises(DeprecationWarning, match="old name"):
        warnings.warn_explicit("old name", DeprecationWarning, "x.py", 1, "transformer_jax.train")


def imported_by(program: str, path: Path) -> set[str]:
    """The top-level names in sys.modules after a program, with `path` first on the path."""
    program += "\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(path), str(PACKAGE.parent)]),
        "JAX_PLATFORMS": "cpu",
    }
    output = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=path,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return {name.partition(".")[0] for name in json.loads(output.splitlines()[-1])}


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A folder of packages that are empty, so that importing them is seen where none is there."""
    for name in ("tensorflow", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_bytes(b"")
    assert {"tensorflow", "torch"} <= imported_by("import tensorflow, torch", tmp_path)
    return tmp_path


def test_the_command_line_starts_without_jax(stand_ins: Path) -> None:
    imported = imported_by("import transformer_jax.__main__", stand_ins)
    assert "transformer_jax" in imported
    assert not imported & {"jax", "flax", "tensorflow", "torch"}


def test_text_is_looked_at_without_jax(stand_ins: Path) -> None:
    imported = imported_by("import transformer_jax.prepare", stand_ins)
    assert not imported & {"jax", "flax", "tensorflow", "torch"}


@pytest.mark.parametrize(
    "command",
    ["", "train", "translate", "score", "evaluate", "average", "report", "inspect", "compile"],
)
def test_help_needs_no_jax(stand_ins: Path, command: str) -> None:
    program = f"""
from transformer_jax.__main__ import main
try:
    status = main({command.split()} + ["--help"])
except SystemExit as exit:
    status = exit.code
assert not status, status
"""
    heavy = {"jax", "flax", "tensorflow", "torch", "tensorflow_datasets", "grain", "plotly"}
    assert not imported_by(program, stand_ins) & heavy


def test_the_package_needs_neither_tensorflow_nor_torch(stand_ins: Path) -> None:
    """G01; tensorboardX takes torch where it finds it, so torch is hidden, and only not needed."""
    names = ["transformer_jax", *(f"transformer_jax.{name}" for name in MODULES)]
    program = "import sys\nsys.modules['torch'] = None\nimport " + ", ".join(names)
    imported = imported_by(program, stand_ins)
    assert {"jax", "flax", "transformer_jax"} <= imported
    assert "tensorflow" not in imported
