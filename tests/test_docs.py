"""The documentation as a site: it builds without a warning, asks no other host for anything, and has what it says."""

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.docs
# an attribute whose address the browser fetches by itself; a link (href of <a>) waits for a reader
FETCHED = {
    "img": "src",
    "script": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}


class Fetches(html.parser.HTMLParser):
    """The addresses that a page has its browser fetch."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in FETCHED and given.get(FETCHED[tag]) and given.get("rel") != "canonical":
            self.addresses.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    environment = os.environ | {"SLOTNORM_DOCS_SCENES": "16", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_nothing_is_fetched_from_another_host(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        for address in Fetches(page).addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.relative_to(site)} fetches {address}"
            folder = site if address.startswith("/") else page.parent
            path = folder / re.split("[?#]", address)[0].removeprefix("/")
            assert address.startswith("data:") or path.exists(), f"{page.relative_to(site)} fetches {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style
    # the theme's script holds the address of a diagram renderer, which it fetches for such a diagram only
    assert not [page for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")]


def test_the_landing_page_shows_the_demo(site):
    assert "demo/index.html" in Fetches(site / "index.html").addresses
    assert 'type="range"' in (site / "demo" / "index.html").read_text(encoding="utf-8")


def test_the_reference_describes_public_names_and_verbs(site):
    names = (site / "reference" / "index.html").read_text(encoding="utf-8")
    assert "Slot Attention with a chosen normalization of its update codes." in names
    commands = (site / "reference" / "command-line" / "index.html").read_text(encoding="utf-8")
    assert "usage: slotnorm reproduce NAME" in commands
    assert "usage: slotnorm data generate" in commands


def test_pages_can_be_searched(site):
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "Proposition 1" in index
    scripts = [address for address in Fetches(site / "index.html").addresses if address.endswith(".js")]
    assert scripts[-1] == "site.js"  # what a search for `--slots auto` needs; tests/test_page_in_browser.py tries it
