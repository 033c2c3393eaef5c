"""What is cited agrees with itself: names, years, addresses, and what stands in which section."""

import csv
import re
import unicodedata
from pathlib import Path

import pages
from tables import for_each

BIBLIOGRAPHY = (pages.BOOK / "references.bib").read_text()
SOURCES = pages.written()
# of each published work; authors and titles were compared with other people's bibliographies
WORKS = list(csv.DictReader((Path(__file__).parent / "works.csv").read_text().splitlines()))
ENTRIES = pages.bibliography(BIBLIOGRAPHY)


def bare(text: str) -> str:
    """Without braces, commands and accents."""
    text = re.sub(r"[{}]|\\(?:[^\w&]|(?=[&LlOo]))", "", text.replace("Ł", "L"))
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text))


def as_told(entry: dict[str, str]) -> dict[str, str]:
    """An entry, in the words of the table of works."""
    names = [", ".join(name.split(", ")[::-1]) for name in entry["author"].split(" and ")]
    authors = "; ".join(names).replace(", ", " ").replace("others", "et al.")
    place = "{journal} {volume}({number}), {pages}".format_map(entry).replace("--", "-")
    told = {"address": re.sub("^https?://", "", entry["url"]), "authors": authors}
    told |= {"year": entry["year"], "title": entry["title"]}
    return told | {"place": place if entry["journal"] else ""}


def inconsistent(text: str) -> list[str]:
    """Entries that differ from the table of works, and reports under another number."""
    found, works = [], {work["address"]: work for work in WORKS}
    for entry in pages.bibliography(text):
        faults, told = [], as_told(entry)
        number = re.search(r"github.com/[\w./-]+/(issues|pull)/(\d+)$", entry["url"])
        if work := works.pop(told["address"], {}):
            faults += [name for name in work if bare(told[name]) != bare(work[name])]
        elif re.search("arxiv|doi", entry["url"]) or entry["journal"]:
            faults += ["unknown"]
        if number:
            start = {"issues": "Issue", "pull": "Pull request"}[number[1]]
            faults += ["number"] * (not entry["title"].startswith(f"{start} {number[2]}: "))
        found += [f"{entry['key']}: {fault}" for fault in faults]
    return found + [f"{address}: gone" for address in works]


def test_entries_agree_with_the_works():
    assert inconsistent(BIBLIOGRAPHY) == []


@for_each(
    ("Ba, Jimmy Lei and Kiros, Jamie Ryan and", "Jamie Ryan", "Jamie", "ba2016: authors"),
    ("https://arxiv.org/abs/2309.00071", "2309", "2009", "peng2023: unknown"),
    ("Issue 41508:", "41508", "41580", "pytorch41508: number"),
)
def test_a_contradiction_is_seen(place, old, new, fault):
    assert BIBLIOGRAPHY.count(place) == 1
    assert fault in inconsistent(BIBLIOGRAPHY.replace(place, place.replace(old, new)))


def test_every_entry_is_cited():
    """By its address on a page, or by its first author in a docstring."""
    library = "".join(text for name, text in SOURCES.items() if name.endswith(".py"))
    book = "".join(SOURCES.values())
    first = {e["url"] or e["key"]: e["author"].partition(",")[0].strip("{}") for e in ENTRIES}
    assert [url for url, who in first.items() if url not in book and who not in library] == []


# ---------------------------------------------------------------- titles


def plain(text: str) -> str:
    """Small letters and digits, without accents, braces and commands."""
    text = re.sub(r"\\.", "", text.replace("×", "x"))
    return " ".join(re.sub(r"[^\w ]", " ", bare(text)).casefold().split())


def wrong_titles(text: str) -> list[str]:
    """Titles that no entry of this year, or of this address, has."""
    text = " ".join(text.split())
    named = re.findall(r'\((\d{4})\),? "([^"]+)"', text)
    named += re.findall(r"\]\((https?://[^)\s]+)\), \*([^*]+)\*", text)
    return [
        title
        for of, title in named
        if not any(
            of in (entry["year"], entry["url"]) and plain(title) in plain(entry["title"])
            for entry in ENTRIES
        )
    ]


