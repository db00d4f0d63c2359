# SPDX-License-Identifier: Apache-2.0
"""Reads a released table as noisy labels, to train on it at no cost, after proving that it holds
what was drawn."""

import base64
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp import _validate
from labeldp.aggregates import Aggregate
from labeldp.custody._stream import HISTOGRAM
from labeldp.errors import InvalidInput, LabelDPError, LabelDPWarning, RawColumnWarning, warn
from labeldp.evidence import Block, NoisyLabels, concat
from labeldp.evidence._noisy import as_drawn, derived, from_arrow, record_type, unpack
from labeldp.laws import Law, law_from_dict
from labeldp.laws._columns import LabelColumns, as_classes, classes_of
from labeldp.ledger._ledger import Ledger, RunRecord, as_ledger
from labeldp.ledger._run_store import RunStore
from labeldp.receipt import Receipt, private_names
from labeldp.tables._place import URI, Place, manifest_place
from labeldp.tables._release import (
    KEPT_MANIFEST,
    KEPT_PLACE,
    Manifest,
    all_facts,
    charged_histogram,
    contradicted,
    embedded_facts,
    facts_of,
    file_digests,
    holds,
    is_charged,
    is_of,
    kept_name,
    labels_of,
    misstated,
    noisy_names,
    read_manifest,
)
from labeldp.tables.formats._parquet import DatasetSource, open_table, row_name
from labeldp.tables.formats._table import (
    EVIDENCE,
    ColumnsCodec,
    DrawnDigest,
    LabelCodec,
    Source,
    check_columns,
    draw_salt,
    drawn_in_all,
    drawn_words,
    id_words,
    is_text,
    label_codec,
    parse_classes,
    plain,
    row_id_array,
    row_ids,
    value_type,
)


@dataclass(frozen=True)
class ProvenLabels:
    """Noisy labels that were read and proven.

    Attributes
    ----------
    noisy : NoisyLabels
    facts : mapping
        The facts of their release.
    codec : LabelCodec
        The codec of their column.
    columns : frozenset of str
        All columns that their table, or the named manifest, says were drawn, and their evidence.
    """

    noisy: NoisyLabels
    facts: Manifest
    codec: LabelCodec
    columns: frozenset[str]

    @property
    def id_names(self) -> tuple[str, ...]:
        """The id columns of the release; none if it was released without ids."""
        return tuple(self.facts.get("id") or ())


def read_noisy(
    path: Any,
    label: str | None = None,
    *,
    manifest: Any = None,
    released: Any = None,
    ledger: Ledger | None = None,
    law: Law | None = None,
    classes: Sequence[object] | None = None,
    id: str | Sequence[str] | None = None,
) -> NoisyLabels:
    """Read the noisy labels of a table: those of a release are proven, others are declared by their
    law.

    Parameters
    ----------
    path : str, Path, Place or (file system, path)
        A Parquet or CSV file, or a folder of Parquet files, that `labeldp release` wrote, with its
        manifest beside it (Parquet files hold the facts themselves); or a copy of it in another
        format or order, or with other columns.
    label : str, optional
        The released column; by default the one that the manifest names. Of several columns that
        were released together, one of them, or (None) the combinations, of which `noisy[name]`
        reads one column. Or the column of an earlier release, which the manifest lists.
    manifest : str, Path, Place or (file system, path), optional
        The release's manifest, if it is not beside the table.
    released : str, Path, Place or (file system, path), optional
        The released table, if `path` holds some of its rows: evidence is read there and matched by
        id. The label column of `path` is not read.
    ledger : Ledger, or its path, optional
        The receipt, and the digest of the drawn rows, are looked up there. A contradiction is
        refused; an unknown receipt counts as "not recorded".
    law : Law, optional
        The law of labels that another mechanism drew, which are declared, not proven. Requires
        `label`.
    classes : sequence of K values, optional
        The classes of declared labels; 0..K-1 if None.
    id : str or sequence of str, optional
        Columns that name the rows of declared labels.

    Returns
    -------
    NoisyLabels
        n rows, in the file's order.

    Raises
    ------
    InvalidInput
        The table is no release, or one of another column, or was changed: a label, id or evidence
        differs, or a row is missing, new or repeated.

    Notes
    -----
    A digest finds accidental changes. A forger can write another digest; pass the ledger to find
    that, too.
    """
    source = open_table(path)
    # A declaration is believed without proof, so a release, which can be proven, is never read by a
    # declaration.
    if law is not None:
        if (
            manifest is not None
            or released is not None
            or (label is not None and any(is_of(facts, label) for facts in all_facts(source)))
        ):
            raise InvalidInput(
                "Expected labels of another mechanism with law=, got a release in"
                f" {source.path.name}, or what proves one. Leave law= out: a draw that was released"
                " is proven, and never declared beside itself as another one."
            )
        return _declared(source, label, law, classes, id)
    original = source if released is None else open_table(released)
    found = proven(original, label, manifest, as_ledger(ledger))
    if found is None:
        raise unknown(original, label)
    return found.noisy if released is None else matched(source, found)


