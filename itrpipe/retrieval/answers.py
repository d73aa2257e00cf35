"""What a search found, and its table for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Mark = Literal["", "own", "true"]
"""`own`: belongs to the query. `true`: does not, but the caption is true of the image all the same."""
MARKS: dict[Mark, str] = {"": " ", "own": "✓", "true": "≈"}
FOLDER = "folder"
"""In the place of a split, where photographs of a folder were searched, which have no captions."""
LONGEST_TEXT = 96
"""Characters of the captions of a line."""


@dataclass(frozen=True)
class Answer:
    """An image or a caption that was found.

    Attributes:
        rank: from 1.
        score: as the model gives it, higher is better.
        image_id: of the image, or of the one that the caption belongs to.
        file: of that image, relative to the root of the source.
        caption_id: of a caption; None of an image.
        texts: the caption, or all of the image.
        mark: whether it is right, where that is known.
    """

    rank: int
    score: float
    image_id: str
    file: str
    caption_id: str | None
    texts: list[str]
    mark: Mark


@dataclass(frozen=True)
class Answers:
    """What a model found in a split.

    Attributes:
        dataset: its name; the path of a folder of photographs.
        run: the trained model, by the name that the user gave it where there is one.
        split: that was searched; `folder` of a folder of photographs.
        finds: `images` or `captions`.
        caption: that images were searched with; None where an image was.
        image_id: that was searched with, or the path of a photograph; None where a caption was.
        image_split: of that image, or `photograph`.
        searched: how many images or captions there are.
        unknown: words of the caption that the model does not know.
        answers: best first.
    """

    dataset: str
    run: str
    split: str
    finds: Literal["images", "captions"]
    caption: str | None
    image_id: str | None
    image_split: str | None
    searched: int
    unknown: list[str]
    answers: list[Answer]

    @property
    def of_folder(self) -> bool:
        """Whether photographs without captions were searched."""
        return self.split == FOLDER

    @property
    def title(self) -> str:
        """What was asked for, in words."""
        if self.caption is not None:
            return f"“{self.caption}”"
        return f"Photographs like {self.image_id}" if self.of_folder else f"Captions for {self.image_id}"

    @property
    def how(self) -> str:
        """What was ranked by which model, in words."""
        what = "photographs" if self.of_folder else f"{self.split} {self.finds}"
        return f"{self.searched:,} {what} ranked by {self.run}"


def lines(found: Answers) -> Iterator[str]:
    """The table, a line for each answer."""
    if found.of_folder:
        yield f"  {'rank':>4} {'score':>8}    photograph"
        yield from (f"  {each.rank:>4} {each.score:>8.3f}    {each.file}" for each in found.answers)
        return
    width = max((len(_name(each)) for each in found.answers), default=0)
    same = all(each.image_id == each.file for each in found.answers)  # then the file is not said again
    titles = f"{'image' if found.finds == 'images' else 'caption':<{width}}"
    told = "text" if found.finds != "images" else "captions" if same else "file, captions"
    yield f"  {'rank':>4} {'score':>8}    {titles}  {told}"
    for each in found.answers:
        text = textwrap.shorten(" · ".join(each.texts), LONGEST_TEXT, placeholder=" …")
        shown = f"{each.file}  {text}" if found.finds == "images" and not same else text
        yield f"  {each.rank:>4} {each.score:>8.3f}  {MARKS[each.mark]} {_name(each):<{width}}  {shown}"
    said: dict[Mark, str] = {"own": "belongs to the query", "true": "true as well, though it belongs to another"}
    if marks := [f"{MARKS[mark]} {said[mark]}" for mark in said if any(each.mark == mark for each in found.answers)]:
        yield f"  {', '.join(marks)}"


def _name(answer: Answer) -> str:
    return answer.caption_id or answer.image_id
