"""layers.toml is kept: who imports whom, and who imports heavy packages when it is loaded."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "weighbridge"
RULES = tomllib.loads((ROOT / "layers.toml").read_text(encoding="utf-8"))
STARTUP = "weigh.startup"  # runs before the package can be imported


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_name(path): path
    for path in sorted(SOURCE.rglob("*.py"))
    if "mechanisms" not in path.parts and path != SOURCE / "__init__.py"
}


def imports(path: Path, *, at_load: bool) -> Iterator[str]:
    """Absolute names that a module imports; with `at_load` only those outside functions; none for types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if at_load and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def layer_of(module: str) -> str | None:
    for name, layer in RULES["layers"].items():
        if any(module == member or module.startswith(member + ".") for member in layer["modules"]):
            return str(name)
    return None


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(STARTUP)])
def test_module_keeps_to_its_layer(module: str) -> None:
    layer = layer_of(module)
    assert layer is not None, f"{module} is in no layer of layers.toml"
    allowed = {layer, *RULES["layers"][layer]["may"]}
    for name in imports(MODULES[module], at_load=False):
        if not name.startswith("weighbridge."):
            continue
        target = layer_of(name.removeprefix("weighbridge."))
        assert target in allowed or name in ("weighbridge.__version__",), (
            f"{module} ({layer}) imports {name} ({target})"
        )


@pytest.mark.parametrize("package", RULES["outside"])
def test_heavy_package_is_imported_only_where_it_may_be(package: str) -> None:
    found = {
        module
        for module, path in MODULES.items()
        if any(name.split(".")[0] == package for name in imports(path, at_load=True))
    }
    assert found <= set(RULES["outside"][package])


def test_start_up_needs_the_standard_library_only() -> None:
    import sys

    for module, path in MODULES.items():
        if module.startswith(STARTUP) or module == "weigh.imports":
            outside = {name.split(".")[0] for name in imports(path, at_load=True)} - set(sys.stdlib_module_names)
            assert outside <= {"__future__", "weighbridge_startup_of_weighed_command"}, module
