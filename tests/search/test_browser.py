"""The pages in a browser: search, judge by keys, go on after a reload and in another tab, on a phone, in the dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from itrpipe.datasets.decisions import DecisionFile
from itrpipe.review import mined_candidates
from itrpipe.search.gallery import Gallery
from itrpipe.search.model import load
from itrpipe.search.serve import Pictures, Reviews, Searches, Site
from tests.search.served import served

CHROMIUM, DRIVER = shutil.which("chromium") or "", shutil.which("chromedriver") or ""
MISSING = not (CHROMIUM and DRIVER and find_spec("selenium") and find_spec("axe_core_python"))
pytestmark = pytest.mark.skipif(MISSING, reason="takes chromium, chromedriver, selenium and axe-core-python")

SECONDS = 20


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> DecisionFile:
    return DecisionFile(tmp_path_factory.mktemp("decided") / "decisions.parquet")


@pytest.fixture(scope="module")
def address(finished_chain: Path, decided: DecisionFile) -> Iterator[str]:
    """A server of a small dataset, whose model takes every photograph for the first image."""
    candidates = mined_candidates(next((finished_chain / "data" / "tiny" / "mine_negatives").glob("exact.*")))
    gallery = Gallery.of_dataset(load(candidates.trained, device="cpu"), candidates.trained)
    first: Any = gallery.images[:1]
    gallery.model.encode_images = lambda images, *options, **more: first
    pictures = Pictures.of_dataset(candidates.prepared, finished_chain / "source", decided.path.parent / "pictures")
    with served(Site(Searches(gallery), pictures, Reviews(candidates, decided))) as found:
        yield found


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


def answers(decided: DecisionFile, name: str) -> list[str]:
    rows = decided.read().rows.to_pylist() if decided.path.exists() else []
    return [row["answer"] for row in rows if row["reviewer"] == name]


def shown(browser: Any) -> tuple[str, str]:
    """The pair that is judged."""
    return one(browser, "#caption").text, one(browser, "#photo").get_attribute("src")


def first_visit(browser: Any, address: str) -> tuple[str, str]:
    """The pair that somebody sees whom the page does not know."""
    browser.get(f"{address}/base.css")  # a page of this server that remembers nothing
    browser.execute_script("localStorage.clear(); sessionStorage.clear()")
    browser.get(f"{address}/review")
    until(browser, lambda: one(browser, "#caption").text)
    return shown(browser)


def test_search(browser: Any, address: str, tmp_path: Path) -> None:
    browser.get(address)
    until(browser, lambda: len(all_of(browser, ".found > li")) == 20)
    one(browser, "#proposals a").click()
    until(browser, lambda: "All 20 images" in one(browser, "#status").text)
    assert not one(browser, "#proposals").is_displayed()
    one(browser, "[name=q]").clear()
    one(browser, "[name=q]").send_keys("a dog on the road\n")
    until(browser, lambda: "All 20 images" in one(browser, "#status").text)
    until(browser, lambda: browser.execute_script("return document.querySelector('.found img').naturalWidth > 0"))
    first = one(browser, ".found .large").get_attribute("title")
    one(browser, ".found .like").click()
    until(browser, lambda: f"All 19 images, most like {first.split(' · ')[1]}" in one(browser, "#status").text)
    browser.back()
    until(browser, lambda: one(browser, ".found .large").get_attribute("title") == first)

    picture = tmp_path / "dropped.png"
    Image.new("RGB", (40, 30), (200, 20, 20)).save(picture)
    one(browser, "#file").send_keys(str(picture))
    until(browser, lambda: browser.execute_script("return document.querySelector('#query').naturalWidth === 40"))
    until(browser, lambda: "like this photograph" in one(browser, "#status").text)
    assert one(browser, ".found .large").get_attribute("title").startswith("1.000"), "what this model takes it for"
    (tmp_path / "no.png").write_bytes(b"no picture")
    one(browser, "#file").send_keys(str(tmp_path / "no.png"))
    until(browser, lambda: one(browser, "#status.failed").text)


def test_review(browser: Any, address: str, decided: DecisionFile) -> None:
    first = first_visit(browser, address)
    assert not one(browser, "#own").is_displayed(), "what the judge compares"
    press(browser, "y")
    assert browser.switch_to.active_element.get_attribute("name") == "reviewer"
    assert not answers(decided, "ada")
    press(browser, *"ada", "\ue007")
    until(browser, lambda: answers(decided, "ada") == ["fits"])
    until(browser, lambda: shown(browser) != first)
    press(browser, "n", "s", "n")
    until(browser, lambda: answers(decided, "ada") == ["fits", "differs", "unsure", "differs"])
    until(browser, lambda: one(browser, "#progress").text.startswith("4 of "))
    fifth = shown(browser)
    press(browser, "u")
    until(browser, lambda: answers(decided, "ada")[-1] == "undone")
    fourth = shown(browser)
    assert len({first, fourth, fifth}) == 3
    browser.refresh()
    until(browser, lambda: one(browser, "#caption").text)
    assert shown(browser) == fourth
    one(browser, "#past summary").click()
    all_of(browser, "#given button")[-1].click()
    assert shown(browser) == first
    press(browser, "n")
    until(browser, lambda: answers(decided, "ada")[-1] == "differs")
    until(browser, lambda: shown(browser) == fourth)

    own = browser.current_window_handle
    browser.switch_to.new_window("tab")
    browser.get(f"{address}/review")
    until(browser, lambda: one(browser, "#caption").text)
    press(browser, "y")
    until(browser, lambda: answers(decided, "ada")[-1] == "fits")
    browser.close()
    browser.switch_to.window(own)
    until(browser, lambda: shown(browser) == fifth)


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 900, "light"), (390, 800, "dark")])
def test_pages_are_accessible_and_fit(browser: Any, address: str, width: int, height: int, scheme: str) -> None:
    import axe_core_python

    rules = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    look(browser, width, height, scheme)
    for path in ("/?q=a+dog", "/review"):
        first_visit(browser, address)
        press(browser, "y")  # asks for a name
        if path != "/review":
            browser.get(address + path)
            until(browser, lambda: all_of(browser, ".found > li"))
        browser.execute_script(rules)
        found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        assert len(found["passes"]) > 10
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]] == [], path
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), path
        dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 25, 28)"
        assert dark == (scheme == "dark")
