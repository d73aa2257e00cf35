"""A report as plain text for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.chance import random_recalls
from itrpipe.evaluation.claims import Difference, excludes_zero
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.comparisons import RECALLS, interval_text, signed
from itrpipe.reporting.content import Content
from itrpipe.reporting.departures import listed
from itrpipe.reporting.groups import AcrossSeeds, Group
from itrpipe.reporting.matching import MEASURES, NEGATIVES, MatchingScores
from itrpipe.reporting.sections.benchmarks.section import figures_of, row_title
from itrpipe.reporting.sections.discrimination.section import generator_title
from itrpipe.reporting.sections.mined.section import Mined
from itrpipe.reporting.sections.second_round.section import SecondRound
from itrpipe.reporting.sections.wrong_words.section import figure_of
from itrpipe.reporting.seeds import SeedComparison, SeedScores
from itrpipe.reporting.tables import DASH, FULL, ORACLE, Table, duration
from itrpipe.reporting.titles import model_title
from itrpipe.storage.artifact import BENCHMARKS, DISCRIMINATION, MATCHING, WORDS

WIDTH = 80
"""Columns of a terminal that no line exceeds."""
DEPARTS = "\N{DAGGER}"
"""Behind the name of a run whose settings are not all as declared."""
_NAME, _NUMBER, _RSUM = 24, 6, 7
_DIFFERENCE_NAME, _DIFFERENCE = 13, 7
_MEAN_NAME, _DEVIATION, _COST = 17, 7, 13
_REFERENCE_NAME, _GENERATOR_NAME = 28, 52
_MEASURE, _PRECISION, _WORD_NUMBER = 8, 12, 9
_LISTED = 3
"""Settings of a run that are named; the page lists more."""
_RULE = "-" * WIDTH
_WORDS = {
    "all": "all",
    "matching": "own",
    "mismatching": "wrong",
    "correction": "wrong",
    "correction_masked": "masked",
    "below_caption": "caption",
}
"""Columns of the table of words, below `_WORD_SPANS`."""
_WORD_SPANS = {"rightly judged": 3, "corrected": 2, "below": 1}
_WORD_MEANING = (
    "The model masked captions and filled the gaps itself, so it is known which words are wrong. Rightly judged: the "
    "caption's own words that it accepts, and wrong ones that it objects to. Corrected: wrong words, and masked ones "
    "whether wrong or not, in whose place it suggests the caption's word. Below caption: sentences that it scores "
    "below the caption they were made of."
)


def text(content: Content) -> str:
    """The tables of results and differences with what they allow to say."""
    lines = wrapped(content.title)
    for group in content.groups:
        lines += ["", *wrapped(group.description), "", *wrapped(group.overview.answer)]
        lines += [*_results(group), *_departures(group)]
        concluded = ["", *wrapped(group.conclusion)] if group.conclusion else []
        lines += [*_differences(group, content.level), *concluded, *_sentence(group.epochs)]
        lines += _across_seeds(group.seeds, content.level) if group.seeds else []
        lines += [*_matching(group.matching.scores), *_words(group.runs), *_discrimination(group.runs)]
        lines += _benchmarks(group.runs)
    return "\n".join([*lines, *_mined(content.view("mined")), *_advised(content.view("second_round"))]) + "\n"


def _mined(mined: Mined | None) -> list[str]:
    """How many of the hardest candidates are correct matches, where a dataset knows that."""
    lines = []
    for each in mined.minings if mined is not None else []:
        if each.shares is not None:
            texts, images = (each.shares[name][0] for name in ("texts_for_images", "images_for_texts"))
            lines += ["", f"mined by {each.name}"]
            lines += wrapped(
                f"The hardest caption of an image is true of it after all in {texts:.0f} %, the hardest image of a "
                f"caption in {images:.0f} %: false negatives, which training pushes away."
            )
    return lines


def _advised(second_round: SecondRound | None) -> list[str]:
    """What the first training tells of a second one."""
    if second_round is None:
        return []
    lines = ["", "is a second training worth it here?"]
    for run, advice in second_round.advice:
        lines += wrapped(f"{run.name}: {' '.join(advice.sentences)}")
    return lines


def _results(group: Group) -> list[str]:
    levels = {run.settings["interval_level"] for run in group.runs}
    percent = "/".join(f"{100 * level:g}" for level in sorted(levels)) + " %"
    recalls = _recall_names(_NUMBER)
    sides = "".join(side.rjust(len(recalls)) for side in ("image to text", "text to image"))
    lines = ["", f"{'':<{_NAME}}{sides}{'':<{_RSUM}}  {percent}"]
    lines += [f"{'run':<{_NAME}}{recalls * 2}{'RSum'.rjust(_RSUM)}  interval", _RULE]
    for run in group.runs:
        lines += _result(group, run, FULL)
    chance = random_recalls(*group.runs[0].size)
    numbers = "".join(f"{chance[recall]:.1f}".rjust(_NUMBER) for recall in RECALLS)
    lines += _row("chance", f"{numbers}{chance['rsum']:{_RSUM}.1f}")
    if any(ORACLE in run.metrics for run in group.runs):
        lines += ["", "with all correct matches counted"]
        lines += [line for run in group.runs if ORACLE in run.metrics for line in _result(group, run, ORACLE)]
    return [*lines, *(line for each in group.precision for line in _precision(each.table))]


def _result(group: Group, run: Run, protocol: str) -> list[str]:
    metrics = run.metrics[protocol]
    numbers = "".join(f"{metrics[recall]['value']:.1f}".rjust(_NUMBER) for recall in RECALLS)
    rsum = metrics["rsum"]
    interval = f"{rsum['low']:.1f}{DASH}{rsum['high']:.1f}"
    return _row(_title(group, run), f"{numbers}{rsum['value']:{_RSUM}.1f}  {interval}")


def _title(group: Group, run: Run) -> str:
    """The name of a run with what tells it from others of the same."""
    return f"{_name(group, run)} {DEPARTS}" if run.departures else _name(group, run)


def _name(group: Group, run: Run) -> str:
    plain = model_title(run.backbone, run.method)
    alike = [each for each in group.series if model_title(each.first.backbone, each.first.method) == plain]
    own = next(each.name for each in group.series if any(one is run for one in each.all))
    return run.name.replace(plain, own, 1) if len(alike) > 1 and own.startswith(plain) else run.name


def _departures(group: Group) -> list[str]:
    """Which settings of which runs are not as declared."""
    departing = [run for run in group.runs if run.departures]
    lines = ["", f"{DEPARTS} with settings that are not as declared"] if departing else []
    for run in departing:
        lines += wrapped(f"{_name(group, run)}: {listed(run.departures, _LISTED)}", indent="  ")
    return lines


def _precision(table: Table) -> list[str]:
    """A table of the report as it is, direction by direction."""
    headings = [cell.heading for cell in table.rows[0].cells]
    lines = ["", f"{table.title.lower()}, in percent"]
    lines += ["run".ljust(_NAME) + "".join(heading.rjust(_PRECISION) for heading in headings), _RULE]
    for row in table.rows:
        lines += _row(row.name, "".join(cell.text.rjust(_PRECISION) for cell in row.cells))
    return lines


def _differences(group: Group, level: float) -> list[str]:
    if not group.comparisons:
        return []
    recalls = _recall_names(_DIFFERENCE)
    sides = "".join(side.rjust(len(recalls)) for side in ("image to text", "text to image"))
    columns = f"{recalls * 2}{'RSum'.rjust(_DIFFERENCE)}    {100 * level:g} % interval"
    lines = ["", "difference to the first training", f"{'':<{_DIFFERENCE_NAME}}{sides}"]
    lines += [f"{'':<{_DIFFERENCE_NAME}}{columns}", _RULE]
    for each in group.comparisons:
        lines += _difference_line(_title(group, each.run), each.own)
    oracle = [
        line
        for each in group.comparisons
        if each.oracle
        for line in _difference_line(_title(group, each.run), each.oracle)
    ]
    if oracle:
        lines += ["", "with all correct matches counted", *oracle]
    marked = any("*" in line for line in lines)
    return [*lines, *(["* the interval of the difference excludes zero"] if marked else [])]


def _difference_line(name: str, differences: Mapping[str, Interval]) -> list[str]:
    """The last character of every number is a blank or a mark, so that digits stand below each other."""
    numbers = "".join(_marked(differences[metric]).rjust(_DIFFERENCE) for metric in (*RECALLS, "rsum"))
    return _row(name, f" {numbers}  {interval_text(differences['rsum'])}", _DIFFERENCE_NAME)


def _across_seeds(seeds: AcrossSeeds, level: float) -> list[str]:
    """Mean scores beside their cost, mean differences with both intervals, and what these allow to say."""
    found = seeds.found
    lines = [*_mean_scores(found.scores), *_mean_differences(found.comparisons, level)]
    lines += ["", *wrapped(seeds.meaning)] if found.comparisons else []
    for sentence in found.missing:
        lines += wrapped(sentence)
    if found.removed:
        lines += wrapped(f"Left out, because their models were removed: {'; '.join(found.removed)}.")
    return [*lines, *_sentence(seeds.summary), *_sentence(seeds.epochs)]


def _mean_scores(scores: Sequence[SeedScores]) -> list[str]:
    title = "means over seeds, RSum ± its standard deviation; training with all that it read"
    columns = f"{_recall_names(_NUMBER) * 2}{'RSum'.rjust(_RSUM)}{'':<{_DEVIATION}}{'training'.rjust(_COST)}"
    lines = ["", title, f"{'method':<{_MEAN_NAME}}{columns}", _RULE]
    for each in scores:
        deviation = each.own["rsum"].deviation
        spread = "" if deviation is None else f" ± {deviation:.1f}"
        cost = "-" if each.seconds is None else duration(each.seconds)
        numbers = "".join(f"{each.own[recall].mean:{_NUMBER}.1f}" for recall in RECALLS)
        values = f"{numbers}{each.own['rsum'].mean:{_RSUM}.1f}{spread:<{_DEVIATION}}{cost.rjust(_COST)}"
        lines += _row(each.series.name, values, _MEAN_NAME)
    return lines


def _mean_differences(comparisons: Sequence[SeedComparison], level: float) -> list[str]:
    if not comparisons:
        return []
    columns = f"{_recall_names(_NUMBER) * 2}{'RSum'.rjust(_RSUM)}"
    lines = ["", f"{'mean difference over seeds':<{_REFERENCE_NAME}}{columns}", _RULE]
    lines += _mean_difference_lines([(each, each.own) for each in comparisons], level)
    oracle = [(each, each.oracle) for each in comparisons if each.oracle]
    if oracle:
        lines += ["", "with all correct matches counted", *_mean_difference_lines(oracle, level)]
    return lines


def _mean_difference_lines(shown: Sequence[tuple[SeedComparison, Mapping[str, Difference]]], level: float) -> list[str]:
    lines, name = [], ""
    for comparison, differences in shown:
        if comparison.series.name != name:
            name = comparison.series.name
            lines += wrapped(name)
        rsum = differences["rsum"]
        numbers = "".join(signed(differences[recall].value).rjust(_NUMBER) for recall in RECALLS)
        values = f"{numbers}{signed(rsum.value).rjust(_RSUM)}"
        lines += _row(f" vs. {comparison.reference.method}", values, _REFERENCE_NAME)
        verdict = f"a significant {'gain' if rsum.value > 0 else 'loss'}" if rsum.significant else "not significant"
        assert rsum.seeds is not None
        seeds, images = interval_text(rsum.seeds), interval_text(rsum.images)
        lines += [f"   {100 * level:g} % over seeds {seeds}, over images {images}"]
        lines += [f"   {verdict}"] if differences is comparison.own else []
    return lines


def _matching(scores: Sequence[MatchingScores]) -> list[str]:
    """One line for every run and choice of negatives."""
    lines = []
    columns = "".join(name.rjust(_MEASURE) for name in MEASURES)
    for choice, title in NEGATIVES.items() if scores else ():
        sides = "".join(side.rjust(len(columns)) for side in ("image to text", "text to image"))
        lines += ["", *wrapped(f"matching accuracy in percent, {title.lower()}"), " " * _NAME + sides]
        lines += ["run".ljust(_NAME) + columns * 2, _RULE]
        for run, measured in ((run, run.figures(MATCHING)) for each in scores for run in each.runs):
            assert measured is not None
            values = [measured[choice][side][name] for side in DIRECTIONS for name in MEASURES]
            lines += _row(run.name, "".join(_percent(value).rjust(_MEASURE) for value in values))
    return lines


def _words(runs: Sequence[Run]) -> list[str]:
    """One line for every run that judged words."""
    judged = [(run.name, run.figures(WORDS)) for run in runs if run.figures(WORDS) is not None]
    if not judged:
        return []
    spans = "".join(name.rjust(count * _WORD_NUMBER) for name, count in _WORD_SPANS.items())
    lines = ["", "wrong words: found and corrected, in percent", " " * _NAME + spans]
    lines += ["run".ljust(_NAME) + "".join(name.rjust(_WORD_NUMBER) for name in _WORDS.values()), _RULE]
    for name, words in judged:
        figures = [figure_of(words, key) for key in _WORDS]
        lines += _row(name, "".join(_percent(each and each[0]).rjust(_WORD_NUMBER) for each in figures))
    return [*lines, *wrapped(_WORD_MEANING)]


def _discrimination(runs: Sequence[Run]) -> list[str]:
    """For every run a line for each generator of sentences."""
    measured = [(run.name, run.figures(DISCRIMINATION)) for run in runs if run.figures(DISCRIMINATION)]
    if not measured:
        return []
    lines = ["", "negative sentences that score below their caption, in percent"]
    lines += [f"{'run, and who wrote the sentences':<{_GENERATOR_NAME}}{'below'.rjust(_RSUM)}  interval", _RULE]
    for name, generators in measured:
        lines += wrapped(name)
        for generator, found in generators.items():
            percent = found["percent"]
            interval = "" if percent is None else f"  {percent['low']:.1f}{DASH}{percent['high']:.1f}"
            value = _percent(percent and percent["value"]).rjust(_RSUM)
            lines += _row(f" {generator_title(generator)}", f"{value}{interval}", _GENERATOR_NAME)
    return lines


def _benchmarks(runs: Sequence[Run]) -> list[str]:
    """For every run a line for each category of every benchmark."""
    measured = [(run.name, run.figures(BENCHMARKS)) for run in runs if run.figures(BENCHMARKS)]
    if not measured:
        return []
    lines = ["", "hard negatives that score below their caption, in percent"]
    lines += [f"{'run, benchmark and category':<{_GENERATOR_NAME}}{'below'.rjust(_RSUM)}  interval", _RULE]
    for name, benchmarks in measured:
        lines += wrapped(name)
        for benchmark, found in benchmarks.items():
            for question, each in figures_of(found).items():
                assert each is not None
                figure = f"{_percent(each['value']).rjust(_RSUM)}  {each['low']:.1f}{DASH}{each['high']:.1f}"
                lines += _row(f" {benchmark}: {row_title(question)}", figure, _GENERATOR_NAME)
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _recall_names(width: int) -> str:
    return "".join(f"R@{name.rpartition('r')[2]}".rjust(width) for name in RECALLS[:3])


def _row(name: str, values: str, width: int = _NAME) -> list[str]:
    """A name and its values; a name that is too long for its column has lines of its own above them."""
    if len(name) < width:
        return [f"{name:<{width}}{values}".rstrip()]
    indent = " " * (len(name) - len(name.lstrip()))
    return [*wrapped(name.strip(), indent=indent), f"{'':<{width}}{values}".rstrip()]


def _marked(interval: Interval) -> str:
    return signed(interval.value) + ("*" if excludes_zero(interval) else " ")


def _sentence(sentence: str) -> list[str]:
    return wrapped(sentence) if sentence else []


def wrapped(sentence: str, *, indent: str = "") -> list[str]:
    """A sentence in lines of a terminal."""
    options = {"initial_indent": indent, "subsequent_indent": indent, "break_on_hyphens": False}
    return textwrap.wrap(sentence, WIDTH, **options, break_long_words=False) or [""]
