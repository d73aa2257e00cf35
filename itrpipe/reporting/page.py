"""The HTML page: one file that needs no script, no network and no server."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from itrpipe.reporting.collect import DIRECTIONS
from itrpipe.reporting.comparisons import MINUS
from itrpipe.reporting.content import Content
from itrpipe.reporting.mined import QUANTILES, TOPS

TEMPLATE = "page.html.j2"


def render(content: Content) -> str:
    """The page. Whatever comes from a dataset is escaped; only the drawings of `plots` are taken as they are."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds, "score": score}
    template = environment.get_template(TEMPLATE)
    return template.render(report=content, directions=DIRECTIONS, quantiles=QUANTILES, tops=TOPS)


def seconds(value: float) -> str:
    """A duration: `0.23 s`, `48.5 s`, `12 min 05 s` or `3 h 20 min`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def score(value: float) -> str:
    """A similarity with three digits and a real minus; zero has none."""
    text = f"{abs(value):.3f}"
    return f"{MINUS}{text}" if value < 0 and float(text) else text
