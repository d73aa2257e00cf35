"""The built wheel runs without the checkout: declarations and weights travel inside."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import itrpipe
from itrpipe.config import stages_folder

pytestmark = pytest.mark.slow

CHECKOUT = Path(itrpipe.__file__).parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    if not (CHECKOUT / "pyproject.toml").exists():
        pytest.skip("these tests do not run from a checkout")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    subprocess.run(command, capture_output=True, check=True)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Runs Python code with the installed package, from an empty folder."""

    def execute(code: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-c", code, *arguments]
        options = {"cwd": tmp_path, "env": environment, "input": given, "timeout": 240}
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    return execute


MAIN = "from itrpipe.cli import main; main()"


def test_everything_that_is_not_code_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    stages = {f"itrpipe/_stages/{path.relative_to(stages_folder())}" for path in stages_folder().rglob("*.toml")}
    package = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "itrpipe").rglob("*") if path.is_file()}
    assert stages <= names
    assert {name for name in package if "__pycache__" not in name} <= names
    assert not [name for name in names if not name.startswith(("itrpipe/", "itrpipe-"))]


def test_commands_run_from_another_folder(run: Run, installed: Path, tmp_path: Path) -> None:
    done = run("import itrpipe.config as c; print(c.__file__, c.stages_folder())")
    assert done.stdout.split() == [str(installed / "itrpipe" / "config.py"), str(installed / "itrpipe" / "_stages")]
    done = run(MAIN, "prepare", "--train", "8", "--val", "4", "--test", "4")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("data/scenes/prepare/scenes-*/images/**/*.*"))) == 16
    assert "itrpipe" in {path.name for path in (installed / "bin").iterdir()}


PHOTOGRAPHS = """
import csv, pathlib, sys
from PIL import Image
from itrpipe.cli import main

sys.modules.update(dict.fromkeys(%r))  # what extras install
pathlib.Path("photos").mkdir()
with open("photos/captions.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(("file", "caption"))
    for number in range(40):
        colour = ("red", "green", "blue", "yellow")[number %% 4]
        Image.new("RGB", (40 + number, 32), colour).save(f"photos/{number}.png")
        rows.writerows([(f"{number}.png", f"a {colour} wall"), (f"{number}.png", f"wall number {number} is {colour}")])
for command in sys.stdin.read().splitlines():
    sys.argv = ["itrpipe", *command.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
EXTRAS = ("faiss", "eccv_caption", "msgpack", "lz4", "lmdb", "peft", "tensorboard", "ray", "starlette", "uvicorn")
COMMANDS = """list methods
demo --dry-run
prepare --dataset mine --source photos
train --name small --dataset mine --backbone dual-encoder --vision random --text random \
 --set train.model.image_size=[32,32] --set train.model.patch_size=8 --set train.model.width=32 \
 --set train.model.heads=2 --set train.model.vision_layers=1 --set train.model.text_layers=1 --set train.epochs=1 \
 --set train.batch_size=16 --set train.min_word_count=1
evaluate --model small
search wall --model small --html found.html
parse --dataset mine
export --model small --to exported
report --dataset mine
"""


def test_photographs_are_searched_and_reported_without_extras(run: Run, tmp_path: Path) -> None:
    done = run(PHOTOGRAPHS % (EXTRAS,), given=COMMANDS)
    assert done.returncode == 0, done.stdout + done.stderr
    made = ("found.html", "exported/README.md", "data/mine/report/*/index.html")
    assert all(list(tmp_path.glob(name)) for name in made)
