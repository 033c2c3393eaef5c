"""What visitors ask, typed into the search of the built site: the section that answers is near."""

import json
import re
import shutil

import pytest
from browsing import opened

# a section, words of the answer in it -> what visitors type
ANSWERS = {
    ("02_masks.html#when-a-row-is-empty-rows-of-nan", "0.333 each"): (
        *("my rows are NaN", "nan", "rows nan softmax mask", "softmax returns nan"),
    ),
    ("14_clinic.html#the-mask-is-inverted", "nn.MultiheadAttention closed again"): (
        *("my mask is inverted for nn.MultiheadAttention", "mask inverted", "inverted mask"),
    ),
    ("03_many_heads.html#switch-through-per-head-weights", "What do the twelve"): (
        *("per-head weights", "attention weights per head", "weights of each head"),
    ),
    (
        "conventions.html#what-comes-back-averaged-weights-weights-after-dropout",
        "their mean over the heads",
    ): ("average_attn_weights",),
    ("04_scaling.html#where-d-k-comes-from-random-products", "takes that away"): (
        *("√d_k", "sqrt d_k", "sqrt(d_k)", "sqrt dk", "why divide by sqrt(d_k)"),
    ),
    ("14_clinic.html#the-causal-mask-forgets-the-cache", "for the first positions"): (
        *("causal mask with a cache", "kv cache causal", "is_causal cache"),
    ),
    (
        "08_language_model.html#load-a-real-model-pretrained-weights-name-by-name",
        "Our decoder has the same parts under names of its own",
    ): ("load a real model", "load pretrained weights", "load hugging face weights"),
    ("05_positions.html#rotate-queries-and-keys-rotary-positions-rope", "keep their score"): (
        *("RoPE", "rotary", "rotary embedding", "rotary position embedding"),
    ),
    ("index.html#install-and-run-jupyter-colab", "Colab"): (
        "install",
        "run chapter 2 in Colab",
        "run in colab",
        "colab",
    ),
    ("reference.html#module-attn_lib.diagnosis", "attn_lib.diagnosis.diagnose("): (
        *("check my own attention", "check my attention", "test my own attention code"),
    ),
    ("notation.html#symbols-b-t-s-h-d-model-d-k-d-v-d-ff", "number of heads"): (
        *("what is H", "H", "what does H mean", "d_model", "symbols"),
    ),
}
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


def said(root, address) -> str:
    """The text of a section, without those inside it."""
    name, _, anchor = address.partition("#")
    _, *rest = (root / "book" / name).read_text().split(f'<section id="{anchor}">')
    return re.sub("<[^>]*>", "", rest[0].partition("<section ")[0]) if rest else ""


def lost(browser, root) -> list[str]:
    """Questions whose answer is not among three results, and addresses where it does not stand."""
    with opened(browser, root.as_uri()) as page:
        page.goto(f"{root.as_uri()}/search.html")
        shown = page.evaluate(SEARCH, [one for asked in ANSWERS.values() for one in asked])
        found = page.errors + page.outside
    for (address, words), asked in ANSWERS.items():
        link = f"{root.as_uri()}/book/{address}"
        found += [one for one in asked if link not in shown[one]]
        found += [f"not there: {address}"] * (words not in said(root, address))
    return found


def test_what_visitors_ask_is_found(browser, site):
    assert lost(browser, site) == []


@pytest.mark.parametrize("disk", [True, False])
def test_the_search_field_leads_to_the_answer(browser, site, served, disk):
    """From the front page by keyboard, and by one click."""
    own = site.as_uri() if disk else served
    (address, words), (typed, *_) = next(iter(ANSWERS.items()))
    with opened(browser, own) as page:
        page.goto(f"{own}/book/index.html")
        page.keyboard.press("Control+k")
        page.keyboard.type(typed)
        page.keyboard.press("Enter")
        page.locator(RESULTS).first.click()
        page.wait_for_url(f"{own}/book/{address}")
        assert words in page.evaluate(THERE)
        assert page.errors + page.outside == []


def test_each_answer_that_is_lost_is_seen(browser, site, tmp_path):
    """Headings renamed in the index, all but the first; that one's section has lost the answer."""
    (first, words), *others = ANSWERS
    name = first.partition("#")[0]
    index = (site / "searchindex.js").read_text()
    titles = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["alltitles"]
    for title, places in titles.items():
        if {place for _, place in places} & {address.partition("#")[2] for address, _ in others}:
            index = index.replace(f"{json.dumps(title)}: [[", f'"Renamed {len(index)}": [[')
    (tmp_path / "searchindex.js").write_text(index)
    shutil.copy(site / "search.html", tmp_path)
    (tmp_path / "_static").symlink_to(site / "_static")
    (tmp_path / "book").mkdir()
    for page in (site / "book").glob("*.html"):
        (tmp_path / "book" / page.name).symlink_to(page)
    (tmp_path / "book" / name).unlink()
    (tmp_path / "book" / name).write_text((site / "book" / name).read_text().replace(words, ""))
    asked = [one for answer in others for one in ANSWERS[answer]]
    assert sorted(lost(browser, tmp_path)) == sorted([*asked, f"not there: {first}"])