def read_histogram(
    path: Any, label: str | None = None, *, manifest: Any = None, ledger: Ledger | None = None
) -> Aggregate:
    """Read the noisy histogram that a release has paid for as its prior (`prior=HistogramPrior()`),
    after proving its table.

    Parameters
    ----------
    path, label, manifest, ledger
        As in `read_noisy`. The table must have all of its rows, since the digest of what was drawn
        covers the histogram and the labels.

    Returns
    -------
    Aggregate
        The noisy counts of all classes in one group of all rows. Its receipt is that of the labels:
        one charge covers both.

    Raises
    ------
    InvalidInput
        As in `read_noisy`, or the release has no histogram.
    """
    source, known = open_table(path), as_ledger(ledger)
    found = proven(source, label, manifest, known)
    if found is None:
        raise unknown(source, label)
    (block,) = found.noisy.blocks
    query, said = charged_histogram(block.receipt), found.facts.get(HISTOGRAM)
    if query is None or said is None:
        raise InvalidInput(
            "Expected a release with a histogram as its prior, got one without in"
            f" {source.path.name}. labeldp.stats estimates counts."
        )
    counts, rows = np.array([said["counts"]], np.int64), np.array([said["rows"]], np.int64)
    return Aggregate(query, counts, rows, found.noisy.classes, block.receipt)


def unknown(source: Source, label: str | None) -> InvalidInput:
    """Make the error for a table that should be a release of this column, but has neither manifest
    nor metadata, or those of others."""
    return of_others(source, label) or InvalidInput(
        f"Expected a released table, got {source.path.name} without manifest or metadata of"
        " labeldp. Name its manifest (manifest=), or, for some of its rows, the"
        " released table (released=). Labels that another mechanism drew are declared"
        " by its law, in Python (law= and classes=)."
    )


def of_others(source: Source, label: str | None, manifest: Any = None) -> InvalidInput | None:
    """Make the error for a column that a table was not released with; None for one that was, or a
    table that is no release."""
    facts = facts_of(source, label, manifest)
    if facts is None or label is None or is_of(facts, label):
        return None
    names = [name for each in all_facts(source, manifest) for name in labels_of(each)]
    return InvalidInput(
        f"Expected a released column, got {label!r}: {source.path.name} was released with the label"
        f" column{'s' * (len(names) > 1)}"
        f" {_validate.quoted(names)}.{_validate.suggest(label, names)} If {label!r} was released"
        f" by itself, name that release's manifest (manifest=, --manifest)."
    )


