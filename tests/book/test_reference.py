"""The reference as it is built: each name in a table, each parameter a line, each link alive."""

import importlib
import inspect
import pkgutil
import re

import api
import pages
import pytest

MODULES = sorted(path.stem for path in pages.BOOK.glob("attn_*.md"))
TORCH = pages.BOOK / "_ext" / "torch.inv"
ENTRY = r'<dt class="sig sig-object py" id="([\w.]+)">'


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
    imported, shown = importlib.import_module(module), entries(page)
    table = re.search(r'(?s)<table class="autosummary.*?</table>', page)
    rows = re.findall(r'(?s)<tr.*?href="#([\w.]+)"', table[0]) if table else []
    names = names_of(module)
    found = [] if rows == [f"{module}.{name}" for name in names] else [f"the table lists {rows}"]
    for name in names:
        thing, entry = getattr(imported, name), shown.get(f"{module}.{name}", "")
        found += [f"{name} has no entry"] * (not entry)
        if callable(thing):
            heading, _, text = entry.partition("</dt>\n<dd>")
            found += [f"{name}: no source"] * ('href="../_modules/' not in heading)
            strong = ", ".join(re.findall(r"<strong>([^<]*)</strong>", text)).split(", ")
            explained = {one.strip("*") for one in strong}
            found += [f"{one} has no line" for one in parameters(thing) if one not in explained]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_each_name_is_in_the_table_and_each_parameter_has_a_line(site, module):
    assert faults(module, (site / f"book/{module}.html").read_text()) == []


def test_what_a_page_lacks_is_seen(site):
    page = (site / "book/attn_lib.masks.html").read_text()
    planted = {
        ("#attn_lib.masks.causal_mask", "#attn_lib.masks.other_mask"): "the table lists",
        ("<strong>offset</strong>", "<strong>offsets</strong>"): "offset has no line",
        ('href="../_modules/', 'href="../gone/'): "causal_mask: no source",
    }
    for mistake, fault in planted.items():
        assert any(fault in one for one in faults("attn_lib.masks", page.replace(*mistake))), fault


def test_every_module_has_a_page():
    package = pages.ROOT / "attn_lib"
    public = {f"attn_lib.{path.stem}" for path in package.iterdir() if path.stem[0] not in "_."}
    assert set(MODULES) == public - {"attn_lib.data", "attn_lib.py"} | {"attn_check"}


# ---------------------------------------------------------------- links


def test_a_page_that_a_docstring_names_is_a_link():
    """The strict build refuses a "page on" that is none, and a link that leads nowhere."""
    assert api.linked("in the book's\npage on masks") == "in :doc:`/book/02_masks`"
    assert api.linked("in the page on the\nencoder and decoder").endswith("/14_encoder_decoder`")


def test_every_link_to_torch_is_of_a_name_that_is_there():
    """The strict build already refuses a name that no inventory holds."""
    names = [line.split()[0] for line in TORCH.read_text().splitlines()[3:]]
    assert len(names) > 10
    for name in names:
        assert pkgutil.resolve_name(name) is not None


# ---------------------------------------------------------------- examples


def test_an_example_is_copied_without_prompts_and_without_what_it_prints(site):
    script = (site / "_static/copybutton.js").read_text()
    assert r"formatCopyText(text, '>>> |\\.\\.\\. ', true, true, true," in script


# ---------------------------------------------------------------- formulas


def letters(text: str) -> str:
    """The letters and digits of a formula, in order."""
    text = re.sub(r"\\(operatorname|text|cdot|top|tilde)\b", "", text.replace("Ã", "A"))
    return re.sub(r"[\W_]", "", text.replace("ᵀ", "")).lower()


def test_formulas_say_the_same_in_both_forms_and_each_is_used():
    told = "".join(text for name, text in pages.written().items() if name.endswith(".py"))
    for plain_form, tex in api.formulas().items():
        assert plain_form in told, plain_form
        assert letters(plain_form) == letters(tex)
    assert letters("1/sqrt(d_k)") != letters(r"1/\sqrt{d_v}")
    assert api.set_formulas(">>> 1/sqrt(d_k)") == ">>> 1/sqrt(d_k)"
    assert api.set_formulas("default 1/sqrt(d_k).") == r"default :math:`1/\sqrt{d_k}`."
