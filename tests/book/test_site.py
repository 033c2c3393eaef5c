"""The built pages, opened in a browser that has no network."""

import contextlib
import functools
import http.server
import re
import shutil
import threading

import checked
import pages
import pytest
from copies import copy_tree, run_build
from playwright.sync_api import sync_playwright

NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# the theme's own, harmless: it adds one script twice, and looks for a list that short pages lack
KNOWN_ERRORS = ("THEBE_JS_URL", "reading 'classList'")

# formulas cut off on the left, or wider than the page without a scroll bar
CUT_OFF = """() => [...document.querySelectorAll("mjx-container")].filter(formula => {
  const glyphs = [...formula.querySelectorAll("mjx-c")].map(c => c.getBoundingClientRect());
  const inside = {
    left: Math.min(...glyphs.map(g => g.left)),
    right: Math.max(...glyphs.map(g => g.right)),
  };
  const scrolls = formula.closest(".pst-scrollable-table-container, div.math");
  const left = scrolls ? scrolls.getBoundingClientRect().left : 0;
  return inside.left < left - 1 || (!scrolls && inside.right > innerWidth);
}).map(formula => formula.closest("p, div").textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The strict build of a copy of the working tree; its outputs are checked elsewhere."""
    root = copy_tree(tmp_path_factory.mktemp("site") / "checkout")
    checked.write(root)
    run = run_build(root)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not re.search("warning:", run.stdout + run.stderr, re.IGNORECASE)
    return root / "_build" / "html"


@pytest.fixture(scope="module")
def served(site):
    """The same pages from a server on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, address, own, **options):
    """A page, with the list of its requests to anywhere but its own address, all refused."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.outside, page.errors = [], []

    def route(call):
        if call.request.url.startswith((own, "data:")):
            call.continue_()
        else:
            page.outside.append(call.request.url)
            call.abort()

    page.route("**/*", route)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.set_default_timeout(120_000)  # a busy machine is slow, not wrong
    page.goto(address)
    page.wait_for_timeout(500)  # for late requests; to wait for "networkidle" may hang for ever
    page.evaluate("window.MathJax && MathJax.startup && MathJax.startup.promise.then(() => 0)")
    yield page
    context.close()


def test_the_front_page_leads_to_the_book(browser, site):
    address = (site / "index.html").as_uri()
    with opened(browser, address, site.as_uri(), viewport={"width": 1280, "height": 900}) as page:
        page.wait_for_url("**/book/index.html")
        assert page.title().startswith("Attention, Checked")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_stands_alone(browser, site, name, width, scheme):
    address, viewport = (site / name).as_uri(), {"width": width, "height": 900}
    with opened(browser, address, site.as_uri(), viewport=viewport, color_scheme=scheme) as page:
        assert page.outside == []
        assert [e for e in page.errors if not any(known in e for known in KNOWN_ERRORS)] == []
        # every formula that the page holds was turned into glyphs, none into an error
        formulas = page.locator(".math").count()
        assert page.locator("mjx-container").count() == formulas
        assert page.locator("mjx-merror").count() == 0
        assert "\\(" not in page.locator("article").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
        broken = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).length"
        assert page.evaluate(broken) == 0
        assert page.evaluate("document.documentElement.dataset.theme") == scheme


@pytest.mark.parametrize("name", NAMES)
def test_a_served_page_stands_alone_too(browser, served, name):
    with opened(browser, f"{served}/{name}", served) as page:
        assert page.outside == []
        assert page.locator("mjx-container").count() == page.locator(".math").count()


def test_a_request_to_outside_would_be_seen(browser, site, tmp_path):
    """The check above can fail: a page with a script, a picture and a font from outside."""
    planted = tmp_path / "planted.html"
    planted.write_text(
        '<script src="https://cdn.invalid/a.js"></script><img src="https://cdn.invalid/b.png">'
        '<style>@import url("https://cdn.invalid/c.css");</style><div style="width:2000px">x</div>'
    )
    with opened(
        browser, planted.as_uri(), planted.as_uri(), viewport={"width": 390, "height": 900}
    ) as page:
        assert sorted(url[-5:] for url in page.outside) == ["/a.js", "b.png", "c.css"]
        assert page.evaluate("document.documentElement.scrollWidth") > 390


def test_callouts_become_boxes_and_solutions_are_folded(browser, site):
    with opened(browser, (site / "book/01_one_head.html").as_uri(), site.as_uri()) as page:
        assert page.locator(".admonition.exercise").count() == 5
        assert page.locator(".admonition.warning").count() == 3
        assert page.locator("blockquote").count() == 0
        folded = page.locator("details", has_text="Solution 1.1")
        assert folded.get_attribute("open") is None
        assert not page.get_by_text("weights_by_hand = [0.47").is_visible()


def test_launch_buttons_are_off_until_there_is_an_address(site):
    """Without an address of its own, Jupyter Book's buttons would point at Jupyter Book."""
    for name in NAMES:
        text = (site / name).read_text()
        for word in (
            "colab.research",
            "mybinder",
            "executablebooks/jupyter-book",
            "dropdown-launch-buttons",
            "dropdown-source-buttons",
        ):
            assert word not in text, (name, word)
