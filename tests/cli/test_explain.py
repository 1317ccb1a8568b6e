"""`ftr explain` says no in one line; what it says else is in tests/placements."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell

ROSTER = '{"nodes": [{"infra_rank": 0, "domain": "A"}, {"infra_rank": 1, "domain": "B"}]}'


@pytest.mark.parametrize(
    ("roster", "arguments", "fact"),
    [
        pytest.param(ROSTER, ["nowhere.json", "--nnodes", "2"], "no file 'nowhere.json'", id="no such file"),
        pytest.param("{", ["roster.json", "--nnodes", "2"], "is no roster", id="not JSON"),
        pytest.param("{}", ["roster.json", "--nnodes", "2"], 'it looks like {"nodes"', id="no nodes"),
        pytest.param(
            '{"nodes": [{"infrarank": 0}]}', ["roster.json", "--nnodes", "2"], "infrarank", id="an unknown field"
        ),
        pytest.param(ROSTER, ["roster.json"], "pass --nnodes MIN:MAX", id="how many nodes train"),
        pytest.param(ROSTER, ["roster.json", "--nnodes", "x"], "is not MIN:MAX", id="nnodes is malformed"),
        pytest.param(
            ROSTER,
            ["roster.json", "--nnodes", "2", "--segment", "3"],
            "make it --nnodes=3:3",
            id="a segment that does not fit",
        ),
        pytest.param(
            ROSTER, ["roster.json", "--nnodes", "2", "--lose", "9"], "there is no live node '9'", id="no such node"
        ),
        pytest.param(
            ROSTER, ["roster.json", "--nnodes", "2", "--save", "no/such/dir"], "no/such/dir", id="it cannot be kept"
        ),
        pytest.param(ROSTER, ["127.0.0.1:1"], "no run at 127.0.0.1:1", id="no run"),
    ],
)
def test_what_cannot_be_explained_is_reported_in_one_line(
    shell: Shell, roster: str, arguments: list[str], fact: str
) -> None:
    (shell.place / "roster.json").write_text(roster)
    done = shell.ftr("explain", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    # Torch may warn of other packages when it is imported.
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ftr: "))
    assert fact in line
    assert "Traceback" not in done.stderr


def test_a_roster_of_many_is_explained_without_torch(shell: Shell) -> None:
    nodes = ",".join(f'{{"infra_rank": {rank}, "domain": "rack{rank % 140}"}}' for rank in range(10_000))
    (shell.place / "roster.json").write_text(f'{{"nodes": [{nodes}]}}')
    done = shell.ftr("explain", "roster.json", "--nnodes", "8000:10000", "--segment", "8", "--lose", "domain:rack7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8000 of 10000 nodes train (--nnodes=8000:10000 segment=8)")
    assert "without domain:rack7 (72 nodes): 8000 train, 7928 keep their ranks" in done.stdout
