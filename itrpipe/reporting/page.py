"""The HTML page: one file that needs no script, no network and no server."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined

from itrpipe.printable import printable_lines
from itrpipe.progress import PEAK_MEMORY
from itrpipe.reporting.collect import DIRECTIONS
from itrpipe.reporting.comparisons import MINUS
from itrpipe.reporting.content import Content
from itrpipe.reporting.plots import MOST_PANELS
from itrpipe.reporting.tables import DASH, duration

TEMPLATE = "page.html.j2"


def render(content: Content) -> str:
    """The page. Whatever comes from a dataset is escaped; only the drawings of `plots` are taken as they are."""
    environment = page_environment()
    environment.filters |= {"seconds": duration, "memory": memory}
    return environment.get_template(TEMPLATE).render(
        report=content,
        directions=DIRECTIONS,
        most_panels=MOST_PANELS,
        peak_memory=PEAK_MEMORY,
    )


def page_environment() -> Environment:
    """What renders pages: every value is escaped, and characters that would turn the text around it are written out."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": score, "percent": percent}
    numbers = itertools.count(1)
    environment.globals["numbered"] = lambda: f"photo-{next(numbers)}"  # what links to an opened photograph lead to
    return environment


def _shown(value: Any) -> Any:
    """A value as `printable_lines`; what is safe HTML stays safe HTML."""
    return type(value)(printable_lines(value)) if isinstance(value, str) else value


def score(value: float, digits: int = 3) -> str:
    """A similarity with a real minus; zero has none."""
    text = f"{abs(value):.{digits}f}"
    return f"{MINUS}{text}" if value < 0 and float(text) else text


def percent(share: float) -> str:
    """A share of 1 in percent, without digits that an estimate does not have; the ends are only reached exactly."""
    if 0 < share < 0.01:
        return "< 1 %"
    if 0.99 < share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"


def memory(gib: float | Undefined) -> str:
    """Memory in GiB; older artifacts did not record theirs."""
    return DASH if isinstance(gib, Undefined) else f"{gib:.2f} GiB"
