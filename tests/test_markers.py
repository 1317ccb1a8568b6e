"""The list of slow tests names tests that there are."""

from __future__ import annotations

import pytest

from tests.conftest import SLOW_TESTS
from tests.support.doc_pages import ROOT


@pytest.mark.parametrize("name", SLOW_TESTS)
def test_what_is_listed_as_slow_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert (ROOT / path).exists()
    assert not function or f"def {function}(" in (ROOT / path).read_text()


def test_a_test_on_the_list_is_marked(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        is_marked = item.get_closest_marker("slow") is not None
        assert is_marked == item.nodeid.startswith(SLOW_TESTS)