def proven(
    source: Source, label: str | None = None, manifest: Any = None, ledger: Ledger | None = None
) -> ProvenLabels | None:
    """Read and prove the noisy labels of a released table; None if it claims to be no release of
    this column.

    Raises
    ------
    InvalidInput
        It claims to be one but was changed or cannot be proven, or the ledger contradicts it.
    """
    facts = facts_of(source, label, manifest)
    if facts is None:
        if label is None or label + EVIDENCE not in source.names:
            return None
        raise InvalidInput(
            "Expected the manifest of a released table, got none:"
            f" {manifest_place(source.path).name}. Put it beside {source.path.name} again, or name"
            " it (manifest=)."
        )
    if label is not None and not is_of(facts, label):
        other = None if manifest is None else of_others(source, label, manifest)
        if other is None:
            return None
        raise other
    _check_facts(source, facts)
    pieces, drawn = _read(source, facts)
    receipt = replace(
        _on_record(ledger, source, facts, drawn),
        rows_over_the_cap=int(facts.get("rows_over_the_cap") or 0),
    )
    parts = [_noisy(piece, facts, receipt) for piece in pieces if piece.outputs]
    if not parts:
        raise InvalidInput("Expected rows in the released table, got none.")
    noisy, codec, columns = (
        concat(parts),
        _codec_of(facts, source),
        frozenset(noisy_names(all_facts(source, manifest))),
    )
    if isinstance(codec, ColumnsCodec) and label in codec.columns:
        return ProvenLabels(
            noisy.column(str(label)), facts, codec.codecs[codec.columns.index(str(label))], columns
        )
    return ProvenLabels(noisy, facts, codec, columns)


def proven_together(
    source: Source, labels: Sequence[str], manifest: Any = None, ledger: Ledger | None = None
) -> ProvenLabels | None:
    """Read and prove the noisy labels of the release that drew several columns together, maybe with
    others; see `proven`.

    Raises
    ------
    InvalidInput
        Also if the columns were not drawn together.
    """
    facts = next(
        (
            facts
            for label in labels
            if (facts := facts_of(source, label, manifest)) is not None and is_of(facts, label)
        ),
        None,
    )
    if facts is None:
        return proven(source, labels[0], manifest, ledger)  # none, or the error that says why
    if others := [label for label in labels if label not in labels_of(facts)]:
        raise InvalidInput(
            f"Expected label columns that were released together, got {_validate.quoted(labels)}:"
            f" the release of {_validate.quoted(labels_of(facts))} did not draw"
            f" {_validate.quoted(others)}. Train for one at a time (--label)."
        )
    return proven(source, str(facts["label"]), manifest, ledger)


def matched(source: Source, found: ProvenLabels) -> NoisyLabels:
    """Return the noisy labels of the rows of another table, matched by id, in its order.

    Raises
    ------
    InvalidInput
        The release has no ids, lacks an id, or an id occurs twice in the other table.
    """
    names = found.id_names
    if not names:
        raise InvalidInput(
            "Expected a release with ids to find its rows by, got one without. Release with an id"
            " column (id=)."
        )
    check_columns(source, names)
    words = np.concatenate(
        [id_words(row_ids(batch, names)) for batch in source.batches(list(names))]
    )
    known = id_words(found.noisy.ids if found.noisy.ids.ndim == 1 else list(found.noisy.ids.T))
    order = np.argsort(known, kind="stable")
    # Ids are compared by 64-bit words, because the two tables may hold them in different types. Of
    # two ids with one word, one would get the other's labels: among n ids with a probability of
    # about n^2 / 2^65.
    place = order[np.minimum(np.searchsorted(known[order], words), len(known) - 1)]
    missing = np.flatnonzero(known[place] != words)
    if len(missing):
        raise InvalidInput(
            "Expected only rows of the release, got another id in"
            f" {row_name(source, int(missing[0]))} of {source.path.name}. Drop them."
        )
    # A row that occurs twice would count its evidence twice.
    again = np.setdiff1d(np.arange(len(place)), np.unique(place, return_index=True)[1])
    if len(again):
        raise InvalidInput(
            f"Expected each row of the release once, got an id twice in {source.path.name}, again"
            f" in {row_name(source, int(again[0]))}. Drop it."
        )
    return derived(found.noisy[place], order="file")


