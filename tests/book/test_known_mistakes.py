"""The page of known mistakes: every row of the table once, as reports say it."""

import html
import json
import re

import known_mistakes
import pages
import pytest

WORDS = json.loads(known_mistakes.WORDS.read_text())
PAGE = (pages.BOOK / "known_mistakes.md").read_text()
PARTS = [part.split() for part in re.findall(r"\{known-mistakes\} (.+)", PAGE)]

TOLD = ("likely", "look_for", "repair")
STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")  # as Sphinx curls them


def shown(parts) -> list[str]:
    return [name for part in parts for name in known_mistakes.between(WORDS, *[*part, None][:2])]


def test_every_mistake_stands_on_the_page_once():
    assert shown(PARTS) == list(WORDS)
    assert shown(PARTS[:-1]) != list(WORDS)


def test_a_part_that_is_not_in_the_table_stops_the_build():
    for part, words in (
        (("scale_mising", None), "no mistake is called 'scale_mising'"),
        (("mask_inverted", "scale_missing"), "'scale_missing' stands before 'mask_inverted'"),
    ):
        with pytest.raises(ValueError, match=words):
            known_mistakes.between(WORDS, *part)


def test_code_is_set_as_code_and_words_as_words():
    words = "is_causal, tril; a mask that is never applied"
    assert known_mistakes.pieces(words) == [
        ("is_causal", True),
        (", ", False),
        ("tril", True),
        ("; ", False),
        ("a mask that is never applied", False),
    ]


def lost(text: str) -> set[str]:
    """The mistakes of which the page lacks an address, a source, or any of their words."""
    words = html.unescape(re.sub(r"<[^>]+>", "", text)).translate(STRAIGHT)
    shown = " ".join(words.split())
    found = set()
    for name, row in WORDS.items():
        forms = [row | form for form in row.get("words", {}).values()]
        told = [form[key] for form in (row, *forms) for key in TOLD]
        there = all(" ".join(one.replace("`", "").split()) in shown for one in told)
        address = text.count(f'id="{name.replace("_", "-")}"') == 1
        if not (there and address and f'href="{html.escape(row["source"])}"' in text):
            found.add(name)
    return found


def test_the_built_page_says_what_a_report_says(site):
    text = (site / "book" / "known_mistakes.html").read_text()
    assert lost(text) == set()
    assert "`" not in re.sub(r"(?s)<script.*?</script>", "", text)
    assert lost(text.replace("a call without scale", "a call with scale")) == {"scale_ignored"}
    assert lost(text.replace('id="rope-base"', "")) == {"rope_base"}
