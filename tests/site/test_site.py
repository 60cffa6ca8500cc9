"""The documentation site as a reader meets it: navigation, links, search. `make matrix` builds it and runs this."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .browser import Browser
from .crawl import Page, crawl, dead_links, served

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
ENTRIES = ".md-nav--primary .md-nav__link[href]:not([href^='#']):not(.md-nav--secondary *)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def pages(browser: Browser, home: str) -> dict[str, Page]:
    return crawl(browser, home)


def pages_of_the_navigation() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    found: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            found.append(entry)
        for one in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            walk(one)

    walk(nav)
    return found


def test_every_entry_of_the_navigation_opens_a_page_of_its_own(browser: Browser, home: str) -> None:
    browser.open(home)
    count = browser.ask(f"document.querySelectorAll({json.dumps(ENTRIES)}).length")
    headings = {}
    for index in range(count):  # every page has the whole navigation, in the same order
        browser.click(ENTRIES, index)
        headings[browser.ask("location.href")] = browser.ask("document.querySelector('article h1').innerText")

    assert len(headings) == count == len(pages_of_the_navigation())
    assert all(headings.values())


def test_every_page_that_can_be_reached_is_there(pages: dict[str, Page]) -> None:
    assert {address: page.status for address, page in pages.items() if page.status != 200} == {}
    assert len(pages) >= len(pages_of_the_navigation())


def test_no_link_leads_nowhere(browser: Browser, home: str, pages: dict[str, Page]) -> None:
    assert dead_links(browser, home, pages) == []


def test_everything_comes_from_the_site_itself(home: str, pages: dict[str, Page]) -> None:
    loaded = {tuple(one) for page in pages.values() for one in page.loaded}

    assert [one for one in loaded if not one[0].startswith(home) or one[1] != 200] == []
    assert len(loaded) > 3


def test_no_word_of_the_text_is_taken_for_an_element(pages: dict[str, Page]) -> None:
    assert {address: page.unknown for address, page in pages.items() if page.unknown} == {}


def test_the_search_finds_a_page_and_opens_it(browser: Browser, home: str) -> None:
    browser.open(home)
    browser.ask("document.querySelector('.md-search__input').focus()")
    browser.call("Input.insertText", text="thin_pool_autoextend_threshold")
    found = ".md-search-result__item a"
    browser.await_true(f"document.querySelectorAll('{found}').length > 0")
    browser.click(found)

    assert browser.ask("location.pathname") == "/docs/lvm/"
    assert "thin_pool_autoextend_threshold" in browser.ask("document.querySelector('article').innerText")


def test_dead_links_are_noticed(browser: Browser, tmp_path: Path) -> None:
    """To a page, a file and a heading that are not there."""
    dead = ["docs/lvm/#no-such-heading", "docs/no-such-page/", "no-such-file.yaml"]
    broken = shutil.copytree(SITE, tmp_path / "site")
    page = broken / "docs/architecture/index.html"
    links = "".join(f'<a href="/{link}">gone</a>' for link in dead)
    page.write_text(page.read_text().replace("</article>", f"{links}</article>", 1))

    with served(broken) as home:
        assert dead_links(browser, home, crawl(browser, home)) == [f"docs/architecture/ -> {link}" for link in dead]