def _declared(
    source: Source,
    label: str | None,
    law: Law,
    classes: Sequence[object] | None,
    id: str | Sequence[str] | None,
) -> NoisyLabels:
    names = () if id is None else (id,) if isinstance(id, str) else tuple(id)
    if label is None:
        raise InvalidInput("Expected the column of declared labels by name, got none. Pass label=.")
    check_columns(source, [label, *names])
    values = tuple(range(law.n_classes)) if classes is None else as_classes(classes)
    codec = label_codec(
        tuple(law.released(values)), label, source.type_of(label), text_table=source.text
    )
    codes: list[NDArray[np.generic]] = []
    ids = []
    for batch in source.batches([label, *names]):
        codes.append(codec.encode(batch.column(label)))
        ids.append(row_id_array(batch, names))
    if not codes:
        raise InvalidInput(f"Expected rows, got none in {source.path.name}.")
    drawn = np.asarray(law.released(range(law.n_classes)))[np.concatenate(codes)]
    named: Any = np.concatenate(ids) if names else None  # type: ignore[arg-type]
    noisy = NoisyLabels.from_labels(drawn, law, ids=named)
    return derived(noisy, classes=values, order="file")


def check_drawn(source: Source, manifest: Any, ledger: Ledger) -> None:
    """Check that a table agrees with its manifest and the ledger, batch by batch, without keeping
    rows.

    Raises
    ------
    InvalidInput, LedgerError
        The table was changed, or the manifest names other classes, ids, law or stage than were
        drawn.
    """
    facts = read_manifest(Place.of(manifest), named=True) or {}
    _check_facts(source, facts)
    _, drawn = _read(source, facts, keep=False)
    _on_record(ledger, source, facts, drawn)


def check_unchanged(
    names: Collection[str], dataset: str, ledger: Ledger, source: Source | None = None
) -> None:
    """Refuse columns that would be published or learned from as they are, but that the ledger has
    charged as private in this data set.

    Parameters
    ----------
    names : collection of str
        Columns that pass unchanged, or features.
    dataset : str
    ledger : Ledger
    source : Source, optional
        Their table. A column that is proven to hold what a run has drawn, row by row, is noisy, and
        passes. None: no column is.

    Raises
    ------
    InvalidInput
        A column is private and is not proven to be noisy, or the table says that it was drawn, but
        it holds something else. Nothing was charged.
    """
    runs = ledger.runs(dataset)
    private = private_names(run.receipt for run in runs).intersection(names)
    if source is not None and private:
        private -= _noisy_columns(source, private, ledger, runs)
    if private:
        found = _validate.quoted(name for name in names if name in private)
        raise InvalidInput(
            f"Expected public columns beside the label, got {found}, which the ledger has charged"
            f" as private in data set {dataset!r}. Their raw values would be published, or a model"
            " would learn from them. Release all private columns together (as several labels), or"
            " start from the earlier release's output, which holds noisy labels and needs ids, or"
            f" leave {found} out: take it out of the table, or of the features (exclude=)."
        )
    if source is not None:
        check_claims(source, names, ledger)


def check_claims(source: Source, names: Collection[str], ledger: Ledger) -> None:
    """Refuse a table that says that releases drew these columns, but holds something else there:
    its next manifest would say so, too."""
    said = [facts for facts in all_facts(source) if not set(names).isdisjoint(labels_of(facts))]
    manifest: Manifest = (read_manifest(source.path) if said else None) or {}
    # A table that is as it was published was proven then, though it may lack rows that the earlier
    # release had.
    whole = "digests" in manifest and holds(
        source.path, manifest["digests"].get("output"), manifest
    )
    for facts in said:
        if whole:
            _check_facts(source, facts)
            ledger.looked_up(Receipt.from_dict(facts["receipt"]))
        elif _recorded(source, facts, ledger) is None:
            found = _validate.quoted(name for name in names if name in labels_of(facts))
            raise InvalidInput(
                f"Expected in column {found} what run {Receipt.from_dict(facts['receipt']).run_id}"
                f" has drawn, as the manifest or metadata of {source.path.name} says, got something"
                " else, or not all of its rows and evidence: raw values may stand there. Start from"
                f" the released table as it was, or take {found} out of the table."
            )


