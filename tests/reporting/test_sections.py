"""What every section of the page says of itself."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest
from itrpipe.reporting.sections.base import sections

from itrpipe.storage import artifact as files

FOUND = sections()
KNOWN = {name: value for name, value in vars(files).items() if name.isupper()}


def test_they_have_an_order_and_different_titles() -> None:
    orders = [section.ORDER for section in FOUND.values()]
    assert orders == sorted(set(orders))
    assert len({section.TITLE for section in FOUND.values()}) == len(FOUND) > 15


def used_in(path: Path) -> set[str]:
    """Names that the code of a section uses, but for where it says what it reads."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    code = [each for each in body if not (isinstance(each, ast.Assign) and "READS" in ast.unparse(each.targets[0]))]
    return {each.id for part in code for each in ast.walk(part) if isinstance(each, ast.Name)}


@pytest.mark.parametrize(("name", "section"), FOUND.items(), ids=list(FOUND))
def test_it_names_the_files_that_it_reads_and_has_its_template_beside_it(name: str, section: ModuleType) -> None:
    path = Path(str(section.__file__))
    assert path.with_name(f"{name}.html.j2").is_file()
    assert set(section.READS) <= set(KNOWN.values())
    assert set(section.READS) == {KNOWN[each] for each in used_in(path) & set(KNOWN)}