def misnamed(text: str) -> list[str]:
    """Links whose names, the words with a capital, stand neither in the entry nor in its address.

    What a page calls a work otherwise than its title does is the entry's ``shorttitle``.
    """
    parts = ("author", "title", "shorttitle", "url")
    known = {e["url"]: plain(" ".join(e[part] for part in parts)) for e in ENTRIES}
    links = re.findall(r"\[([^]\[]{2,80})\]\((https?://[^)\s]+)\)", text)
    return [
        name
        for label, url in links
        if url in known and not re.search(r"\(\d{4}", label)  # with a year, it is by an author
        for name in re.findall(r"[\w.-]*[A-Z][\w.-]*", label)
        if not set(plain(name).split()) & set(known[url].split())
        and plain(name).replace(" ", "") not in known[url].replace(" ", "")
    ]


@for_each(
    (
        wrong_titles,
        "[A](https://arxiv.org/abs/1904.09751), *The Curious Cases*",
        "The Curious Cases",
    ),
    (misnamed, "[OLMo 2](https://arxiv.org/abs/2408.00118)", "OLMo"),
)
def test_titles_and_names_are_those_of_the_bibliography(faults, planted, fault):
    wrong = {name: faults(text) for name, text in SOURCES.items()}
    assert {name: found for name, found in wrong.items() if found} == {}
    assert faults(planted) == [fault]


# ---------------------------------------------------------------- sections

# of each work: what stands in which section, equation or figure, as its own headings say
PLACES = {
    "Vaswani": {
        "3": "transformer block models",
        "3.1": "encoder decoder block",
        "3.2.1": "scale softmax division",
        "3.2.2": "heads",
        "3.2.3": "causal mask decoder",
        "3.3": "feed activation",
        "3.5": "sine sinusoidal sin",
        "5": "warm",
        "5.4": "dropout",
        "1": "softmax tokens",  # equation 1; figure 1
    },
    "Radford": {"2.3": "pre-norm"},
    "Beltagy": {"3.1": "window"},
    "Katharopoulos": {"3.4": "causal state"},
    "Yang": {"3": "delta", "4": "chunk"},
    "Devlin": {"3": "embedding vector"},
    "Dosovitskiy": {"1": "patch", "3.1": "patch", "3.2": "positions size"},
    "Abnar": {"3": "rollout share"},
    "OpenAI": {"2": "sink"},
    "Shazeer": {"2": "gated cache"},
    "Touvron": {"2": "layerscale", "2.2": "rms norm"},
    "Gemma Team": {"2": "gemma"},
    "OLMo": {"3": "norm"},
    "Su": {"3.2": "rotat", "3.4": "pairs rotat"},
    "Press": {"3": "slope bias"},
    "Loshchilov": {"5": "cosine"},
    "Szegedy": {"7": "label smoothing"},
}
CITED = re.compile(
    r"\[?([A-Z][\w ]*?)(?: et al\.| and \w+)? \(\d{4}\)(?:\]\([^)]+\))?((?:,? (?:and )?"
    r'(?:"[^"]+"|(?:sections?|equations?|formulas?|figures?) \(?[\d.]*\d\)?|[\d.]*\d))+)'
)


def misplaced(text: str) -> list[str]:
    """Sections of cited works that are not known, or are about something else than the text."""
    found = []
    for match in CITED.finditer(text):
        work = next((name for name in PLACES if match[1].endswith(name)), match[1])
        about = text[: match.start()] + text[match.end() :]
        for place in re.findall(r"(?<![\w.])\d[\d.]*(?<!\.)", re.sub(r'"[^"]*"', "", match[2])):
            words = PLACES.get(work, {}).get(place, "?").split()
            found += [f"{work} {place}"] * (not any(word in about.casefold() for word in words))
    return found


def citing() -> list[str]:
    """Docstrings, and lines of references."""
    parts = []
    for name, text in SOURCES.items():
        split = r'"""' if name.endswith(".py") else r"\n\* |\n\n|(?<=\. )(?=\[)"
        parts += [" ".join(part.split()) for part in re.split(split, text)]
    return [part for part in parts if CITED.search(part)]


def test_sections_are_about_what_they_are_cited_for():
    assert [fault for part in citing() for fault in misplaced(part)] == []
    assert len(citing()) > 25
    assert misplaced("Vaswani et al. (2017), section 3.3, the causal mask") == ["Vaswani 3.3"]
