"""Explain which words of a caption do not belong to an image."""

from dataclasses import dataclass
from typing import Annotated, Any

from rich.text import Text as Coloured
from typer import Option

from itrpipe.cli.options import AskingOptions, JsonOption, MethodOption
from itrpipe.errors import UsageError
from itrpipe.progress import Reporter

_TONES = ("", "black on #fbe8d6", "black on #f9d3ad", "black on #f6bd84", "bold black on #f2a65a")
"""From a word that belongs to the image to one that does not: one hue, from light to dark."""


@dataclass(kw_only=True)
class Explain(AskingOptions):
    """Show which words of a caption do not belong to an image, and what belongs there.

    Words are coloured by the probability that they do not match the image; those above one half carry their number and
    are replaced in the corrected sentence. The match is the probability that the whole sentence belongs to the image.
    This takes a model that learned to discriminate and correct words: tags-dc. An image is named by its id or file; a
    photograph that is no part of the dataset is read by the extractor of the dataset's features.

    Example: itrpipe explain --image test-000000 --caption "a cat on a red roof"
    """

    method: MethodOption = "tags-dc"
    image: Annotated[str, Option(metavar="ID|FILE", help="Image of the dataset, or a photograph.")]
    caption: Annotated[str, Option(help="Any sentence.")]
    as_json: JsonOption = False

    def run(self) -> None:
        from itrpipe.analysis.words import trains_word_heads
        from itrpipe.search.explanation import explain

        asked = self.asked("train", as_json=self.as_json)
        step = asked.plan("train", self.method)
        if not trains_word_heads(step.settings.model_dump()):
            raise UsageError(
                f"{asked.label} does not learn which words are wrong: its loss has no weight_discrimination above 0; "
                "explain a run of --method tags-dc"
            )
        made = asked.made("explain")
        if not made:
            return
        found = explain(made[0].folder, made[0].manifest.label, self.image, self.caption, asked.device)
        if self.as_json:
            Reporter().say_json({"dataset": self.dataset, **found})
            return
        reporter, words = asked.reporter, found["words"]
        match = f"  match      {found['score']:.2f}"
        reporter.say(f"{found['image_id']} ({found['split']}), {found['run']}", style="bold")
        reporter.console.print(Coloured("  caption    ").append_text(coloured(found["caption"], words)))
        if not any(word["flagged"] for word in words):
            reporter.say("  corrected  nothing: no word is more likely wrong than right")
        elif found["corrected_score"] is not None:
            reporter.say(f"  corrected  {found['corrected']}")
            match += f", corrected {found['corrected_score']:.2f}"
        reporter.say(match)
        unknown = [word["text"] for word in words if not word["known"]]
        if unknown:
            reporter.say(f"  unknown    {', '.join(unknown)}: not among the words that the model knows", style="yellow")


def coloured(caption: str, words: list[dict[str, Any]]) -> Coloured:
    """Colour the words of a caption by their probability of a mismatch, with the number behind flagged ones."""
    text, done = Coloured(), 0
    for word in words:
        tone = min(len(_TONES) - 1, int(word["mismatch"] * len(_TONES)))
        text.append(caption[done : word["start"]])
        text.append(word["text"], style=_TONES[tone])
        if word["flagged"]:
            text.append(f" ({word['mismatch']:.2f})")
        done = word["end"]
    return text.append(caption[done:])