def require_drawn(source: Source, found: Sequence[Manifest]) -> list[int | None]:
    """Refuse a table that does not hold what these facts say was drawn, and count the rows of each
    release.

    Parameters
    ----------
    source : Source
    found : sequence of facts, as `all_facts` lists them

    Returns
    -------
    list of int or None
        None: of a whole table that lacks rows of this earlier release, which so proves nothing of
        it.

    Raises
    ------
    InvalidInput
        Labels, evidence or ids are others, rows are missing, or the facts contradict each other.
    """
    rows: list[int | None] = []
    for facts in found:
        _check_facts(source, facts)
        try:
            rows.append(int(_read(source, facts, keep=False)[1][:16], 16))
        except InvalidInput:
            # A digest begins with the number of its rows.
            fewer = rows and rows[0] and rows[0] < int(facts["digests"]["drawn"][:16], 16)
            if not (
                fewer and holds(source.path, found[0].get("digests", {}).get("output"), found[0])
            ):
                raise
            rows.append(None)
    return rows


def warn_of_names(
    names: Collection[str], dataset: str, ledger: Ledger, found: Sequence[Manifest] = ()
) -> None:
    """Warn if a data set's name hides from the ledger that its rows, or columns that are taken as
    they are, are those of another one.

    Parameters
    ----------
    names : collection of str
        The columns: those that `found` drew are noisy.
    dataset : str
    ledger : Ledger
    found : sequence of mappings, default=()
        The facts of the releases that the table names.
    """
    earlier = {Receipt.from_dict(facts["receipt"]).dataset for facts in found}
    if earlier and dataset not in earlier:
        known = _validate.told([repr(name) for name in sorted(earlier)], ", ")
        warn(
            LabelDPWarning(
                f"The rows were released before in data set {known}, and are charged now in data"
                f" set {dataset!r}: the ledger does not add up what they cost. Name the same data"
                " set (dataset=)."
            )
        )
    raw = set(names) - noisy_names(found)
    others = {
        name: run.receipt.dataset
        for run in ledger.runs()
        if run.receipt.dataset != dataset
        for name in run.receipt.columns
        if name in raw
    }
    if others:
        listed = _validate.told(
            [f"{name!r} (in {others[name]!r})" for name in names if name in others], ", "
        )
        warn(
            RawColumnWarning(
                f"Columns that are taken as they are, in data set {dataset!r}, have the names of"
                f" private columns of other data sets in the ledger: {listed}. If the rows are the"
                " same, name that data set (dataset=), in which they are refused. Or"
                " take them out of the table, or of the features (exclude=)."
            )
        )


def warn_of_copies(labels: Collection[str], dataset: str, ledger: Ledger) -> None:
    """Warn of earlier releases of this data set on this machine that hold one of these columns as
    it was: they came before its charge."""
    runs = ledger.runs(dataset)
    for run in runs:
        store = RunStore(ledger.run_dir(run.run_id))
        for stage in run.drawn:
            place = (store.read(kept_name(KEPT_PLACE, stage)) or b"").decode()
            found = (
                _held_raw(place, set(labels) - set(run.receipt.columns), ledger, runs)
                if place and not URI.match(place)
                else set()
            )
            if found:
                held = ", ".join(sorted(found))
                warn(
                    RawColumnWarning(
                        f"{place}, which run {run.run_id} released from data set {dataset!r}, holds"
                        f" the private column {held} as it was. Delete that file, or keep it as"
                        " secret as the raw table: no noise protects what it shows. So with its"
                        " copies, which a repeat may have written elsewhere."
                    )
                )


