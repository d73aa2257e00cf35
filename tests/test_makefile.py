"""What `make install` would run, with uv and without it, for each build of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
INDEX = "https://example.org/whl"


@pytest.fixture
def planned(tmp_path: Path):
    """Runs `make -n install` in a folder of its own; PATH has what make needs, and uv where it is asked for."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "make", "awk", "env"):
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"there is no {name} here")
        (tools / name).symlink_to(found)
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").write_text("")

    def run(*assignments: str, uv: bool) -> subprocess.CompletedProcess[str]:
        if uv:
            (tools / "uv").symlink_to(tools / "env")
        environment = {**os.environ, "PATH": str(tools)}
        command = ["make", "-n", "install", *assignments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("assignments", "uv", "installs"),
    [
        ((), False, [".venv/bin/python -m pip install --quiet --editable"]),
        ((), True, ["uv pip install --quiet --python .venv/bin/python  --editable"]),
        (("TORCH=cpu",), True, ["uv pip install --quiet --python .venv/bin/python --torch-backend cpu --editable"]),
        (
            (f"TORCH_INDEX={INDEX}",),
            False,
            [
                f".venv/bin/python -m pip install --quiet torch torchvision --index-url '{INDEX}'",
                ".venv/bin/python -m pip install --quiet --editable",
            ],
        ),
    ],
)
def test_the_installer_and_the_build_of_torch(planned, assignments, uv, installs) -> None:
    outcome = planned(*assignments, uv=uv)
    assert outcome.returncode == 0, outcome.stderr
    lines = [line for line in outcome.stdout.splitlines() if "pip install" in line and "--upgrade pip" not in line]
    assert [line.partition(" '.[")[0] for line in lines] == installs
    assert ("uv" in outcome.stdout) == uv


def test_a_build_of_torch_needs_somebody_who_finds_it(planned) -> None:
    outcome = planned("TORCH=cpu", uv=False)
    assert outcome.returncode == 2
    assert "TORCH=cpu needs uv (pip install uv), or TORCH_INDEX=URL of an index with that build" in outcome.stderr
