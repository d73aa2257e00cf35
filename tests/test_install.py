"""What installs itrpipe says the same: pyproject.toml, the page of docs, the images and the development container."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
if not (ROOT / "Dockerfile").exists():
    pytest.skip("these tests do not run from a checkout", allow_module_level=True)
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of every instruction of the Dockerfile."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> dict[str, str]:
    """Stage -> what it is made from."""
    return {rest.split()[2]: rest.split()[0] for name, rest in instructions() if name == "FROM"}


def copied() -> list[str]:
    """Files and folders of the checkout that the Dockerfile copies."""
    given = [shlex.split(rest) for name, rest in instructions() if name == "COPY"]
    return [source for words in given if not words[0].startswith("--from") for source in words[:-1]]


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path at the top of the checkout from a build; its last rule that fits decides."""
    rules = [line for line in IGNORED if line and not line.startswith("#")]
    fitting = [rule for rule in rules if fnmatch.fnmatch(path, rule.removeprefix("!"))]
    return bool(fitting) and not fitting[-1].startswith("!")


def test_the_page_lists_every_extra() -> None:
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) == sorted(PROJECT["optional-dependencies"])


def test_the_image_has_a_python_and_extras_that_there_are() -> None:
    (python,) = re.findall(r"^ARG PYTHON=(.+)$", DOCKERFILE, re.MULTILINE)
    assert python in SpecifierSet(PROJECT["requires-python"])
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    extras = re.findall(r"--extra (\S+)", DOCKERFILE)
    assert {"cpu", "gpu"} <= set(extras) <= PROJECT["optional-dependencies"].keys()


def test_the_image_is_made_from_what_the_wheel_needs() -> None:
    build = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *build["packages"]}
    assert set(copied()) == needed | build["force-include"].keys()
    assert not [each for each in copied() if not (ROOT / each).exists() or is_ignored(each)]
    assert is_ignored("data")


def test_both_targets_run_the_command_as_a_plain_user_and_the_development_container_is_one() -> None:
    made_from, asked = stages(), re.findall(r"docker build --target (\w+)", PAGE)
    assert asked == ["cpu", "cuda"]
    assert all(made_from[target] == "runtime" for target in asked)
    assert list(made_from)[-1] == "cpu"  # of `docker build .`
    assert [rest for name, rest in instructions() if name == "USER"] == ["1000"] * 3
    assert {("ENTRYPOINT", '["itrpipe"]'), ("WORKDIR", "/data")} <= set(instructions())
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert container["build"]["target"] in made_from
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
