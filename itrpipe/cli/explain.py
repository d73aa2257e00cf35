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

        request = self.request("train", as_json=self.as_json)
        step = request.plan("train", self.method)
        if not trains_word_heads(step.settings.model_dump()):
            raise UsageError(
                f"{request.label} does not learn which words are wrong: its loss has no weight_discrimination above 0; "
                "explain a run of --method tags-dc"
            )
        made = request.made("explain")
        if not made:
            return
        explanation = explain(made[0].folder, made[0].manifest.label, self.image, self.caption, request.device)
        if self.as_json:
            Reporter().say_json({"dataset": self.dataset, **explanation})
            return
        reporter = request.reporter
        words = explanation["words"]
        match = f"  match      {explanation['score']:.2f}"
        reporter.say(f"{explanation['image_id']} ({explanation['split']}), {explanation['run']}", style="bold")
        reporter.console.print(Coloured("  caption    ").append_text(coloured(explanation["caption"], words)))
        if not any(word["flagged"] for word in words):
            reporter.say("  corrected  nothing: no word is more likely wrong than right")
        elif explanation["corrected_score"] is not None:
            reporter.say(f"  corrected  {explanation['corrected']}")
            match += f", corrected {explanation['corrected_score']:.2f}"
        reporter.say(match)
        unknown = [word["text"] for word in words if not word["known"]]
        if unknown:
            reporter.say(f"  unknown    {', '.join(unknown)}: not among the words that the model knows", style="yellow")


def coloured(caption: str, words: list[dict[str, Any]]) -> Coloured:
    """Colour the words of a caption by their probability of a mismatch, with the number behind flagged ones."""
    text = Coloured()
    done = 0
    for word in words:
        tone = min(len(_TONES) - 1, int(word["mismatch"] * len(_TONES)))
        text.append(caption[done : word["start"]])
        text.append(word["text"], style=_TONES[tone])
        if word["flagged"]:
            text.append(f" ({word['mismatch']:.2f})")
        done = word["end"]
    return text.append(caption[done:])
