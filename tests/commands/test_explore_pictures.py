"""Tests of the page of `tfm explore` with the user's own pictures, in a headless Chromium."""

import dataclasses
import threading

import numpy as np
import pytest
from PIL import Image

from tests.support import images as tiny
from tests.support.browser import find_chromium, open_browser
from tests.support.live_page import wait_for_answer
from tests.support.random_runs import write_random_run
from tfm.commands import explore
from tfm.commands.options import Explore
from tfm.data.config import ImagesConfig
from tfm.tasks.image_classification import Config
from tfm.workdir import runs

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one, or name it in CHROMIUM"),
]
NEWEST = "data.examples.at(-1)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    tiny.write_arrays(folder / "images.npz", {"train": 5, "validation": 4, "test": 3}, (6, 6, 3))
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"own <b>{number}.png")
    (folder / "text.png").write_text("no picture", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    data = ImagesConfig(kind="arrays", file=str(folder / "images.npz"), batch_size=4)
    config = Config(model=dataclasses.replace(tiny.MODEL, channels=3), data=data)
    image = np.zeros((1, 6, 6, 3), np.float32)
    return runs.load(str(write_random_run(config, folder / "run", (image,), {1: 0.0})))


@pytest.fixture(scope="module")
def page(run, folder, tmp_path_factory):
    arguments = ("0", str(folder / "own <b>0.png"))
    options = Explore(workdir=str(folder / "run"), config=None, overrides={}, arguments=arguments)
    server = explore.open_server(run, options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with open_browser(find_chromium(), tmp_path_factory.mktemp("profile")) as page:
        page.set_width(1400)
        page.open(server.url)
        yield page
        problems = [problem for problem in page.problems if not str(problem).startswith(server.url)]
    server.shutdown()
    server.server_close()
    thread.join()
    assert problems == []


def expected_probability(run, path):
    picture = run.task.read_picture(str(path), "picture")
    return run.task.observe_picture(run.variables, picture, "").predictions[0].probability


def test_a_picture_of_the_command_line_is_an_example(page, run, folder):
    found = page.evaluate("[data.examples[1].title, data.examples[1].predictions[0].probability]")
    assert found == ["own <b>0.png", pytest.approx(expected_probability(run, folder / "own <b>0.png"))]


@pytest.mark.parametrize("way", ["choose", "drop"])
def test_a_chosen_or_dropped_picture_becomes_an_example(way, page, run, folder):
    path = folder / "own <b>1.png"
    page.evaluate("data.examples.splice(2)")  # as if it was never shown
    if way == "choose":
        page.choose_files("#live-file", str(path))
    else:
        page.drop_files(str(path))
    wait_for_answer(page, "data.examples.length === 3 && view.example === 2")
    assert page.evaluate(f"{NEWEST}.title") == "own <b>1.png"
    probability = page.evaluate(f"{NEWEST}.predictions[0].probability")
    assert probability == pytest.approx(expected_probability(run, path), abs=1e-6)
    assert page.evaluate("document.querySelectorAll('main b b, main img').length") == 0


def test_a_patch_and_a_head_of_an_own_picture_are_turned_off(page):
    page.evaluate("change({ example: 1, other: -1 })")
    page.evaluate("byId('live-more').open = true")
    assert page.evaluate("document.querySelectorAll('#live-tokens .patches button').length") == 9
    page.point("#live-tokens .patches button:nth-child(5)", click=True)
    wait_for_answer(page, "view.other >= 0 && data.examples[view.other].live.off.length === 1")
    page.point("#heads [data-layer='0'][data-head='2']", click=True)
    wait_for_answer(page, "view.other >= 0 && data.examples[view.other].live.off.length === 2")
    off = page.evaluate("byId('live-off').textContent")
    assert off.startswith("patch row 1, column 1 ×encoder layer 0, head 2 ×")
    assert "observe('own <b>0.png')" in page.evaluate("byId('live-python').textContent")
    page.point("#live-all", click=True)
    wait_for_answer(page, "view.other === -1")


def test_arrow_keys_move_between_patches(page):
    page.evaluate("change({ example: 0, other: -1 })")
    page.evaluate("byId('live-more').open = true")
    page.evaluate("document.querySelector('.patches button').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "row 1, column 1"
    assert page.evaluate("document.querySelectorAll('.patches [tabindex=\"0\"]').length") == 1
    page.press("Enter")
    wait_for_answer(page, "view.other >= 0")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "row 1, column 1"


def test_a_file_that_is_no_picture_is_named(page, folder):
    page.drop_files(str(folder / "text.png"))
    wait_for_answer(
        page, "byId('live-status').textContent.startsWith('text.png cannot be read as a picture')"
    )


def test_a_picture_that_is_too_large_is_not_sent(page, folder):
    (folder / "large.png").write_bytes(bytes((8 << 20) + 1))
    page.drop_files(str(folder / "large.png"))
    wait_for_answer(
        page, "byId('live-status').textContent === 'large.png has more than 8 MB. Make it smaller.'"
    )
