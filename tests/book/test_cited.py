"""What is cited agrees with itself: names, years, addresses, and what stands in which section."""

import csv
import itertools
import re
import unicodedata
from pathlib import Path

import pages
from tables import for_each

BIBLIOGRAPHY = (pages.BOOK / "references.bib").read_text()
SOURCES = {path.name: path.read_text() for path in pages.ROOT.glob("attn_*/*.py")}
SOURCES |= {path.name: path.read_text() for path in pages.TEXTS}
for path in pages.NOTEBOOKS:
    SOURCES[path.name] = "\n".join(cell.source for cell in pages.read(path).cells)
# of each published work; authors and titles were compared with other people's bibliographies
WORKS = list(csv.DictReader((Path(__file__).parent / "works.csv").read_text().splitlines()))
FIELDS = ("author", "title", "shorttitle", "year", "url", "journal", "volume", "number", "pages")


def entries(text: str) -> list[dict[str, str]]:
    """The fields of each entry, and its key."""
    found = []
    for entry in re.split(r"\n@", text)[1:]:
        fields = {name: pages.field(entry, name) for name in FIELDS}
        found.append({"key": re.search(r"\{(.+),", entry)[1], **fields})
    return found


def letters(text: str) -> str:
    text = re.sub(r'\\"([aou])', r"\1e", text.casefold())
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\\.", "", text))


def bare(text: str) -> str:
    """Without braces, commands and accents."""
    text = re.sub(r"[{}]|\\(?:[^\w&]|(?=[&LlOo]))", "", text.replace("Ł", "L"))
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFKD", text))


def as_told(entry: dict[str, str]) -> dict[str, str]:
    """An entry, in the words of the table of works."""
    names = [", ".join(name.split(", ")[::-1]) for name in entry["author"].split(" and ")]
    authors = "; ".join(names).replace(", ", " ").replace("others", "et al.")
    place = "{journal} {volume}({number}), {pages}".format(**entry).replace("--", "-")
    told = {"address": re.sub("^https?://", "", entry["url"]), "authors": authors}
    told |= {"year": entry["year"], "title": entry["title"]}
    return told | {"place": place if entry["journal"] else ""}


def inconsistent(text: str) -> list[str]:
    """Entries that differ from the table of works, or whose own parts contradict each other."""
    found, of_project, works = [], {}, {work["address"]: work for work in WORKS}
    for entry in entries(text):
        key, year, url = (entry[name] for name in ("key", "year", "url"))
        faults, told = [], as_told(entry)
        named, of_key = re.fullmatch(r"(.*?)((?:19|20)\d\d[a-z]?)?", key).groups()
        number = re.search(r"github.com/([\w./-]+)/(issues|pull)/(\d+)$", url)
        if work := works.pop(told["address"], {}):
            faults += [name for name in work if bare(told[name]) != bare(work[name])]
        elif re.search("arxiv|doi", url) or entry["journal"]:
            faults += ["unknown"]
        if number:
            project, kind, issue = number.groups()
            start = {"issues": "Issue", "pull": "Pull request"}[kind]
            faults += ["number"] * (not entry["title"].startswith(f"{start} {issue}: "))
            of_project.setdefault(project, []).append((int(issue), int(year), key))
        elif of_key:
            faults += ["key"] * (of_key[:4] != year)
            first = entry["author"].partition(" and ")[0].partition(",")[0]
            whole = letters(first + entry["title"] + url)
            faults += ["name"] * (named[:4] not in whole and named != "sbert")
        found += [f"{key}: {fault}" for fault in faults]
    for issues in of_project.values():  # what is opened later has a larger number
        for (_, one, _), (_, other, key) in itertools.pairwise(sorted(issues)):
            found += [f"{key}: order"] * (one > other)
    return found + [f"{address}: gone" for address in works]


def test_entries_agree_with_the_works_and_with_themselves():
    assert inconsistent(BIBLIOGRAPHY) == []


@for_each(
    ("Ba, Jimmy Lei and Kiros, Jamie Ryan and", "Jamie Ryan", "Jamie", "ba2016: authors"),
    ("@misc{vaswani2017", "vaswani", "shazeer", "shazeer2017: name"),
    ("https://arxiv.org/abs/2309.00071", "2309", "2009", "peng2023: unknown"),
    ("https://arxiv.org/abs/2309.00071", "2309", "2009", "arxiv.org/abs/2309.00071: gone"),
    ("{141--142}", "141--142", "142--143", "nadaraya1964: place"),
    ("Issue 41508:", "41508", "41580", "pytorch41508: number"),
    (
        "2020},\n  url = {https://github.com/pytorch/pytorch/issues/41508}",
        "2020",
        "2024",
        "pytorch103963: order",
    ),
)
def test_a_contradiction_is_seen(place, old, new, fault):
    assert BIBLIOGRAPHY.count(place) == 1
    assert fault in inconsistent(BIBLIOGRAPHY.replace(place, place.replace(old, new)))


# ---------------------------------------------------------------- how many are named

LABEL = re.compile(r"\[([^]\[(]+?) \((\d{4})\)\]\((\S+?)\)")


def miscounted(text: str, bibliography: str) -> list[str]:
    """Links that name one author of two, or two of many, or another second one."""
    authors = {entry["url"]: entry["author"].split(" and ") for entry in entries(bibliography)}
    found = []
    for label, _, url in LABEL.findall(text):
        all_of_them = authors.get(url, [])
        if not all_of_them or "{" in all_of_them[0][:1]:
            continue
        second = label.partition(" and ")[2]
        right = {1: not second and " et al." not in label, 2: bool(second)}
        if not right.get(len(all_of_them), label.endswith(" et al.")):
            found.append(label)
        elif second and letters(second) not in letters(all_of_them[1]):
            found.append(label)
    return found


def test_as_many_authors_are_named_as_there_are():
    wrong = {name: miscounted(text, BIBLIOGRAPHY) for name, text in SOURCES.items()}
    assert {name: labels for name, labels in wrong.items() if labels} == {}
    assert sum(len(LABEL.findall(text)) for text in SOURCES.values()) > 60


@for_each(
    ("Zhang and Sennrich", True),
    ("Zhang et al.", False),
    ("Zhang", False),
    ("Zhang and Haddow", False),
)
def test_another_number_of_authors_is_seen(label, right):
    text = f"[{label} (2019)](https://arxiv.org/abs/1910.07467)"
    assert (miscounted(text, BIBLIOGRAPHY) == []) == right
    more = BIBLIOGRAPHY.replace("Zhang, Biao and Sennrich", "Zhang, Biao and He, B and Sennrich")
    assert miscounted(text, more) != [] or label == "Zhang et al."


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


def test_nearly_every_other_section_is_seen():
    changed = seen = 0
    for part in citing():
        for place in re.findall(r"(?:section|equation|formula) \(?(\d[\d.]*\d|\d)", part):
            for other in {"1", "2", "3", "3.1", "3.2.1", "3.2.2", "3.3", "5"} - {place}:
                changed += 1
                seen += bool(misplaced(part.replace(f" {place}", f" {other}")))
    assert seen > 0.8 * changed > 100
