"""What comes from captions and file names never steers the terminal; our own styles and sequences still do."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from rich.tree import Tree

from itrpipe.printable import printable, printable_json
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.report.page import page_environment
from itrpipe.report.pictures import Picture
from itrpipe.search.gallery import FOLDER, Answer, SearchAnswers
from tests.chains import Invoke

# Clears the screen, names the window, steers in one byte, turns the writing direction, ends a line or paragraph.
HOSTILE = "a\x1b[2Jb\x1b]0;owned\x07c\x9b31md\x7fe\u202ef\u2066g\u200eh\u061ci\u2028j\rk\nl\tm"
SHOWN = r"a\x1b[2Jb\x1b]0;owned\x07c\x9b31md\x7fe\u202ef\u2066g\u200eh\u061ci\u2028j\x0dk\x0al\x09m"
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output as a terminal of colours."""
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return shown


def test_what_steers_a_terminal_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(SafeConsole(stderr=True)).say(HOSTILE)
    printed = capsys.readouterr()
    assert (printed.out, r"\x1b[2J" in printed.err) == ("", True)
    assert printable(HOSTILE) == SHOWN
    assert printable("\udcff") == r"\udcff"
    assert printable("Grüße, 犬 🐕 ✓") == "Grüße, 犬 🐕 ✓"


@given(st.text(st.characters(), max_size=20))
def test_nothing_that_steers_is_left_and_the_json_says_the_same(text: str) -> None:
    assert not STEERING.search(printable(text))
    assert "\n" not in printable(text)
    written = printable_json({text: [text]})
    assert not STEERING.search(written)
    assert json.loads(written) == {text: [text]}


def test_messages_trees_and_progress_are_safe_and_keep_their_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    reporter = Reporter()
    reporter.say("a sign reads :dog:")  # which is no picture
    assert shown.getvalue() == "a sign reads :dog:\n"
    reporter.say(f"said {HOSTILE}", style="red")
    tree = Tree(Text(f"root {HOSTILE}", style="bold"))
    tree.add(Text(f"branch {HOSTILE}"))
    reporter.console.print(tree)
    with reporter.task(f"[/b] task {HOSTILE}", 2, "images") as task:
        task.advance(2, note=f"note {HOSTILE}")
    written = shown.getvalue()
    own = re.compile(r"\x1b\[\??[0-9;]*[mKAhl]|\r")
    assert own.findall(written)
    assert "\x1b[31m" in written
    assert not STEERING.search(own.sub("", written))
    for what in ("said", "root", "branch", "task", "note"):
        assert rf"{what} a\x1b[2Jb\x1b]0;owned" in own.sub("", written), what
    assert "[/b]" in written


def test_a_name_cannot_forge_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    name = "new\n  1  0.900  forged.jpg"
    answer = Answer(1, 0.5, name, name, None, [], "")
    found = SearchAnswers(
        dataset="d", run="r", split=FOLDER, finds="images", caption="a dog", searched=1, answers=[answer]
    )
    for line in found.lines():
        Reporter().say(line)
    assert len(shown.getvalue().splitlines()) == 2, "the heading and one answer"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("train", "--method", f"x{HOSTILE}"), 2, r"\x1b[2Jb"),
        (("status", "--data", "none\udcff\x1b[2J"), 2, r"none\udcff\x1b[2J"),
        (("parse", "--tagger", "lexicon", "--show", f"A dog{HOSTILE} in a red sweater"), 0, r"A doga\x1b[2Jb"),
    ],
)
def test_names_paths_and_captions_that_are_given_are_safe(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke(*command)
    assert outcome.code == code, outcome.err
    assert said in outcome.out + outcome.err
    assert not STEERING.search(outcome.out + outcome.err)


def test_pages_cannot_turn_the_text_around_a_caption() -> None:
    answer = Answer(1, 0.5, HOSTILE, HOSTILE, None, [HOSTILE, "<b>"], "")
    where = {"dataset": "d", "run": "r", "split": "test"}
    found = SearchAnswers(**where, finds="images", caption=HOSTILE, searched=1, unknown=[HOSTILE], answers=[answer])
    template = page_environment().get_template("search.html.j2")
    pictures = {HOSTILE: Picture(HOSTILE, None)}
    page = template.render(found=found, title=found.title, pictures=pictures, query=None, shown=2)
    assert not STEERING.search(page)
    assert r"a\x1b[2Jb" in page
    assert "&lt;b&gt;" in page


def test_letters_that_a_stream_cannot_show_are_escaped(tmp_path: Path) -> None:
    """In a process of its own, whose streams know ASCII alone."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments, code in ((("status", "--data", "grün"), 0), (("train", "--method", "grün"), 2)):
        command = [sys.executable, "-m", "itrpipe", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, r"gr\xfcn" in done.stdout + done.stderr) == (code, True), done.stderr
