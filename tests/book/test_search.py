"""What visitors ask, typed into the search of the built site: the section that answers is near.

The words are marked where the answer stands, and nowhere else.
"""

import html
import json
import re
import unicodedata
from pathlib import Path

import pytest
from browsing import loaded, opened

# a section, words of its answer -> what visitors type: the answer is the first result, or near it
ANSWERS = json.loads(Path(__file__).with_name("questions.json").read_text())
RESULTS = "ul.search > li > a"
# the first three results of each question, as the search page shows them
SEARCH = """async questions => {
  const found = {}, page = which => document.querySelector(which);
  for (const question of questions) {
    page("#search-results").replaceChildren();
    Search.performSearch(question);
    while (!page(".search-summary").innerText) await new Promise(requestAnimationFrame);
    found[question] = [...document.querySelectorAll("RESULTS")].slice(0, 3).map(one => one.href);
  }
  return found;
}""".replace("RESULTS", RESULTS)
# what the section at the address says, if its heading is on the screen
THERE = """() => {
  const section = document.getElementById(location.hash.slice(1))?.closest("section");
  const at = section?.querySelector("h1, h2, h3").getBoundingClientRect();
  return at && at.top >= 0 && at.bottom < innerHeight ? section.textContent : "";
}"""


def text_of(root, address) -> str:
    """The text of a section, without those inside it."""
    name, _, anchor = address.partition("#")
    start = f'<section id="{anchor}">' if anchor else "</h1>"
    _, *rest = (root / "book" / name).read_text().split(start)
    return re.sub("<[^>]*>", "", rest[-1].partition("<section ")[0]) if rest else ""


def lost(answers, shown, root) -> list[str]:
    """Questions whose answer is not among three results, and addresses where it does not stand."""
    found = []
    for answer in answers:
        link = f"{root.as_uri()}/book/{answer['section']}"
        for kind, results in (("first", 1), ("among three", 3)):
            found += [one for one in answer[kind] if link not in shown[one][:results]]
        if answer["words"] not in text_of(root, answer["section"]):
            found.append(f"not there: {answer['section']}")
    return found


def test_what_visitors_ask_is_found(browser, site):
    questions = [one for answer in ANSWERS for one in answer["first"] + answer["among three"]]
    with opened(browser, site.as_uri()) as page:
        page.goto(f"{site.as_uri()}/search.html")
        shown = page.evaluate(SEARCH, questions)
        assert page.errors + page.outside == []
    assert lost(ANSWERS, shown, site) == []
    pages = [answer["section"].partition("#")[0] for answer in ANSWERS]
    elsewhere = [a | {"section": f"{p}#nowhere"} for a, p in zip(ANSWERS, pages, strict=True)]
    assert len(lost(elsewhere, shown, site)) == len(questions) + len(ANSWERS)


def essence(text) -> str:
    """The letters and digits of a text, whichever way they are set."""
    return re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", text.replace("ᵀ", "")))


def astray(site, excerpts) -> list[str]:
    """How sections begin, as the index has it, that no page says so, or that have words of TeX."""
    found = []
    for name, told in excerpts.items():
        page = (site / f"{name}.html").read_text()
        page = re.sub(r"<mroot>(.*?)<mn>(\d)</mn></mroot>", r"\2\1", page[page.index("<article") :])
        page = essence(html.unescape(re.sub("<[^>]*>", "", page)))
        lines = [line for one in told.values() for line in ([one] if one == str(one) else one)]
        found += [
            line
            for line in dict.fromkeys(lines)
            if essence(line) not in page or re.search(r"\\[a-zA-Z({]|[_^]\{|\$", line)
        ]
    return found


def test_how_sections_begin_is_readable_and_what_the_page_says(site):
    index = (site / "searchindex.js").read_text()
    excerpts = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["excerpts"]
    assert sum(map(len, excerpts.values())) > 400
    assert astray(site, excerpts) == []
    page, told = next((page, told) for page, told in excerpts.items() if "d_model" in str(told))
    planted = json.loads(json.dumps(told).replace("d_model", r"d_\\text{model}"))
    assert astray(site, {page: planted}) != []


# each result: its address, its words, how many boxes a ring around it has, whether it has the focus
SHOWN = """() => [...document.querySelectorAll("ul.search > li")].map(result => {
  const [link, ...words] = result.children;
  const boxes = link.getClientRects().length, focus = link === document.activeElement;
  return [link.href, words.map(one => one.textContent), boxes, focus];
})"""


def search(page, own, words):
    """What the search page shows."""
    page.goto(f"{own}/search.html?q={words}")
    page.wait_for_function("document.querySelector('.search-summary')?.innerText")
    return page.evaluate(SHOWN)


