"""`make bench-gpu` runs to its end on any machine, small."""

from __future__ import annotations

import json
from pathlib import Path
from traceback import FrameSummary

import pytest
import torch
import transformers

import itrpipe
from tests.benchmarks import gpu

STARTS = (
    *(
        f"scores, {name}"
        for name in ("SCAN t2i, fp32", "SCAN t2i, bf16", "BFAN, fp32", "BFAN, bf16", "UNITER", "SSAMT")
    ),
    *(f"step, {name}" for name in ("AOQ, VSRN", "AOQ, BFAN", "FNE")),
    *(f"step, InfoNCE, CLIP ViT-B/32, 4, {way}" for way in ("eager", "compiled")),
    *(f"embeddings, CLIP ViT-L/14, {precision}" for precision in ("fp32", "bf16")),
    *("steps with their copies", "mining", "mining of memory maps", "extraction, vit", "extraction, frcnn"),
)


def test_every_part_gives_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    gpu.main(["--tiny", "--json", str(path)])
    found = json.loads(path.read_text())["lines"]
    names = {line["name"] for line in found}
    assert len(names) == len(found) == len(STARTS)
    assert all(any(name.startswith(start) for name in names) for start in STARTS)
    assert all(line["seconds"] > 0 and line["limit"] > 0 for line in found)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(found)
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            gpu.main([])
        assert "no CUDA device is visible; --tiny runs anywhere" in capsys.readouterr().err


def test_a_wait_inside_a_library_is_told_by_the_line_that_calls_it() -> None:
    def frame(file: str, line: int) -> FrameSummary:
        return FrameSummary(file, line, "forward")

    package = Path(itrpipe.__file__).parent
    libraries = [frame(transformers.__file__, 354), frame(torch.__file__, 8)]
    stack = [frame(gpu.__file__, 3), frame(str(package / "models" / "text_tower.py"), 267), *libraries]
    assert gpu.line_of_ours(stack) == "text_tower.py:267"
    assert gpu.line_of_ours([stack[0], *libraries]) == "gpu.py:3"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_wait_for_the_device_where_shapes_are_decided_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    gpu.main(["--tiny", "--only", "steps", "--json", str(path)])
    waits = {
        line["name"]: [place.split(":")[0] for place in line["waits"]] for line in json.loads(path.read_text())["lines"]
    }
    assert waits["step, AOQ, BFAN"] == ["network.py"]  # captions are grouped by their lengths
    assert not any(places for name, places in waits.items() if name != "step, AOQ, BFAN")
