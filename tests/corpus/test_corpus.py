# SPDX-License-Identifier: Apache-2.0
"""What calls gave and left behind when they were recorded, they still do, to the byte where
bytes are labeldp's own.

Where behaviour changes on purpose: `python -m tests.corpus.record NAME ...`, and the commit says
why.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.calls import CALLS
from tests.corpus.record import (
    LIBRARIES,
    MEMORY,
    RECORDED,
    array,
    contents,
    differences,
    file_of,
    libraries,
    recorded,
    text_of,
)

MODULES = {"spark": "pyspark", "ray": "ray"}
SHOWN = 20


def marks(name: str) -> list[pytest.MarkDecorator]:
    needs = CALLS[name].needs
    if needs in ("spark", "ray"):  # the engines leave sockets open, and warn of their own settings
        kinds = (
            "ResourceWarning",
            "pytest.PytestUnraisableExceptionWarning",
            "DeprecationWarning",
            "FutureWarning",
        )
        return [
            pytest.mark.engines,
            *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in kinds),
        ]
    return []


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CALLS])
def test_a_call_is_as_it_was_recorded(name: str) -> None:
    if CALLS[name].needs:
        pytest.importorskip(MODULES[CALLS[name].needs])
    if json.loads(LIBRARIES.read_text(encoding="utf-8")) != libraries():
        pytest.skip("recorded with other versions of libraries whose bytes are in it")
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        found = json.loads(text_of(recorded(CALLS[name].make, Path(place).resolve() / "call")))
    told = list(differences(json.loads(file_of(name).read_text(encoding="utf-8")), found, name))
    more = [f"... and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    assert not told, "\n".join(
        ["", *told[:SHOWN], *more, f"If it is meant: python -m tests.corpus.record {name}"]
    )


def test_it_was_recorded_with_the_pinned_libraries() -> None:
    """So that `make test` skips nothing."""
    pins = Path(__file__).parents[2] / "constraints.txt"
    if not pins.exists():
        pytest.skip("the pins are not shipped")
    pinned = dict(
        line.split("==") for line in pins.read_text(encoding="utf-8").split() if "==" in line
    )
    was = json.loads(LIBRARIES.read_text(encoding="utf-8"))
    assert was == {name: pinned[name] for name in was}, (
        "record all calls with the new pins: python -m tests.corpus.record"
    )


def test_every_recording_is_of_a_call_and_they_stay_small() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(CALLS)
    assert sum(path.stat().st_size for path in RECORDED.iterdir()) < 600_000


WAS: dict[str, Any] = {
    "files": {"a": {"text": '{"x":1,"y":2}'}, "b": {"text": "one\ntwo"}},
    "returned": [1, 2.0],
}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (WAS, []),
        (WAS | {"returned": [1, 2.5]}, ["call > returned[1]: was 2.0, is 2.5"]),
        (
            WAS | {"returned": [1]},
            ["call > returned: 2 items before, 1 now; the first that only one has: 2.0"],
        ),
        (WAS | {"returned": [True, 2.0]}, ["call > returned[0]: was 1, is true"]),
        (
            WAS | {"files": {"a": WAS["files"]["a"]}},
            ['call > files > b: gone; it was {"text": "one\\ntwo"}'],
        ),
        (
            WAS | {"files": WAS["files"] | {"a": {"text": '{"x":1,"y":3}'}}},
            ["call > files > a > text > y: was 2, is 3"],
        ),
        (
            WAS | {"files": WAS["files"] | {"b": {"text": "one\nthree"}}},
            ['call > files > b > text line [1]: was "two", is "three"'],
        ),
    ],
)
def test_a_difference_names_its_field(now: dict[str, Any], told: list[str]) -> None:
    assert list(differences(WAS, now, "call")) == told


@pytest.mark.parametrize("was", ['{"x":1,"y":2}', {"x": 1, "y": 2}], ids=["text", "read"])
def test_another_order_of_fields_is_a_difference(was: object) -> None:
    (told,) = differences(was, '{"y":2,"x":1}', "call")
    assert told.startswith("call: the same fields in another order or form: ")


def test_a_bit_of_an_array_and_the_rights_of_a_file_are_kept(tmp_path: Path) -> None:
    assert array([1, 0, 0, 0, 0, 0, 0, 0]) != array([1, 0, 0, 0, 0, 0, 0, 1])
    (tmp_path / "secret").write_bytes(b"\xff")
    found = []
    for rights in (0o600, 0o640):
        (tmp_path / "secret").chmod(rights)
        found.append(contents(tmp_path))
    assert found[0] != found[1]
