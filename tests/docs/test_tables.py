"""Tables of Markdown."""

from __future__ import annotations

from tables import cell, code, table


def test_signs_are_quoted_outside_code_and_bars_everywhere() -> None:
    assert cell("a_b <n>\n [x] | `a_b|c` *") == r"a\_b \<n\> \[x\] \| `a_b\|c` \*"
    assert code("x | y") == r"`x \| y`"


def test_a_table_has_its_head_and_rows() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
