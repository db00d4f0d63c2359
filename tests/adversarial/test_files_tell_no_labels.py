# SPDX-License-Identifier: Apache-2.0
"""Two tables that differ in their raw labels alone, and a noise that looks at no label: every byte that a command leaves behind is equal.

Entropy and clock are the same in both, so whatever still differed would be the labels. Left out: the input itself, and the pin, a keyed
digest of labels that is destroyed when its run settles.
"""

import hashlib
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run
from tests.corpus.world import same_entropy

import labeldp
from labeldp.custody import _draw as drawing

N = 400
LABELS = np.array(["ill", "well", "unsure"])
FIRST = LABELS[np.arange(N) % 3]
OTHER = {"counts": LABELS[np.minimum(np.arange(N) % 7, 2)], "one class": np.full(N, "well"), "order": np.sort(FIRST)}


def table(path: Path, labels: np.ndarray) -> Path:
    rng = np.random.default_rng(0)
    columns = {"patient": np.arange(N), "status": labels, "age": rng.normal(size=N), "a": rng.random(N), "b": rng.random(N)}
    pq.write_table(pa.table(columns | {"c": rng.random(N)}), path)
    return path


DECLARED = ("--label", "status", "--classes", "ill,well,unsure", "--epsilon", 1, "--id", "patient", "--dataset", "d")


def release(at: Path) -> None:
    assert run("release", at / "in.pq", *DECLARED, "--ledger", at / "l.db", "--out", at / "out.parquet")[0] == 0


def release_with_prior(at: Path) -> None:
    asked = ("--prior", "a,b,c", "--law", "auto", "--ledger", at / "l.db")
    assert run("release", at / "in.pq", *DECLARED, *asked, "--out", at / "out.parquet")[0] == 0


def stages(at: Path) -> None:
    assert run("stage", "plan", at / "plan", *DECLARED, "--ledger", at / "l.db", "--parts", "0.6,0.4")[0] == 0
    for stage, more in ((1, ()), (2, ("--prior", "a,b,c"))):
        asked = ("--stage", stage, "--ledger", at / "l.db", "--out", at / f"{stage}.parquet", *more)
        assert run("stage", "release", at / "plan", at / "in.pq", *asked)[0] == 0


def train(at: Path) -> None:
    assert run("train", at / "in.pq", *DECLARED, "--ledger", at / "l.db", "--stages", 2, "--out", at / "model")[0] == 0
    assert run("predict", at / "model", at / "in.pq", "--out", at / "guess.parquet")[0] == 0


def left_behind(world: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(world.rglob("*")):
        if path.is_dir() or path.name in ("in.pq", "pin"):
            continue
        if path.suffix != ".skops":
            data = path.read_bytes()
            if path.name == "model.json":  # the digest of the skops file, whose bytes are not compared
                data = data.replace(hashlib.sha256(path.with_name("model.skops").read_bytes()).hexdigest().encode(), b"")
            found[str(path.relative_to(world))] = data
            continue
        with zipfile.ZipFile(path) as archive:  # skops numbers objects by their addresses, and zip files have times
            schema = re.sub(rb'"(__id__|file)": ("\d+\.npy"|\d+)', b"", archive.read("schema.json"))
            arrays = sorted(archive.read(name) for name in archive.namelist() if name.endswith(".npy"))
            found[path.name] = schema + b"".join(arrays)
    return found


def looks_at_no_label(patch: pytest.MonkeyPatch) -> None:
    draw = drawing.draw
    patch.setattr(drawing, "draw", lambda law, codes, *rest: draw(law, np.zeros_like(codes), *rest))


@pytest.mark.parametrize("command", [release, release_with_prior, stages, train], ids=lambda command: command.__name__)
def test_files_are_equal_where_only_the_raw_labels_differ(tmp_path: Path, command: Callable[[Path], None]) -> None:
    world, found = tmp_path / "world", []
    for name, labels in {"warm up": FIRST, "first": FIRST, **OTHER}.items():  # the first command of a process asks for more entropy
        world.mkdir()
        table(world / "in.pq", labels)
        with pytest.MonkeyPatch.context() as patch:
            same_entropy(patch)
            looks_at_no_label(patch)
            command(world)
        found.append(left_behind(world))
        world.rename(tmp_path / name)
    assert len(found[1]) >= 4
    for other in found[2:]:
        assert other.keys() == found[1].keys()
        assert [name for name, content in other.items() if content != found[1][name]] == []


def test_the_comparison_sees_a_label(tmp_path: Path) -> None:
    """With the true noise the same comparison fails, so equal files are no accident of what is compared."""
    world, found = tmp_path / "world", []
    for name, labels in {"first": FIRST, "other": OTHER["counts"]}.items():
        world.mkdir()
        table(world / "in.pq", labels)
        with pytest.MonkeyPatch.context() as patch:
            same_entropy(patch)
            release(world)
        found.append(left_behind(world))
        world.rename(tmp_path / name)
    assert found[0] != found[1] and labeldp.read_noisy(tmp_path / "first" / "out.parquet").hard().tolist() != FIRST.tolist()
