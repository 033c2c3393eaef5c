"""The built book in a browser that has no network, built once for all tests."""

import contextlib
import fcntl
import functools
import http.server
import os
import re
import shutil
import threading
from pathlib import Path

import axe_playwright_python
import checked
import pages
import pytest
from copies import copy_tree, run_build
from pdf import BROWSERS, LOADED
from playwright.sync_api import sync_playwright

AXE = (Path(axe_playwright_python.__path__[0]) / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The strict build of the working tree; its outputs are checked elsewhere.

    The first of the processes that run tests copies what the README's first command built, or, if
    the tree has changed since, builds a copy of it; the others wait.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    root = folder / "site"
    with (folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "site.built").exists():
            shutil.rmtree(root, ignore_errors=True)  # of a process whose build was red
            if checked.built(pages.ROOT):
                unread = shutil.ignore_patterns(".doctrees", "jupyter_execute")
                shutil.copytree(pages.ROOT / "_build", root / "_build", ignore=unread)
            else:
                checked.write(copy_tree(root))
                run = run_build(root)
                assert run.returncode == 0, run.stdout + run.stderr
                assert not re.search("warning:", run.stdout + run.stderr, re.IGNORECASE)
            (folder / "site.built").touch()
    return root / "_build" / "html"


@pytest.fixture(scope="session")
def served(site):
    """The same pages from a server on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        how = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=found, args=how)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, *own, **options):
    """An empty page, with lists of its errors and of its requests to addresses not its own."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.outside, page.errors = [], []

    def refuse(call):
        page.outside.append(call.request.url)
        call.abort()

    def said(message):
        if not message.text.startswith("Failed to load"):  # which a test itself may refuse
            page.errors.append(message.text)

    page.route(re.compile(f"^(?!{'|'.join(map(re.escape, [*own, 'data:']))})"), refuse)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", said)
    page.set_default_timeout(120_000)  # a busy machine is slow, not wrong
    page.clock.install()
    yield page
    context.close()


@contextlib.contextmanager
def loaded(browser, site, name, *screen, **options):
    """A page of the book, loaded from disk."""
    with opened(browser, site.as_uri(), **options) as page:
        visit(page, f"{site.as_uri()}/book/{name}.html", *screen)
        yield page


@contextlib.contextmanager
def styled(page, style):
    """The same page with a mistake in its style."""
    tag = page.add_style_tag(content=style)
    yield
    tag.evaluate("tag => tag.remove()")


def only(part):
    """Take away what stands around a part of an article: what changes is laid out without it."""
    part.evaluate("""part => {
      for (; part.parentElement.closest("article"); part = part.parentElement)
        for (const other of [...part.parentElement.children])
          if (other !== part && !/^H\\d$/.test(other.tagName)) other.remove();
    }""")


def visit(page, address, width=1280, scheme="light"):
    """Load a page, with formulas and pictures; an hour goes by: what asks late asks now."""
    page.goto("about:blank")  # or the page before would be laid out once more
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    page.evaluate("document.fonts.ready.then(() => 0)")
    page.evaluate(LOADED)
    page.clock.fast_forward("01:00:00")


def gathered(site, name, parts):
    """A page of the site whose article is made of parts of others."""
    html, page = (site / "book/notation.html").read_text(), site / f"book/{name}.html"
    start, end = re.search("(?s)<article[^>]*>(.*)</article>", html).span(1)
    page.write_text(html[:start] + "".join(parts) + html[end:])
    return page


def set_scheme(page, scheme):
    """Let the reader's system be light or dark; the page's script follows a little later."""
    page.emulate_media(color_scheme=scheme)
    page.wait_for_selector(f"html[data-theme={scheme}]")


def contrast(one, other) -> float:
    """The ratio by which two colours are told apart: of how bright they are to the eye."""
    low, high = sorted(map(_light, (one, other)))
    return high / low


def _light(colour) -> float:
    parts = [a / 255 for a in colour]
    linear = [((a + 0.055) / 1.055) ** 2.4 if a > 0.04045 else a / 12.92 for a in parts]
    return 0.05 + sum(w * a for w, a in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def violations(page, part="html") -> list[str]:
    """What axe-core, with all its rules, finds on a page, or in a part, as it is shown."""
    # on a shade it gives up
    page.add_style_tag(content="article :not(#_) { background-image: none !important }")
    page.evaluate(AXE)
    options = {"resultTypes": ["violations"], "preload": False}
    found = page.evaluate("given => axe.run(...given)", [part, options])
    return [f"{v['id']}: {n['html'][:90]}" for v in found["violations"] for n in v["nodes"]]
