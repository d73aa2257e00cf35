"""What `make install` would run, with uv and without it, for each build of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
INDEX = "https://example.org/whl"


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
        (("TORCH=cpu",), False, []),
    ],
)
def test_the_installer_and_the_build_of_torch(
    tmp_path: Path, assignments: tuple[str, ...], uv: bool, installs: list[str]
) -> None:
    """PATH has what make needs, and uv where it is asked for."""
    for name in ("sh", "make", "awk", "env"):
        if (found := shutil.which(name)) is None:
            pytest.skip(f"there is no {name} here")
        (tmp_path / name).symlink_to(found)
    if uv:
        (tmp_path / "uv").symlink_to(tmp_path / "env")
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    command, environment = ["make", "-n", "install", *assignments], {**os.environ, "PATH": str(tmp_path)}
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in outcome.stdout.splitlines() if "pip install" in line and "--upgrade pip" not in line]
    assert [line.partition(" '.[")[0] for line in lines] == installs
    assert (outcome.returncode, "TORCH=cpu needs uv" in outcome.stderr) == ((0, False) if installs else (2, True))