@pytest.mark.parametrize("disk", [True, False])
def test_a_result_says_where_it_stands_and_leads_there(browser, site, served, disk):
    """By keyboard, and by one click; from disk too, where no page can be fetched."""
    own, answer = site.as_uri() if disk else served, ANSWERS[0]
    with opened(browser, own, viewport={"width": 390, "height": 900}) as page:
        for typed, row in (
            ("多头", "multi-head attention · 多头注意力"),
            ("glossary", "term · 中文"),
        ):
            assert search(page, own, typed)[0][1][1].startswith(row)
        results = search(page, own, "what is H")
        assert len({link for link, *_ in results}) == len(results)
        focus = [(boxes, focused) for _, _, boxes, focused in results]
        assert focus == [(1, True), *[(1, False)] * (len(focus) - 1)]
        sections = [(link, words) for link, words, *_ in results if "#" in link]
        assert len(sections) > 5
        for link, (where, begins) in sections:
            address = link.partition("/book/")[2]
            name = address.partition("#")[0]
            title = re.search("<title>(.*?)( &#8212;|</)", (site / "book" / name).read_text())
            assert essence(html.unescape(title[1])) in essence(where)
            assert essence(begins[:50]) in essence(html.unescape(text_of(site, address)))
        for address in ("?q=qqqq", ""):
            page.goto(f"{own}/search.html{address}")
            assert page.evaluate("document.activeElement.matches('.bd-search-container input')")
        page.goto(f"{own}/book/how_checked.html")
        page.keyboard.press("Control+k")
        page.keyboard.type(answer["first"][0])
        page.keyboard.press("Enter")
        page.locator(RESULTS).first.click()
        page.wait_for_url(f"{own}/book/*{answer['section'].partition('#')[2]}")
        assert answer["words"] in page.evaluate(THERE)
        assert page.errors + page.outside == []


def test_results_come_while_one_types(browser, site):
    """With half a word; by keyboard from the field through them and back; Escape closes all."""
    with loaded(browser, site, "teach", 390) as page:
        dialog, found = page.locator("#pst-search-dialog"), page.locator("dialog ul.search a")
        said = dialog.get_by_role("status")
        page.keyboard.press("Control+k")
        page.keyboard.insert_text("grouped qu")
        found.first.wait_for()
        assert found.first.get_attribute("href").endswith(
            "#a-smaller-kv-cache-grouped-query-attention-gqa"
        )
        assert said.inner_text().endswith(": Enter shows all")
        assert found.count() == int(said.inner_text().split()[0]) == 8
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for key, at in zip(("Down", "Down", "Up"), (0, 1, 0), strict=True):
            page.keyboard.press(f"Arrow{key}")
            assert found.nth(at).evaluate("link => link === document.activeElement")
        before = found.first.element_handle()
        dialog.locator("input").evaluate("field => field.dispatchEvent(new Event('input'))")
        before.wait_for_element_state("hidden")  # the results of the last letter come late
        assert found.first.evaluate("link => link === document.activeElement")
        page.keyboard.press("ArrowUp")
        assert dialog.locator("input").evaluate("field => field === document.activeElement")
        dialog.locator("input").fill("qqqq")
        page.wait_for_function("!document.querySelector('dialog ul.search a')")
        assert said.inner_text() == "no results"
        dialog.locator("input").fill("")
        said.wait_for(state="hidden")
        page.keyboard.type("simple rivals")
        found.first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden", timeout=5000)
        assert page.errors + page.outside == []


def test_a_result_on_the_same_page_is_marked_there(browser, site):
    with loaded(browser, site, "05_positions") as page:
        for word in ("ALiBi", "Shuffle"):
            page.keyboard.press("Control+k")
            page.locator("dialog input").fill(word)
            page.locator("dialog ul.search a", has_text=word).first.click()
            page.wait_for_function("CSS.highlights.has('found')")
            assert set(marked(page)) <= {"alibi", "shuffle", "shuffled", "shuffles", "shuffling"}
            assert word.lower() in marked(page)
            assert page.locator("button.marks").count() == 1
            assert not page.locator("#pst-search-dialog").is_visible()
        page.goto(f"{site.as_uri()}/book/17_weather.html")
        assert marked(page) == []


# what is marked, and the parts of the page where no mark may be
MARKED = """() => [...(CSS.highlights.get("found") || [])].map(range => [
  range.toString().toLowerCase(),
  !range.startContainer.parentElement.closest("article") ||
  !!range.startContainer.parentElement.closest(".live, .math, summary, button")])"""


def marked(page) -> list[str]:
    """The words that are marked, after seeing that they stand in the text."""
    assert page.locator(".highlighted").count() == 0
    found = page.evaluate(MARKED)
    assert [word for word, amiss in found if amiss] == []
    return [word for word, _ in found]


def test_what_was_searched_is_marked_where_it_led(browser, site):
    """Nothing of one letter, nothing that half of the pages hold; nothing on any later page."""
    own = site.as_uri()
    with opened(browser, own) as page:
        page.goto(f"{own}/book/03_many_heads.html?marks=head+solution")  # in figures, in summaries
        assert {"head", "heads"} < set(marked(page)) < {"head", "heads", "headed", "solution"}
        page.goto(f"{own}/book/03_many_heads.html?marks=%29%28+%5B")  # an address says anything
        assert marked(page) + page.errors == []
        for typed, words in (("H", set()), ("head mask", set()), ("my rows are NaN", {"nan"})):
            search(page, own, typed)
            page.keyboard.press("Enter")
            page.wait_for_url("**/book/**")
            assert set(marked(page)) == words
        button = page.locator("button.marks")
        page.wait_for_function("scrollY > 100")
        assert 0 <= button.bounding_box()["y"] < 100
        for shown in (True, False, True):
            assert button.inner_text() == f"{'Hide' if shown else 'Show'} matches"
            assert bool(marked(page)) == shown
            button.focus()
            page.keyboard.press("Enter")
            assert button.evaluate("button => button === document.activeElement")
        page.goto(f"{own}/book/conventions.html")  # which holds the word, too
        assert marked(page) == []
        assert button.count() == 0
