"""The pages in a browser: search, judge by keys, go on after a reload, in two tabs, on a phone, in the dark."""

from __future__ import annotations

import io
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image

from itrpipe.features.embeddings import INNER_PRODUCT
from itrpipe.retrieval.opening import load
from itrpipe.review.decisions import DecisionFile
from itrpipe.review.queue import Candidates, mined_candidates
from itrpipe.serving.app import Site, build
from itrpipe.serving.facts import Facts
from itrpipe.serving.gallery import Embedded, Gallery, of_dataset
from itrpipe.serving.pictures import Pictures
from itrpipe.serving.reviewing import Reviews
from itrpipe.serving.runs import Runs
from itrpipe.serving.searching import Searches
from itrpipe.serving.security import LOCAL
from itrpipe.serving.uploads import Uploads

CHROMIUM, DRIVER = shutil.which("chromium") or "", shutil.which("chromedriver") or ""
MISSING = not (CHROMIUM and DRIVER and find_spec("selenium") and find_spec("axe_core_python"))
pytestmark = pytest.mark.skipif(MISSING, reason="takes chromium, chromedriver, selenium and axe-core-python")

MANY = 3_000
SECONDS = 20


class Eyes:
    """A model that reads sentences, and takes every photograph for the first image."""

    def __init__(self, trained: Path, vectors: np.ndarray) -> None:
        self._model, self._vectors = load(trained, device="cpu"), vectors
        self.encode_texts, self.unknown_words = self._model.encode_texts, self._model.unknown_words

    def encode_images(self, images: list[np.ndarray]) -> np.ndarray:
        return self._vectors[:1]


@pytest.fixture(scope="module")
def candidates(finished_chain: Path) -> Candidates:
    return mined_candidates(next((finished_chain / "data" / "tiny" / "mine_negatives").glob("exact.*")))


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> DecisionFile:
    return DecisionFile(tmp_path_factory.mktemp("decided") / "decisions.parquet")


@pytest.fixture(scope="module")
def address(finished_chain: Path, candidates: Candidates, decided: DecisionFile) -> Iterator[str]:
    """A server of a small dataset."""
    found = of_dataset(candidates.trained, candidates.prepared, "cpu")
    vectors = found.scoring.vectors  # type: ignore[attr-defined]
    scoring = Embedded(vectors, INNER_PRODUCT, lambda: Eyes(candidates.trained, vectors))  # type: ignore[arg-type]
    gallery = Gallery(found.image_ids, found.places, found.captions, scoring, reads_photographs=True)
    pictures = Pictures.of_dataset(candidates.prepared, finished_chain / "source", decided.path.parent / "pictures")
    facts, runs = Facts(candidates.prepared, gallery), Runs(candidates.trained.parents[2], "tiny")
    reviews = Reviews(candidates, decided)
    site = Site("tiny", candidates.model, Searches(gallery, Uploads()), pictures, reviews, facts, runs)
    with Served(site) as found_at:
        yield found_at


@pytest.fixture(scope="module")
def crowded(candidates: Candidates, finished_chain: Path, decided: DecisionFile) -> Iterator[str]:
    """A server of many images."""
    vectors = np.random.default_rng(0).standard_normal((MANY, 4)).astype(np.float32)
    gallery = Gallery([f"{row}" for row in range(MANY)], [""] * MANY, {}, Embedded(vectors, INNER_PRODUCT, Eyes))  # type: ignore[arg-type]
    pictures = Pictures.of_dataset(candidates.prepared, finished_chain / "source", decided.path.parent / "pictures")
    with Served(Site("many", "none", Searches(gallery, Uploads()), pictures)) as found_at:
        yield found_at


class Served:
    """Runs a site in a thread."""

    def __init__(self, site: Site) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        app = build(site, hosts=LOCAL, port=self.port)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self.port}"

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def browser(started: Any) -> Iterator[Any]:
    """A browser of a desk, in the light; what pages complain of fails the test."""
    look(started, 1280, 900)
    yield started
    said = [entry["message"] for entry in started.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in said if "status of 40" not in message] == []


def look(browser: Any, width: int, height: int, scheme: str = "light") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    shown = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shown)


