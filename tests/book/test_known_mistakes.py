"""The page of known mistakes: every row of the table once, as reports say it."""

import html
import json
import re

import known_mistakes
import pytest

WORDS = json.loads(known_mistakes.WORDS.read_text())
TOLD = ("likely", "look_for", "repair")
STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")  # as Sphinx curls them


def test_a_part_that_is_not_in_the_table_stops_the_build():
    with pytest.raises(ValueError, match="no mistake is called 'scale_mising'"):
        known_mistakes.between(WORDS, "scale_mising", None)
    with pytest.raises(ValueError, match="'scale_missing' stands before 'mask_inverted'"):
        known_mistakes.between(WORDS, "mask_inverted", "scale_missing")


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
