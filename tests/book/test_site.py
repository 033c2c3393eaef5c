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
def opened(browser, *own):
    """An empty page, with lists of its errors and of its requests to addresses not its own."""
    context = browser.new_context()
    page = context.new_page()
    page.outside, page.errors = [], []

    def route(call):
        if call.request.url.startswith((*own, "data:")):
            call.continue_()
        else:
            page.outside.append(call.request.url)
            call.abort()

    page.route("**/*", route)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.set_default_timeout(120_000)  # a busy machine is slow, not wrong
    page.clock.install()
    yield page
    context.close()


def visit(page, address, width=1280, scheme="light"):
    """Load a page, with its formulas, and let an hour go by: what asks late asks now."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    page.evaluate("window.MathJax && MathJax.startup && MathJax.startup.promise.then(() => 0)")
    page.clock.fast_forward("01:00:00")


def faults(page, width, scheme) -> list[str]:
    """What a reader at this width and in this colour scheme would find broken."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    broken = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
    errors = [e for e in page.errors if not any(known in e for known in KNOWN_ERRORS)]
    found = {
        "asks another server": sorted(set(page.outside)),
        "errors": errors,
        "formulas not set": page.locator(".math").count() - page.locator("mjx-container").count(),
        "formulas with an error": page.locator("mjx-merror").count(),
        "formulas left as text": page.locator("article").inner_text().count("\\("),
        "wider than the screen": page.evaluate("document.documentElement.scrollWidth") > width,
        "formulas cut off": page.evaluate(CUT_OFF),
        "pictures missing": page.evaluate(broken),
        "another scheme": page.evaluate("document.documentElement.dataset.theme") != scheme,
    }
    return [f"{width} {scheme}, {what}: {value}" for what, value in found.items() if value]


def all_faults(browser, site, served, name) -> list[str]:
    """A page from disk on a wide screen, then from a server on a phone, each light and dark."""
    disk, found = site.as_uri(), []
    with opened(browser, disk, served) as page:
        for own, width, schemes in (
            (disk, 1280, ("light", "dark")),
            (served, 390, ("dark", "light")),
        ):
            visit(page, f"{own}/{name}", width, schemes[0])
            for scheme in schemes:
                found += faults(page, width, scheme)
    return found


def test_the_front_page_leads_to_the_book(browser, site):
    with opened(browser, site.as_uri()) as page:
        page.goto((site / "index.html").as_uri())
        page.wait_for_url("**/book/index.html")
        assert page.title().startswith("Attention, Checked")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_stands_alone(browser, site, served, name):
    assert all_faults(browser, site, served, name) == []


EVERYWHERE = ["1280 light", "1280 dark", "390 dark", "390 light"]
PHONE, DARK = EVERYWHERE[2:], EVERYWHERE[1:3]
# what is put into a page -> the fault, and where it must be seen
BROKEN = {
    '<script src="https://cdn.invalid/a.js"></script>': ("cdn.invalid/a.js", EVERYWHERE),
    '<img src="https://cdn.invalid/b.png">': ("cdn.invalid/b.png", EVERYWHERE),
    '<style>@import url("https://cdn.invalid/c.css");</style>': ("cdn.invalid/c.css", EVERYWHERE),
    '<script>setTimeout(() => fetch("https://cdn.invalid/late"), 5000)</script>': (
        "cdn.invalid/late",
        EVERYWHERE,
    ),
    "<script>undefined.planted</script>": ("reading 'planted'", EVERYWHERE),
    '<img src="nowhere.png">': ("nowhere.png", EVERYWHERE),
    '<p class="math">no formula</p>': ("formulas not set: 1", EVERYWHERE),
    '<p class="math">\\(\\frac{1}\\)</p>': ("formulas with an error: 1", EVERYWHERE),
    "<p>\\&#40; x</p>": ("formulas left as text: 1", EVERYWHERE),
    '<p class="math" style="margin-left: -3000px">\\(x\\)</p>': ("cut off: ['x']", EVERYWHERE),
    '<div style="min-width: 600px">a table</div>': ("wider than the screen", PHONE),
    "<script>const root = document.documentElement; new MutationObserver(() => "
    '{ if (root.dataset.theme !== "light") root.dataset.theme = "light" }).observe('
    'root, {attributes: true}); root.dataset.theme = "light"</script>': ("another scheme", DARK),
}


def test_each_fault_of_a_page_is_seen(browser, site, served):
    """All at once, in a page of the book: each fault where it shows, and nowhere else."""
    page = (site / "book/notation.html").read_text()
    assert page.count("</article>") == 1
    planted = page.replace("</article>", "\n".join([*BROKEN, "</article>"]))
    (site / "book/broken.html").write_text(planted)
    found = all_faults(browser, site, served, "book/broken.html")
    for fault, states in BROKEN.values():
        seen = [line.partition(",")[0] for line in found if fault in line]
        assert list(dict.fromkeys(seen)) == states, fault


def test_callouts_become_boxes_and_solutions_are_folded(browser, site):
    with opened(browser, site.as_uri()) as page:
        visit(page, (site / "book/01_one_head.html").as_uri())
        assert page.locator(".admonition.exercise").count() == 4
        assert page.locator(".admonition.tip").count() == 1
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