def until(browser: Any, true: Callable[[], Any]) -> Any:
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, SECONDS, 0.05, [StaleElementReferenceException]).until(lambda driver: true())


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def all_of(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def begin(browser: Any, address: str, name: str) -> None:
    browser.get(f"{address}/base.css")  # a page of this server that remembers nothing
    browser.execute_script("sessionStorage.clear()")
    browser.get(f"{address}/review")
    one(browser, "[name=reviewer]").clear()
    one(browser, "[name=reviewer]").send_keys(name)
    one(browser, "#who button").click()
    until(browser, lambda: one(browser, "#caption").text)


def answers(decided: DecisionFile, name: str) -> list[str]:
    rows = decided.read().rows.to_pylist() if decided.path.exists() else []
    return [row["answer"] for row in rows if row["reviewer"] == name]


def test_a_sentence_and_a_photograph_find_images(browser: Any, address: str, tmp_path: Path) -> None:
    browser.get(address)
    one(browser, "[name=q]").send_keys("a dog on the road\n")
    until(browser, lambda: len(all_of(browser, ".found > li")) == 20)
    assert "All 20 images, most fitting first" in one(browser, "#status").text
    until(browser, lambda: browser.execute_script("return document.querySelector('.found img').naturalWidth > 0"))
    first = one(browser, ".found > li .note").text
    one(browser, ".found > li a.like").click()
    until(browser, lambda: len(all_of(browser, ".found > li")) == 19)
    assert f"All 19 images, most like {first.split(' · ')[1]}" in one(browser, "#status").text
    browser.back()
    until(browser, lambda: one(browser, ".found > li .note").text == first)

    picture = tmp_path / "dropped.png"
    Image.new("RGB", (40, 30), (200, 20, 20)).save(picture)
    one(browser, "#file").send_keys(str(picture))
    until(browser, lambda: one(browser, "#query").is_displayed())
    until(browser, lambda: len(all_of(browser, ".found > li")) == 20)
    assert one(browser, ".found > li .note").text.split(" · ")[0] == "1.000", "the image that this model takes it for"
    (tmp_path / "no.png").write_bytes(b"no picture")
    one(browser, "#file").send_keys(str(tmp_path / "no.png"))
    until(browser, lambda: "give another one" in one(browser, "#status").text)


def test_a_photograph_is_dropped(browser: Any, address: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (20, 200, 20)).save(buffer, "PNG")
    browser.get(address)
    browser.execute_script(
        "const data = new DataTransfer();"
        "data.items.add(new File([new Uint8Array(arguments[0])], 'a.png', { type: 'image/png' }));"
        "document.querySelector('#drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }));",
        list(buffer.getvalue()),
    )
    until(browser, lambda: len(all_of(browser, ".found > li")) == 20)
    assert "photograph=" in browser.current_url


def test_a_long_grid_keeps_what_is_near(browser: Any, crowded: str) -> None:
    browser.get(f"{crowded}/?like=0")
    for _ in range(12):
        count = len(all_of(browser, "ol.found"))
        bottom = "scrollTo(0, document.body.scrollHeight); return parts.length"
        until(browser, lambda count=count, bottom=bottom: browser.execute_script(bottom) > count)
        until(browser, lambda: browser.execute_script("return parts.at(-1).state === 'full'"))
    assert len(all_of(browser, "ol.found")) > 10, "it loads on"
    assert len(all_of(browser, ".found > li")) < 400, "and gives back"
    browser.execute_script("scrollTo(0, 0)")
    until(browser, lambda: len(all_of(browser, "ol.found:first-child > li")) == 60)


def test_keys_judge_and_a_reload_goes_on(browser: Any, address: str, decided: DecisionFile) -> None:
    begin(browser, address, "ada")
    first = one(browser, "#caption").text, one(browser, "#photo").get_attribute("src")
    press(browser, "y", "n", "s", "n")
    until(browser, lambda: answers(decided, "ada") == ["fits", "differs", "unsure", "differs"])
    until(browser, lambda: "4 judged by ada" in one(browser, "#progress").text)
    fifth = one(browser, "#caption").text, one(browser, "#photo").get_attribute("src")
    press(browser, "u")
    until(browser, lambda: answers(decided, "ada")[-1] == "undone")
    fourth = one(browser, "#caption").text, one(browser, "#photo").get_attribute("src")
    assert len({first, fourth, fifth}) == 3
    browser.refresh()
    until(browser, lambda: one(browser, "#caption").text)
    assert (one(browser, "#caption").text, one(browser, "#photo").get_attribute("src")) == fourth
    press(browser, "u")
    until(browser, lambda: answers(decided, "ada")[-2:] == ["undone", "undone"])
    until(
        browser,
        lambda: one(browser, "#photo").get_attribute("src") != fourth[1] or one(browser, "#caption").text != fourth[0],
    )
    begin(browser, address, "bob")
    assert (one(browser, "#caption").text, one(browser, "#photo").get_attribute("src")) == first
    press(browser, "y")
    until(
        browser,
        lambda: "ada gave the same answer on 100 % of 1" in one(browser, "#findings").get_attribute("textContent"),
    )


def test_two_tabs_lose_nothing(browser: Any, address: str, decided: DecisionFile) -> None:
    begin(browser, address, "eve")
    press(browser, "y")
    own = browser.current_window_handle
    browser.switch_to.new_window("tab")
    look(browser, 1280, 900)
    begin(browser, address, "eve")
    press(browser, "n", "n")
    until(browser, lambda: answers(decided, "eve") == ["fits", "differs", "differs"])
    browser.close()
    browser.switch_to.window(own)
    until(browser, lambda: browser.execute_script("return queue.length"))
    press(browser, "s")
    until(browser, lambda: len(answers(decided, "eve")) == 4)
    assert decided.read().of("eve")


def test_the_keyboard_is_enough(browser: Any, address: str, decided: DecisionFile) -> None:
    browser.get(f"{address}/base.css")
    browser.execute_script("localStorage.clear(); sessionStorage.clear()")
    browser.get(f"{address}/review")
    assert browser.switch_to.active_element.get_attribute("name") == "reviewer"
    press(browser, *"kay", "\ue007")
    until(browser, lambda: one(browser, "#caption").text)
    for _ in range(12):
        press(browser, "\ue004")
        if browser.switch_to.active_element.get_attribute("data-answer") == "differs":
            break
    press(browser, " ", "y")
    until(browser, lambda: answers(decided, "kay") == ["differs", "fits"])


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 900, "light"), (390, 800, "light"), (390, 800, "dark")])
def test_pages_are_accessible_and_fit(browser: Any, address: str, width: int, height: int, scheme: str) -> None:
    import axe_core_python

    rules = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    look(browser, width, height, scheme)
    for path in ("/?q=a+dog", "/review", "/data", "/runs"):
        if path == "/review":
            begin(browser, address, "ada")
        else:
            browser.get(address + path)
        shown = {"/?q=a+dog": ".found > li", "/data": ".pair", "/runs": "polyline", "/review": "#caption"}[path]
        until(browser, lambda shown=shown: all_of(browser, shown))
        browser.execute_script(rules)
        found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        assert len(found["passes"]) > 10
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]] == [], path
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), path
        dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 25, 28)"
        assert dark == (scheme == "dark")
