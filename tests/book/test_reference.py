"""The reference as it is built: each name in a table, each parameter a line, each link alive."""

import doctest
import html
import importlib
import inspect
import pkgutil
import re

import api
import pages
import pytest
from browsing import gathered, opened, styled, visit

MODULES = sorted(path.stem for path in pages.BOOK.glob("attn_*.md"))
TORCH = pages.BOOK / "_ext" / "torch.inv"
ENTRY = r'<dt class="sig sig-object py" id="([\w.]+)">'


def plain(text: str) -> str:
    """The words of HTML, or of a docstring: letters and digits alone."""
    text = re.sub(r'<span class="math[^>]*>.*?</span>|<math.*?</math>', "", text, flags=re.DOTALL)
    return re.sub(r"\W|_", "", html.unescape(re.sub("<[^>]*>", "", text)))


def names_of(module: str) -> list[str]:
    """The public names that a page lists, as its source says."""
    text = (pages.BOOK / f"{module}.md").read_text()
    listed = re.search(r":members:(.*)", text)[1].replace(" ", "")
    members = listed.split(",") if listed else api.ALL
    return api.public(importlib.import_module(module), members)


def entries(page: str) -> dict[str, str]:
    """Each entry of a page, from its heading to that of the next."""
    _, *rest = re.split(ENTRY, page)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def parameters(thing) -> list[str]:
    """What a docstring has to explain: the arguments, if it has a section for them."""
    doc = inspect.getdoc(thing) or ""
    if "\nArgs:\n" not in doc:
        return []
    names = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing).parameters
    return [name for name in names if name != "self"]


def faults(module: str, page: str) -> list[str]:
    """What the page of a module lacks."""
    imported, found = importlib.import_module(module), []
    table = re.search(r'(?s)<table class="autosummary.*?</table>', page)
    row = r'(?s)<tr.*?href="#([\w.]+)".*?</td>\s*<td>(.*?)</td>'
    rows = dict(re.findall(row, table[0])) if table else {}
    shown = entries(page)
    names = names_of(module)
    if list(rows) != [f"{module}.{name}" for name in names]:
        found.append(f"the table lists {list(rows)}")
    for name in names:
        thing, full = getattr(imported, name), f"{module}.{name}"
        entry = shown.get(full, "")
        if not entry:
            found.append(f"{name} has no entry")
        if callable(thing):
            found += [f"{name}: {fault}" for fault in faults_of(thing, entry, rows.get(full, ""))]
    return found


def faults_of(thing, entry: str, row: str) -> list[str]:
    """What the entry of a function or class lacks."""
    first, found = re.split(r"\n\n", inspect.getdoc(thing))[0], []
    if plain(row) not in plain(api_words(first)) or not row:
        found.append(f"the table says {plain(row)!r}")
    heading, _, text = entry.partition("</dt>\n<dd>")
    if 'href="../_modules/' not in heading:
        found.append("no source")
    explained = re.findall(r"<strong>([^<]*)</strong>", text)
    explained = {name.strip("*") for names in explained for name in names.split(", ")}
    found += [f"{name} has no line" for name in parameters(thing) if name not in explained]
    typed = re.findall(r'<em class="sig-param">(.*?)</em>', heading)
    untyped = [one for one in map(words, typed) if ":" not in one and one not in "*/"]
    return found + [f"{one} has no type" for one in untyped]


