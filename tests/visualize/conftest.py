"""Fixtures of the tests that open the interactive page in a browser."""

import pytest

from tests.support.browser import find_chromium, open_browser
from tests.support.observations import BREIT, WIDE, make_observation
from tfm.visualize.page import make_page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with open_browser(find_chromium(), tmp_path_factory.mktemp("profile")) as page:
        page.set_width(1400)
        yield page


@pytest.fixture(scope="module")
def observations():
    return [make_observation(0), make_observation(1, WIDE, BREIT)]


@pytest.fixture
def show(page, observations, tmp_path):
    """Returns a function that opens the page of some examples. Fails if the page reports problems."""

    def open_at(address="", examples=observations):
        path = tmp_path / "page.html"
        path.write_text(make_page(examples, "<b>run</b>"), encoding="utf-8")
        page.open(f"{path.as_uri()}#{address}")
        return page

    yield open_at
    problems, page.problems = page.problems, []
    assert problems == []
