"""Draws `docs/judges.svg`: how far judges and published metrics agree with people (Flickr8k's experts).

.venv/bin/python docs/judges.py FOLDER captions:ID
"""

from __future__ import annotations

import sys
from pathlib import Path

from itrpipe.analysis.questions.judgements import compare_judges

PICTURE = Path(__file__).with_name("judges.svg")
PUBLISHED = {"SPICE": 44.9, "CLIPScore": 51.2, "RefCLIPScore": 53.0, "Polos": 56.4}
"""Metric -> 100 times Kendall's tau of experts, of the whole set."""
OURS, OTHERS, INK = "#0969da", "#8c959f", "#1f2328"
_LEFT, _ROW, _SCALE = 250, 28, 6.0
"""Pixels in front of the bars, of a row, and of one point."""


def bars(folder: str, captions: str) -> list[tuple[str, float, str]]:
    """Return title, 100 times Kendall's tau and colour of each bar, the longest first."""
    found = [(f"{name} (published)", tau, OTHERS) for name, tau in PUBLISHED.items()]
    for judge, title in ((captions, "captions (MiniLM)"), ("captions:tfidf", "captions:tfidf"), ("graphs", "graphs")):
        figures = compare_judges(folder, [judge], "cpu")[judge]
        found.append((title, figures["experts"]["tau"], OURS))
    return sorted(found, key=lambda bar: -bar[1])


def draw(rows: list[tuple[str, float, str]]) -> str:
    """Return the picture: a bar for each row, with its number behind it."""
    height = _ROW * len(rows) + 44
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="680" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-weight="bold" fill="{INK}">Agreement with people: 100 times Kendall\'s τc</text>',
    ]
    for number, (title, value, colour) in enumerate(rows):
        top = 38 + number * _ROW
        width = value * _SCALE
        lines.append(f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end" fill="{INK}">{title}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{top}" width="{width:.0f}" height="20" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + width + 6:.0f}" y="{top + 15}" fill="{INK}">{value:.1f}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    _, folder, captions = sys.argv
    PICTURE.write_text(draw(bars(folder, captions)), encoding="utf-8")