def _held_raw(
    place: str, names: Collection[str], ledger: Ledger, runs: Sequence[RunRecord]
) -> set[str]:
    """List the private columns that a released table holds raw; none if it is gone."""
    try:
        source = open_table(Path(place))
        found = set(names).intersection(source.names)
        return found - _noisy_columns(source, found, ledger, runs) if found else set()
    except (LabelDPError, OSError):
        return set()


def released_columns(
    source: Source, names: Collection[str], dataset: str, ledger: Ledger
) -> set[str]:
    """List those of a table's columns that hold noisy labels or their evidence.

    The table's own facts, evidence beside a column, or the ledger show it. A private column of
    which none of them shows that it is noisy is not listed: `check_unchanged` refuses it.
    """
    found = noisy_names(all_facts(source))
    for evidence in (name for name in source.names if name.endswith(EVIDENCE)):
        label = evidence.removesuffix(EVIDENCE)
        # a joint release is named by all its columns
        columns = {label, *_validate.parted(label)}.intersection(source.names)
        found |= {evidence, *columns} if columns else set()
    runs = ledger.runs(dataset)
    private = {name for run in runs for name in run.receipt.columns}.intersection(names) - found
    return (
        found | (_noisy_columns(source, private, ledger, runs) if private else set())
    ).intersection(names)


def _noisy_columns(
    source: Source, names: Collection[str], ledger: Ledger, runs: Sequence[RunRecord]
) -> set[str]:
    """List the columns that a table is proven to hold as one of these runs has drawn them."""
    known, noisy = {run.run_id: run for run in runs}, set[str]()
    for facts in _claims(
        source, ledger, [run for run in runs if not set(run.receipt.columns).isdisjoint(names)]
    ):
        columns = set(labels_of(facts))
        if (
            (set(names) - noisy) & columns
            and Receipt.from_dict(facts["receipt"]).run_id in known
            and _recorded(source, facts, ledger)
        ):
            noisy |= columns
    return noisy


def _claims(source: Source, ledger: Ledger, runs: Sequence[RunRecord]) -> Iterator[Manifest]:
    """List the facts of releases that a table may hold: those that it names, and those that the
    runs' folders have kept."""
    yield from all_facts(source)
    for run in runs:
        texts = (
            RunStore(ledger.run_dir(run.run_id)).read(kept_name(KEPT_MANIFEST, stage))
            for stage in run.drawn
        )
        yield from (json.loads(text) for text in texts if text is not None)


def _recorded(source: Source, facts: Manifest, ledger: Ledger) -> bool | None:
    """Tell whether the ledger knows the rows that a table holds; None if the facts or the ledger
    say that they were not drawn."""
    try:
        _check_facts(source, facts)
        _, drawn = _read(source, facts, keep=False)
        return _on_record(ledger, source, facts, drawn).recorded is True
    except InvalidInput:
        return None


@dataclass
class _Piece:
    """The rows of one table, or of one file of a folder."""

    first: int
    outputs: list[NDArray[np.generic]]
    sides: list[dict[str, NDArray[np.generic]]]
    ids: list[NDArray[np.generic]]


def _check_facts(source: Source, facts: Manifest) -> None:
    """Refuse facts with columns that the table lacks, or with another law than the receipt names
    for this stage."""
    evidence = [str(facts["evidence"])] if facts.get("evidence") else []
    check_columns(source, [*labels_of(facts), *evidence, *(facts.get("id") or ())])
    receipt = Receipt.from_dict(facts["receipt"])
    # The receipt names the law that was charged. A manifest with a larger epsilon would make labels
    # look more reliable than they are.
    law = law_from_dict(facts["law"])
    known = is_charged(law, receipt, str(facts["stage"])) and not misstated(facts, receipt, law)
    if (
        not known
        or (HISTOGRAM in facts) != (charged_histogram(receipt) is not None)
        or contradicted(source, facts)
    ):
        raise InvalidInput(
            f"Expected the law, stage and guarantee that the receipt of run {receipt.run_id} names,"
            " and the same in manifest and metadata, got others. The manifest or metadata was"
            " changed; restore it."
        )


