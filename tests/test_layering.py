"""Who may import whom: the agent stands alone, the collector does not know the command line, and the training process
loads nothing but the standard library and torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"agent": {"collector", "cli"}, "collector": {"cli"}}


def imported_modules(source: str, package: str) -> set[str]:
    """Full names of everything `source`, a module of `package`, imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parent, *filter(None, [node.module])])
            names |= {f"{origin}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_stay_in_their_layer(folder: str) -> None:
    wrong = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        package = ".".join(["annotq", *file.parent.relative_to(ROOT).parts])
        for name in imported_modules(file.read_text(), package):
            if name.split(".")[0] == "annotq" and name.split(".")[1] in FORBIDDEN[folder]:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "import annotq.cli.main",
        "from annotq import cli",
        "from annotq.cli import main",
        "from ..cli import main",
        "from .. import cli",
        "def late():\n    from annotq.cli.main import app",
    ],
)
def test_every_way_to_import_is_seen(source: str) -> None:
    assert any(name.startswith("annotq.cli") for name in imported_modules(source, "annotq.agent"))


def test_training_process_loads_only_the_standard_library_and_torch() -> None:
    code = (
        "import sys; before = set(sys.modules); import annotq.agent;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(loaded.stdout.split())
    # torch brings packages of its own, numpy among them; without torch there is nothing to excuse.
    allowed = names - {"duckdb", "google", "grpc", "msgspec", "pyarrow"} if "torch" in names else {"annotq"}
    assert names <= allowed
