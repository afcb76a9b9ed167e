"""What `pip install` brings: built from a copy of the checkout, installed in a folder of its own, used from another."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEMO_FILES = [file for job in ("control4", "slow4") for file in sorted((ROOT / "tests/data" / job).iterdir())]


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, since setuptools builds in the source folder and packs what an earlier build left there.
    ignored = shutil.ignore_patterns(".*", "bench", "build", "dist", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, folder / "checkout", ignore=ignored)
    pip("wheel", "--no-deps", "--wheel-dir", folder, source)
    return next(folder.glob("annotq-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", folder, wheel)
    return folder


def run_installed(installed: Path, cwd: Path, *arguments: str) -> str:
    """stdout of Python with `installed` before the checkout on its path and `cwd` as the current folder."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    expected = {f"annotq/{name}/py.typed" for name in ("agent", "collector", "cli")}
    for name in ("agent", "collector", "cli"):
        files = [*(ROOT / name).rglob("*.py"), *(ROOT / name).rglob("*.sql")]
        expected |= {f"annotq/{file.relative_to(ROOT)}" for file in files}
    expected |= {f"annotq/demo_data/{file.parent.name}/{file.name}" for file in DEMO_FILES}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert expected - packed == set()
    # The demo's traces only: what else is recorded in tests/data serves tests.
    demo = {name for name in packed if name.startswith("annotq/demo_data/")}
    assert demo - expected == {"annotq/demo_data/__init__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in packed)


def test_installed_copy_finds_its_sql_and_demo_traces(installed: Path, tmp_path: Path) -> None:
    code = """if True:
        from importlib.resources import files
        import annotq.collector
        print(annotq.collector.__file__)
        for folder in ("schema", "views"):
            print(*sorted(file.name for file in (files("annotq.collector") / "sql" / folder).iterdir()))
        for job in ("control4", "slow4"):
            print(*sorted(file.name for file in (files("annotq.demo_data") / job).iterdir()))
    """
    origin, schema, views, *jobs = run_installed(installed, tmp_path, "-c", code).splitlines()
    assert Path(origin).is_relative_to(installed)
    assert {file.name for file in ROOT.glob("collector/sql/schema/*.sql")} <= set(schema.split())
    assert {file.name for file in ROOT.glob("collector/sql/views/*.sql")} <= set(views.split())
    assert [name for job in jobs for name in job.split()] == [file.name for file in DEMO_FILES]


def test_installed_command_shows_the_views(installed: Path, tmp_path: Path) -> None:
    shown = run_installed(installed, tmp_path, str(installed / "bin" / "annotq"), "views")
    assert "region_instances" in shown


def test_installed_command_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    report = run_installed(installed, tmp_path, str(installed / "bin" / "annotq"), "demo", "--db", "demo.duckdb")
    assert "control4" in report and "slow4" in report
