"""Serve a site on loopback, look at every page of it in a browser, and say which links lead nowhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from .browser import Browser

# What one page has to say for itself, asked in the page.
FACTS = """({
    status: performance.getEntriesByType('navigation')[0].responseStatus,
    heading: (document.querySelector('article h1') || {innerText: ''}).innerText,
    links: [...document.querySelectorAll('a[href]')].map(link => link.href),
    ids: [...document.querySelectorAll('[id], a[name]')].map(one => one.id || one.name),
    loaded: performance.getEntriesByType('resource').map(one => [one.name, one.responseStatus]),
    unknown: [...document.querySelectorAll('article *')].filter(one => one instanceof HTMLUnknownElement)
        .map(one => one.localName),
})"""


@dataclass(frozen=True)
class Page:
    """One page as a browser shows it."""

    status: int
    heading: str
    links: list[str]
    ids: list[str]
    loaded: list[tuple[str, int]]  # what it needs: address and status
    unknown: list[str]  # elements that HTML does not have: a `<word>` of the text that was meant to be read


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve a directory, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def crawl(browser: Browser, home: str) -> dict[str, Page]:
    """Return every page that can be reached from the first one, by address."""
    pages: dict[str, Page] = {}
    ahead = [home]
    while ahead:
        address = ahead.pop()
        if address in pages:
            continue
        browser.open(address)
        pages[address] = page = Page(**browser.ask(FACTS))
        ahead += [urldefrag(link).url for link in page.links if is_page(link, home)]
    return pages


def is_page(link: str, home: str) -> bool:
    """Whether the browser is to open it; other files of the site are only asked for."""
    return link.startswith(home) and urldefrag(link).url.endswith(("/", ".html"))


def dead_links(browser: Browser, home: str, pages: dict[str, Page]) -> list[str]:
    """Return `page -> link` of every link within the site that leads to no file, no page, or no place on its page."""
    files: dict[str, int] = {}
    found = []
    for address, page in pages.items():
        for link in sorted(set(page.links)):
            target, place = urldefrag(link)
            if not link.startswith(home):
                continue
            if target in pages:
                alive = pages[target].status == 200 and (not place or unquote(place) in pages[target].ids)
            else:
                if target not in files:
                    files[target] = browser.ask(f"fetch({target!r}).then(answer => answer.status)")
                alive = files[target] == 200
            if not alive:
                found.append(f"{address.removeprefix(home)} -> {link.removeprefix(home)}")
    return found