def _read(source: Source, facts: Manifest, *, keep: bool = True) -> tuple[list[_Piece], str]:
    """Read all rows, and compare their digest with that in the facts; without a manifest's digests,
    that of each file with its own facts."""
    digests = facts.get("digests")
    if digests is not None or not isinstance(source, DatasetSource):
        piece, drawn = _piece(source, facts, keep)
        if drawn != (digests or facts).get("drawn"):
            raise changed(source, facts)
        return [piece], drawn
    # A folder without a manifest: each file is proven by its own metadata, and all files must be of
    # one release.
    said = [embedded_facts(file) or {} for file in source.files]
    own = ("drawn", "first_row")
    if any(
        {k: v for k, v in each.items() if k not in own}
        != {k: v for k, v in facts.items() if k not in own}
        for each in said
    ):
        raise InvalidInput(
            f"Expected files of one release in {source.path.name}, got others among them. Name the"
            " files of one."
        )
    found = [_piece(file, each) for file, each in zip(source.files, said, strict=True)]
    for file, each, (_, drawn) in zip(source.files, said, found, strict=True):
        if drawn != each.get("drawn"):
            raise changed(file, facts)
    return [piece for piece, _ in found], drawn_in_all(drawn for _, drawn in found)


def _piece(source: Source, facts: Manifest, keep: bool = True) -> tuple[_Piece, str]:
    columns, evidence, names = labels_of(facts), facts.get("evidence"), tuple(facts.get("id") or ())
    law, salt = law_from_dict(facts["law"]), draw_salt(facts)
    first = int(facts.get("first_row", 0))
    digest, piece = DrawnDigest(ordered=not names, first=first), _Piece(first, [], [], [])
    try:
        codec = _codec_of(facts, source, law)
        for batch in source.batches([*columns, *([str(evidence)] if evidence else []), *names]):
            codes = codec.read(batch)
            raw = _evidence(batch.column(str(evidence)), law) if evidence else None
            ids = row_ids(batch, names)
            digest.update(drawn_words(salt, ids, codes, raw))
            if not keep:
                continue
            outputs, side = (codes, {}) if raw is None else unpack(law, raw)
            start = first + digest.rows - len(batch)
            piece.outputs.append(outputs)
            piece.sides.append(side)
            named = row_id_array(batch, names)
            piece.ids.append(np.arange(start, start + len(batch)) if named is None else named)
    except InvalidInput as error:
        # A label that is no class, or evidence that cannot be decoded, was not drawn.
        raise changed(source, facts, str(error)) from None
    return piece, digest.hexdigest()


def changed(source: Source, facts: Manifest, why: str = "") -> InvalidInput:
    """Make the error for a table that claims to be a release but differs from what was drawn."""
    run_id = Receipt.from_dict(facts["receipt"]).run_id
    ids = "or" if facts.get("id") else "or their order (the release has no ids)"
    return InvalidInput(
        f"Expected what run {run_id} has drawn, got something else in {source.path.name}: labels,"
        f" evidence, ids {ids} rows differ.{f' ({why})' if why else ''} Restore the released table;"
        " for some of its rows, name it (released=). Raw labels belong under another"
        " name, without this manifest or metadata."
    )


