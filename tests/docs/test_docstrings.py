"""Docstrings as reStructuredText: what would be read as markup is not."""

from __future__ import annotations

from docstrings import quoted, restructured


def test_signs_outside_code_are_quoted_and_code_is_set_off_from_letters() -> None:
    assert quoted("|a| * b_ of `x*y_|`s") == r"\|a\| \* b\_ of `x*y_|`\ s"


def test_a_lonely_backtick_is_text() -> None:
    assert quoted("a ` b") == r"a \` b"


def test_a_list_behind_a_sentence_gets_an_empty_line() -> None:
    assert restructured("Two:\n- one\n- two\n  more") == "Two:\n\n- one\n- two\n  more"


def test_an_indented_table_is_literal_and_arguments_are_not() -> None:
    assert restructured("Keys:\n\n    a   *\n    b   |") == "Keys:\n\n    a   \\*\n    b   \\|"
    assert (
        restructured("The keys are these\n\n    a   *\n    b   |") == "The keys are these\n\n::\n\n    a   *\n    b   |"
    )
    assert "::" not in restructured("Does x.\n\nArgs:\n    a: one.\n\n    b: two.")


def test_a_drawing_is_literal() -> None:
    assert restructured("Tree.\n\nA\n└── B_") == "Tree.\n\n::\n\n    A\n    └── B_"
