"""Commands in a working folder full of hostile files, of which none may run or decide anything.

Every file has a name that Python or a library looks for, and leaves a mark of its own when it runs.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import itrpipe
from itrpipe.commands.stages import run_stage
from itrpipe.config import load_declaration
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, save_definition
from itrpipe.errors import DataError
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.plan.planning import parse_override

PACKAGES = str(Path(itrpipe.__file__).parents[1])
SMALL = ("epochs=1", "batch_size=16", "min_word_count=1", "model.embed_dim=8", "model.word_dim=8")
UNITER = (*SMALL[:4], "model.layers=2", "model.heads=2", "model.feed_forward_dim=16", "model.max_words=20")
TAGS = (*UNITER, "max_updates=0", "warmup_updates=1", "accumulate=1")
LOSS = ("sampled_negatives=7", "hard_negatives=3", "mask=words", "copies=2", "draws=2", "keep=3")
TAGS_CHAIN = (
    *(f"train.{each}" for each in TAGS),
    *(f"{conf}.loss.{each}" for conf in ("tags", "tags-dc") for each in LOSS),
)
CAPTION = "A cat number 16 is on the road 0."
# As pip writes it; and many commands in one process, because importing torch takes longer than most of them.
CONSOLE_SCRIPT = """import sys
from itrpipe.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
MANY = """import json, sys
from itrpipe.cli import main
if __name__ == "__main__":
    codes = []
    for arguments in json.loads(sys.argv[1]):
        sys.argv = ["itrpipe", *arguments]
        print(">>>", *arguments, flush=True)
        try:
            main()
            codes.append(0)
        except SystemExit as leaving:
            codes.append(int(leaving.code or 0))
    print(json.dumps(codes))
"""


class Hostile:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


class Trap:
    """A working folder, and beside it the folder of the marks.

    Args:
        folder: of both.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder / "trap", folder / "marks"
        self.folder.mkdir()
        self.marks.mkdir()

    def code(self, name: str) -> None:
        """Puts a Python file there, which leaves a mark and fails."""
        mark = self.marks / name.replace("/", "_")
        path = self.path(name)
        path.write_text(f"open({str(mark)!r}, 'w').close()\nraise RuntimeError({name!r})\n")

    def pickled(self, name: str) -> bytes:
        """A pickle that leaves a mark."""
        return pickle.dumps(Hostile(self.marks / name.replace("/", "_")), 2)

    def path(self, name: str) -> Path:
        """A file of the working folder, whose own folder is made."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def assert_clean(self) -> None:
        """Fails where a hostile file ran, and forgets it."""
        found = sorted(self.marks.iterdir())
        for path in found:
            path.unlink()
        assert [path.name for path in found] == []


def module_names(tmp_path: Path) -> list[str]:
    """All modules of the standard library and of installed packages that can be imported by itrpipe.

    What Python itself imports before the first line of a program that it is told to run with -m is out of reach.
    """
    (tmp_path / "probe.py").write_text("import sys\nprint(*sys.modules)")
    ran = subprocess.run([sys.executable, "-m", "probe"], cwd=tmp_path, capture_output=True, text=True, check=True)
    early = {name.partition(".")[0] for name in ran.stdout.split()}
    optional = {"wandb", "mlflow", "tensorflow", "faiss", "eccv_caption", "numba", "kernels", "dotenv"}
    known = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), *optional}
    return sorted(name for name in known - early - {"itrpipe"} if name.isidentifier())


def default_models() -> dict[str, str]:
    """Ids of the hub that settings name -> model type."""
    confs = load_declaration("extract").confs
    return {
        confs["vit"]["model"]: "vit",
        confs["resnet"]["model"]: "resnet",
        confs["butd"]["weights"]: "frcnn",
        DualEncoder.model_fields["vision"].default: "vit",
        DualEncoder.model_fields["text"].default: "bert",
        "bert-base-cased": "bert",
        "gpt2": "gpt2",
    }