def _on_record(ledger: Ledger | None, source: Source, facts: Manifest, drawn: str) -> Receipt:
    """Return the receipt as looked up in the ledger; refuse a table that the ledger contradicts."""
    receipt = Receipt.from_dict(facts["receipt"])
    if ledger is None:
        return receipt
    looked_up = ledger.looked_up(receipt)
    run = ledger.run(receipt.run_id) if looked_up.recorded else None
    # The ledger decides, because whoever has the table can rewrite its manifest. First by content,
    # which holds for any copy; then, for adopted runs and single files of a folder, by the bytes of
    # whole files.
    if run is None or run.drawn.get(str(facts["stage"])) == drawn:
        return looked_up
    # The SHA-256 of a file covers its own metadata, but not a manifest beside it.
    if "digests" not in facts or not run.drawn:
        if holds(source.path, run.artefact, facts):
            return looked_up
        if run.adopted and not run.drawn:
            # an adopted run has lost the digest of its drawn rows, so a copy cannot be compared
            return replace(looked_up, entry=replace(looked_up.entry, recorded=False))
        # Some files of a released folder, each as it was announced.
        announced, files = (
            {part.sha256 for part in ledger.parts(run.run_id)},
            file_digests(source.path),
        )
        if announced and set(files) <= announced and len(set(files)) == len(files):
            return looked_up
    raise InvalidInput(
        f"Expected what run {receipt.run_id} has drawn, as the ledger names it, got something else"
        f" in {source.path.name}. Its manifest or metadata was made for other labels, or changed;"
        " restore the released table."
    )


def _codec_of(facts: Manifest, source: Source, law: Law | None = None) -> LabelCodec:
    """Make a codec of the classes, or of what the law has released, for the columns' present types,
    which may be a copy's."""
    known = classes_of(facts)
    if isinstance(known, LabelColumns):
        return ColumnsCodec(
            [
                _codec_of_column(name, tuple(values), source)
                for name, values in zip(known.names, known.lists, strict=True)
            ]
        )
    return _codec_of_column(
        str(facts["label"]), tuple(known) if law is None else law.released(known), source
    )


def _codec_of_column(column: str, classes: tuple[object, ...], source: Source) -> LabelCodec:
    kind = source.type_of(column)
    if source.text or "" not in classes or None in classes:
        return label_codec(classes, column, kind, text_table=source.text)
    # Many tools write an empty text as an empty field, which is read back as null.
    if not is_text(value_type(kind)):
        classes = tuple(None if c == "" else c for c in classes)
        return label_codec(classes, column, kind, text_table=False)
    values = parse_classes(classes, column, kind, text_table=False)
    return _EmptyIsNull(values, column, kind)


class _EmptyIsNull(LabelCodec):
    """Reads a null as the empty text, which is a class."""

    def encode(self, labels: pa.Array) -> NDArray[np.int32]:
        return super().encode(pc.fill_null(plain(labels), ""))


def _evidence(column: pa.Array, law: Law) -> NDArray[np.uint8]:
    """Decode an evidence column of bytes or base64url text: (n, width) uint8."""
    column = plain(column)
    if is_text(column.type):
        try:
            texts = [
                base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
                for text in column.to_pylist()
            ]
        except (ValueError, TypeError):
            raise InvalidInput(
                "Expected evidence in base64url, got something else. The column was changed after"
                " the release."
            ) from None
        column = pa.array(texts, pa.binary())
    raw, present = from_arrow(column, record_type(law).itemsize)
    if not present.all():
        raise InvalidInput(
            "Expected evidence in every row of a released table, got none in some. The file is"
            " damaged."
        )
    return raw


def _noisy(piece: _Piece, facts: Manifest, receipt: Receipt) -> NoisyLabels:
    law, outputs = law_from_dict(facts["law"]), np.concatenate(piece.outputs)
    side = {name: np.concatenate([each[name] for each in piece.sides]) for name in piece.sides[0]}
    block = Block(law, outputs, side, np.arange(len(outputs)), receipt, str(facts["stage"]))
    order = "file" if str(facts.get("order")).startswith("kept") else "drawn"
    ids = np.concatenate(piece.ids)
    return as_drawn(
        NoisyLabels(
            len(outputs), classes_of(facts), (block,), ids, bool(facts.get("id")), order=order
        )
    )