def words(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


def api_words(text: str) -> str:
    """A docstring without its roles and formulas."""
    return re.sub(
        r":\w+:`[~.]*([^`]*)`", r"\1", re.sub(r":math:`[^`]*`", "", api.set_formulas(text))
    )


@pytest.mark.parametrize("module", MODULES)
def test_each_name_is_in_the_table_and_each_parameter_has_a_line(site, module):
    assert faults(module, (site / f"book/{module}.html").read_text()) == []


def test_what_a_page_lacks_is_seen(site):
    page = (site / "book/attn_lib.masks.html").read_text()
    planted = {
        ("#attn_lib.masks.causal_mask", "#attn_lib.masks.other_mask"): "the table lists",
        ("<strong>offset</strong>", "<strong>offsets</strong>"): "offset has no line",
        ('href="../_modules/', 'href="../gone/'): "causal_mask: no source",
        ('<span class="p"><span class="pre">:</span></span>', ""): "has no type",
    }
    for mistake, fault in planted.items():
        assert any(fault in one for one in faults("attn_lib.masks", page.replace(*mistake))), fault


def test_every_public_name_has_one_entry_and_every_module_a_page(site):
    built = "".join((site / f"book/{module}.html").read_text() for module in MODULES)
    ids = re.findall(ENTRY, built)
    assert len(ids) == len(set(ids)) > 80
    index = (site / "book/reference.html").read_text()
    assert "pip install ." in words(index)
    assert {name for name in MODULES if f'href="{name}.html#module-{name}"' not in index} == set()
    package = pages.ROOT / "attn_lib"
    public = {f"attn_lib.{path.stem}" for path in package.iterdir() if path.stem[0] not in "_."}
    assert set(MODULES) == public - {"attn_lib.data", "attn_lib.py"} | {"attn_check"}


def test_what_is_said_once_stands_once(site):
    page = (site / "book/attn_lib.functional.html").read_text()
    entry = words(entries(page)["attn_lib.functional.attention"])
    assert "mask, attn_bias, scale, softcap, causal – as in attention_weights()." in entry
    assert api.merged("* **a** -- x\n  * **b** -- x\n") == "* **a**, **b** -- x\n"
    assert api.merged("* **a** -- x\n  * **b** -- xy\n") == "* **a** -- x\n  * **b** -- xy\n"


# ---------------------------------------------------------------- links


def test_the_default_of_a_list_is_an_empty_one(site):
    """And not what dataclasses call it, which also keeps the types from being links."""
    for module in MODULES:
        assert "factory&gt;" not in (site / f"book/{module}.html").read_text(), module
    assert api.readable("(said: list[~a.b.Note] = <factory>)") == "(said: list[~a.b.Note] = [])"


def test_sources_lead_to_the_definition(site):
    links = set()
    for module in MODULES:
        page = (site / f"book/{module}.html").read_text()
        links |= set(re.findall(r'href="\.\./(_modules/[^"#]*)#([^"]*)"', page))
    assert len(links) > 80
    for name, place in links:
        assert f'id="{place}"' in (site / name).read_text(), (name, place)


def lost_links(told: str, page: str) -> list[str]:
    """Pages that docstrings name, and that no link of the built page leads to."""
    stems = re.findall(r":doc:`/book/(\w+)`", api.linked(told))
    assert not re.search(r"\bpages? on \w", " ".join(api.linked(told).split()))
    linked = re.findall(r'<a class="reference internal" href="(\w+)\.html"><span class="doc"', page)
    return [stem for stem in set(stems) if stems.count(stem) > linked.count(stem)]


def docstrings(module: str) -> str:
    imported = importlib.import_module(module)
    things = [getattr(imported, name) for name in names_of(module)]
    return "\n\n".join(inspect.getdoc(thing) or "" for thing in [imported, *things])


def test_a_page_that_a_docstring_names_is_a_link(site):
    count = 0
    for module in MODULES:
        told, page = docstrings(module), (site / f"book/{module}.html").read_text()
        assert lost_links(told, page) == [], module
        count += len(re.findall(r":doc:", api.linked(told)))
    assert count > 30
    told, page = docstrings("attn_lib.masks"), (site / "book/attn_lib.masks.html").read_text()
    link = 'href="02_masks.html"><span class="doc"'
    assert lost_links(told, page.replace(link, "", 1)) == ["02_masks"]
    assert api.linked("in the book's\npage on masks") == "in :doc:`/book/02_masks`"
    assert api.linked("in the page on the\nencoder and decoder").endswith("/14_encoder_decoder`")


def test_every_link_to_torch_is_of_a_name_that_is_there():
    """The strict build already refuses a name that no inventory holds."""
    names = [line.split()[0] for line in TORCH.read_text().splitlines()[3:]]
    assert len(names) > 10
    for name in names:
        assert pkgutil.resolve_name(name) is not None


# ---------------------------------------------------------------- examples

# what each block of a page shows, and what its button puts where it can be pasted from; nothing is
# laid out meanwhile but what is copied
COPIED = """() => [...document.querySelectorAll("article button.copybtn")].map(button => {
  let copied;
  const note = () => { copied = document.activeElement.value; };
  document.addEventListener("copy", note);
  button.click();
  document.removeEventListener("copy", note);
  return [button.parentElement.querySelector("pre").textContent, copied];
})"""
HIDDEN = "body > :not(textarea) { display: none !important }"


def miscopied(page) -> list[str]:
    """What is copied otherwise than one would type it: as doctest reads it, or else as it is."""
    page.wait_for_selector("article button.copybtn", state="attached")
    faults = []
    with styled(page, HIDDEN):
        for shown, copied in page.evaluate(COPIED):
            examples = doctest.DocTestParser().get_examples(shown)
            typed = "".join(example.source for example in examples) or shown
            faults += [copied] * (copied.strip() != typed.strip())
    return faults


def test_an_example_is_copied_as_one_types_it(browser, site):
    """Without prompts, without what it prints; what has no prompt is copied whole."""
    script = (site / "_static/copybutton.js").read_text()
    prompt = r"formatCopyText(text, '>>> |\\.\\.\\. ', true"
    assert script.count(prompt) == 1
    texts = [(site / f"book/{name}.html").read_text() for name in (*MODULES, "how_checked")]
    block = r'(?s)<div class="[^"]*highlight-\w+ notranslate">.*?</pre></div>\n</div>'
    blocks = [one for text in texts for one in re.findall(block, text)]
    gathered(site, "examples", blocks, like=MODULES[0])
    address = f"{site.as_uri()}/book/examples.html"
    with opened(browser, site.as_uri()) as page:
        visit(page, address)
        assert page.locator("article button.copybtn").count() == len(blocks) > 60
        assert miscopied(page) == []
        without = script.replace(prompt, "formatCopyText(text, '', false")
        page.route("**/copybutton.js*", lambda call: call.fulfill(body=without))
        visit(page, address)
        assert [">>> " in copied for copied in miscopied(page)].count(True) > 2


# ---------------------------------------------------------------- formulas


def letters(text: str) -> str:
    """The letters and digits of a formula, in order."""
    text = re.sub(r"\\(operatorname|text|cdot|top|tilde)\b", "", text.replace("Ã", "A"))
    return re.sub(r"[\W_]", "", text.replace("ᵀ", "")).lower()


def test_formulas_say_the_same_in_both_forms_and_each_is_used():
    told = "\n".join(map(docstrings, MODULES))
    for plain_form, tex in api.formulas().items():
        assert plain_form in told, plain_form
        assert letters(plain_form) == letters(tex)
    assert letters("1/sqrt(d_k)") != letters(r"1/\sqrt{d_v}")
    assert api.set_formulas(">>> 1/sqrt(d_k)") == ">>> 1/sqrt(d_k)"
    assert api.set_formulas("default 1/sqrt(d_k).") == r"default :math:`1/\sqrt{d_k}`."