def lay_model(trap: Trap, name: str, kind: str) -> None:
    """Puts a model of the hub there, whose configurations name code and whose weights are a hostile pickle."""
    auto = ("Config", "Model", "ImageProcessor", "Tokenizer")
    named = {"model_type": kind, "auto_map": {f"Auto{each}": f"modeling_evil.{each}" for each in auto}}
    named |= {"custom_pipelines": {"x": {"impl": "modeling_evil.Model"}}, "attn_implementation": "evil/kernel"}
    for file in ("config.json", "preprocessor_config.json", "tokenizer_config.json", "generation_config.json"):
        trap.path(f"{name}/{file}").write_text(json.dumps(named))
    for file in ("modeling_evil.py", "__init__.py", "custom_generate/generate.py"):
        trap.code(f"{name}/{file}")
    trap.path(f"{name}/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with zipfile.ZipFile(trap.path(f"{name}/pytorch_model.bin"), "w") as archive:
        archive.writestr("archive/data.pkl", trap.pickled(f"{name}/pytorch_model.bin"))
        archive.writestr("archive/version", "3\n")


def lay_libraries(trap: Trap, work: Path) -> None:
    """Puts the library of CUDA's driver there, which the loader looks for by its name, if there is a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return
    mark = trap.marks / "libcuda.so.1"
    source = work / "evil.c"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void mark(void)"
        f'{{ open("{mark}", O_CREAT | O_WRONLY, 0666); }}\n'
    )
    library = trap.path("libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    for folder in ("x86_64", "tls", "tls/x86_64", "glibc-hwcaps/x86-64-v3", "nvidia/cu13/lib", "nvidia/cublas/lib"):
        shutil.copy(library, trap.path(f"{folder}/libcuda.so.1"))


def lay_configuration(trap: Trap) -> None:
    """Puts files there that libraries take for their configuration or their data."""
    trap.path("matplotlibrc").write_text("backend: module://evil_backend\ntext.usetex: True\nfont.size: 90\n")
    trap.code("evil_backend.py")
    trap.path("wandb/settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    trap.path(".numba_config.yaml").write_text("!!python/object/apply:os.system [false]\n")
    trap.path(".env").write_text("HF_HOME=.\nPYTHONPATH=.\n")
    trap.path("morphmodel_en.pgz").write_bytes(gzip.compress(trap.pickled("morphmodel_en.pgz")))
    trap.path("nltk_data/tokenizers/punkt/english.pickle").write_bytes(trap.pickled("english.pickle"))
    trap.path("nltk_data/taggers/averaged_perceptron_tagger/averaged_perceptron_tagger.pickle").write_bytes(
        trap.pickled("tagger.pickle")
    )
    for folder in (".cache/huggingface/modules/transformers_modules", "transformers_modules", "HanTa"):
        trap.code(f"{folder}/__init__.py")
    trap.code("HanTa/HanoverTagger.py")
    for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "__main__.py", "plugins.py"):
        trap.code(name)


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    """The working folder with everything in it."""
    work = tmp_path_factory.mktemp("foreign")
    trap = Trap(work)
    for name in module_names(tmp_path_factory.mktemp("probe")):
        trap.code(f"{name}.py")
    lay_configuration(trap)
    lay_libraries(trap, work)
    for name, kind in default_models().items():
        lay_model(trap, name, kind)
    return trap


@pytest.fixture(scope="module")
def root(boxed_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with what the commands need: two rounds of VSE++, TAGS-DC, and more captions than one chunk."""
    folder = tmp_path_factory.mktemp("foreign-data")
    found = Path(shutil.copytree(boxed_chain, folder / "data"))
    given = ("method=tags-dc", "features=boxed", "evaluate.bootstrap_samples=100", *TAGS_CHAIN)
    run_stage(found, "tiny", "evaluate", [parse_override(text) for text in given])
    source = folder / "many"
    source.mkdir()
    Image.new("RGB", (8, 8)).save(source / "0.jpg")
    rows = [f"0.jpg,A dog jumps over {number} logs,train" for number in range(2100)]
    (source / "captions.csv").write_text("\n".join(["file,caption,split", *rows, ""]))
    save_definition(found, "many", DatasetDefinition(prepare=StageDefinition(conf="files", source=str(source))))
    return found


@pytest.fixture
def run_there(trap: Trap, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in the working folder; afterwards no hostile file has run."""

    def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        clean = {"HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": PACKAGES}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=trap.folder,
            env=inherited | clean | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        trap.assert_clean()
        return done

    return run


def console(tmp_path: Path, content: str = CONSOLE_SCRIPT) -> Path:
    """The script `itrpipe` in a folder of its own, as pip installs it."""
    path = tmp_path / "bin" / "itrpipe"
    path.parent.mkdir()
    path.write_text(content)
    return path


def sets(values: Iterable[str], stage: str = "") -> list[str]:
    """`--set` of each."""
    return [part for value in values for part in ("--set", f"{stage}{value}")]


def commands(root: Path, out: Path) -> dict[tuple[str, ...], int]:
    """Every command that computes something, and its exit code."""
    tiny = ("--dataset", "tiny", "--data", str(root))
    vsepp = ("--features", "precomp", "--backbone", "vsepp", *sets(SMALL, "train."))
    boxed = (*tiny, "--features", "boxed", *sets(TAGS_CHAIN))
    uniter = ("--features", "boxed", *sets(UNITER, "train."))
    damaged = DataError.exit_code
    listed: Mapping[tuple[str, ...], int] = {
        ("doctor",): 0,
        ("status", *tiny): 0,
        ("show", "train", "triplet"): 0,
        ("run", "demo", "--dry-run", "--data", str(root)): 0,
        ("parse", "--show", "A dog in a red sweater"): 0,
        ("train", *tiny, "--method", "triplet", "--seed", "1", *vsepp): 0,
        ("mine-negatives", *tiny, *vsepp, *sets(("num_texts=4", "num_images=2"))): 0,
        ("synthesize", *tiny, "--by", "vse-c", *sets(("min_count=1", "keep=2"))): 0,
        ("synthesize", *tiny, *uniter, *sets(("copies=2", "draws=2", "keep=2")), "--language-model", "gpt2"): damaged,
        ("evaluate", *tiny, "--method", "triplet", *vsepp, "--set", "bootstrap_samples=100"): 0,
        ("explain", *boxed, "--image", "1016.jpg", "--caption", CAPTION): 0,
        ("search", CAPTION, *tiny, *vsepp, "--html", str(out / "page.html")): 0,
        ("report", *tiny): 0,
        ("export", *tiny, *vsepp, "--to", str(out / "exported")): 0,
        ("extract", *tiny, "--features", "vit"): damaged,
        ("extract", *tiny, "--features", "resnet"): damaged,
        ("extract", *tiny, "--features", "butd"): damaged,
        (
            "train",
            *tiny,
            "--method",
            "triplet",
            "--backbone",
            "dual-encoder",
            *sets(("epochs=1", "device=cpu")),
        ): damaged,
        ("gc", *tiny, "--yes"): 0,
    }
    return dict(listed)


@pytest.mark.slow
def test_no_command_runs_a_file_of_the_working_folder(
    root: Path, tmp_path: Path, run_there: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    expected = commands(root, tmp_path)
    done = run_there(console(tmp_path, MANY), json.dumps([list(each) for each in expected]))
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert dict(zip(expected, codes, strict=True)) == expected, done.stdout[-3000:] + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["console script", "python -m"])
def test_no_process_that_a_command_starts_runs_one(
    entry: str, root: Path, tmp_path: Path, run_there: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    data = Path(shutil.copytree(root / "many", tmp_path / "data" / "many", dirs_exist_ok=True)).parent
    start = (console(tmp_path),) if entry == "console script" else ("-m", "itrpipe")
    done = run_there(*start, "parse", "--dataset", "many", "--set", "workers=2", "--data", data)
    assert done.returncode == 0, done.stderr
    assert "2,100/2,100 captions" in done.stdout
    assert "Traceback" not in done.stderr


def test_python_m_runs_no_file_of_the_working_folder(
    run_there: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_there("-m", "itrpipe", "doctor")
    assert done.returncode == 0, done.stderr
    done = run_there("-m", "itrpipe", "parse", "--show", "A dog in a red sweater")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sweater" in done.stdout


def test_python_m_still_finds_the_package_of_a_checkout(tmp_path: Path) -> None:
    shutil.copytree(Path(itrpipe.__file__).parent, tmp_path / "itrpipe", ignore=shutil.ignore_patterns("weights"))
    shutil.copytree(Path(PACKAGES) / "stages", tmp_path / "stages")
    (tmp_path / "itrpipe" / "__init__.py").write_text('__version__ = "of the checkout"\n')
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONSAFEPATH", "PYTHONPATH"}}
    command = [sys.executable, "-m", "itrpipe", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=inherited, capture_output=True, text=True, check=True)
    assert done.stdout == "itrpipe of the checkout\n"
