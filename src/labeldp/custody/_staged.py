# SPDX-License-Identifier: Apache-2.0
"""Releases in stages: one charge, under which each stage draws a random part of the rows.

Between stages the run stays charged and its secret stays in the run's folder. For each stage the
folder also holds the digest of the stage's prior, written once before it draws, and the digest of
its published output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from labeldp import _validate
from labeldp._hash import digest
from labeldp.custody._draw import Share
from labeldp.custody._request import kept_secret
from labeldp.errors import InvalidInput, LedgerError
from labeldp.laws._base import Law
from labeldp.ledger._database import File
from labeldp.ledger._ledger import Ledger, Part, RunRecord
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import SecretHalves
from labeldp.noise._words import partition_edges


@dataclass(frozen=True)
class Stage:
    """One stage of a planned release.

    Parameters
    ----------
    plan : str
        Id of the plan, 32 hexadecimal digits. A plan is charged once.
    number : int
        Number of this stage, from 1.
    laws : sequence of Law
        The law of each stage. All have the total epsilon, because stages draw disjoint rows
        (parallel composition).
    fractions : sequence of float
        Expected share of the rows in each stage: above 0, sum 1.
    """

    plan: str
    number: int
    laws: Sequence[Law]
    fractions: Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "laws", tuple(self.laws))
        # raises for fractions that do not sum to 1, with which some rows would be in no stage
        partition_edges(self.fractions)
        # as JSON can hold them, of any number
        object.__setattr__(self, "fractions", tuple(map(float, self.fractions)))
        if len(self.laws) != len(self.fractions):
            raise InvalidInput(
                f"Expected one law for each of {len(self.fractions)} stages, got {len(self.laws)}."
            )
        if len({(law.epsilon, law.n_classes) for law in self.laws}) > 1:
            raise InvalidInput(
                "Expected laws of one epsilon and one number of classes in all stages, got several."
                " One charge covers them all."
            )
        object.__setattr__(self, "number", _validate.integer(stage=self.number, low=1))
        if self.number > len(self.laws):
            raise InvalidInput(
                f"Expected a stage from 1 to {len(self.laws)}, got {self.number}. The plan has no"
                " more."
            )

    @property
    def name(self) -> str:
        """The stage's name, in its key, in its outputs and in names of files."""
        return stage_name(self.number)

    @property
    def law(self) -> Law:
        """The law of this stage."""
        return self.laws[self.number - 1]

    @property
    def share(self) -> Share:
        """The part of the rows that is drawn."""
        return Share(tuple(self.fractions), self.number - 1)

    @property
    def last(self) -> bool:
        """True for the last stage, after which the run settles."""
        return self.number == len(self.laws)

    def facts(self) -> dict[str, object]:
        """Return the facts that are charged, which are the same for all stages of a plan."""
        laws = [
            {"law": law.to_dict(), "fraction": share}
            for law, share in zip(self.laws, self.fractions, strict=True)
        ]
        return {"plan": self.plan, "stages": laws}


def stage_name(number: int) -> str:
    """Return the name of stage `number`, from 1."""
    return f"stage-{number}"


class StagedRun:
    """The run of a plan of stages: its charge, and which stages have started and are published.

    Parameters
    ----------
    ledger : Ledger
    dataset, column : str
    plan : str
        Id of the plan.
    """

    def __init__(self, ledger: Ledger, dataset: str, column: str, plan: str) -> None:
        self._ledger, self._names, self._plan = ledger, (dataset, column), plan

    @property
    def record(self) -> RunRecord | None:
        """The plan's charge, None before it; the first one if two processes have started the plan
        at once."""
        return next(
            (run for run in self._ledger.runs(*self._names) if _plan_of(run) == self._plan), None
        )

    def done(self, number: int) -> str | None:
        """Return the digest of a stage's published output; None before it is published."""
        return self._read(number, "done")

    def started(self, number: int) -> bool:
        """Tell whether a stage has fixed its prior, so that it may have drawn."""
        return self._read(number, "prior") is not None

    def settle(self) -> str:
        """Settle the run, and return the digest of all published outputs. Rows of later stages will
        never be drawn.

        The same call again has no effect.
        """
        record = self._charged()
        artefacts: list[str] = []
        while (artefact := self.done(len(artefacts) + 1)) is not None:
            artefacts.append(artefact)
        if not artefacts:
            raise LedgerError(
                "Expected at least one released stage, got none. To give the whole charge up: "
                f"{self._ledger.command('repair', '--abandon', record.run_id)}."
            )
        whole = f"sha256:{digest({'format': 'stages/1', 'stages': artefacts})}"
        # The ledger first, as in `Charge.settle`.
        self._ledger.settle(record.run_id, whole)
        self._store(record).forget_secret()
        return whole

    def _charged(self) -> RunRecord:
        record = self.record
        if record is None:
            raise LedgerError(
                "Expected a charged run of this plan, got none. Release stage 1 first."
            )
        return record

    def _store(self, record: RunRecord) -> RunStore:
        return RunStore(self._ledger.run_dir(record.run_id))

    def _read(self, number: int, what: str) -> str | None:
        record = self.record
        found = None if record is None else self._store(record).read(f"{stage_name(number)}.{what}")
        return None if found is None else found.decode()


class StageTurn(StagedRun):
    """The run of a plan, while one of its stages is released."""

    def __init__(self, ledger: Ledger, dataset: str, column: str, stage: Stage) -> None:
        super().__init__(ledger, dataset, column, stage.plan)
        self._stage = stage

    @property
    def is_done(self) -> bool:
        """True if this stage was published before."""
        return self.done(self._stage.number) is not None

    @property
    def runs(self) -> list[RunRecord]:
        """The plan's run in a list, which is empty before the charge."""
        return [] if self.record is None else [self.record]

    def check(self, law: Law, *, redraw: bool) -> None:
        """Refuse a stage whose predecessor is not published, or whose run has ended; called before
        the table is read."""
        stage, record, before = self._stage, self.record, self._stage.number - 1
        if law != stage.law:
            raise InvalidInput(
                f"Expected the law that the plan names for stage {stage.number}, {stage.law}, got"
                f" {law}."
            )
        if redraw:
            raise InvalidInput(
                "Expected a stage without redraw. To draw the same rows again, make a new plan,"
                " which is charged."
            )
        if record is not None:
            self._store(record).require("make a new plan")
        # The prior of a stage is learned from the outputs of the stages before it.
        if before and (record is None or self.done(before) is None):
            raise InvalidInput(
                f"Expected stage {before} to be released before stage {stage.number}, but it is"
                " not. Release it first."
            )
        if record is not None and record.state != "charged" and self.done(stage.number) is None:
            raise LedgerError(
                f"Expected a run that may still draw, but run {record.run_id} of this plan is"
                f" {record.state}: the rows of stage {stage.number} were given up. Make a new plan,"
                " which is charged."
            )

    def check_same(self, identity: str, pin_of: Callable[[SecretHalves], str]) -> None:
        """Refuse a table other than the one that the plan's run was charged for."""
        record = self.record
        if record is None:
            return
        if record.identity != identity:
            raise InvalidInput(
                f"Expected the table that run {record.run_id} of this plan was charged for, but its"
                " ids or units are others. Every stage reads the same whole table. For other rows"
                " make a new plan, which is charged."
            )
        if record.state != "charged":
            return
        kept, pin = kept_secret(self._ledger, record.run_id), self._store(record).read("pin")
        if kept is None or pin is None:
            raise LedgerError(
                f"Expected the secret of run {record.run_id} in its folder, but it is gone. Make a"
                " new plan, which is charged."
            )
        # The pin covers the whole table, of which each stage draws a part. A changed label must not
        # be drawn: if a crashed attempt has drawn the old one with the same word, the two outputs
        # could reveal both.
        if pin_of(kept).encode() != pin:
            raise InvalidInput(
                f"Expected the labels that run {record.run_id} of this plan was charged for, but"
                " some have changed. Corrected labels are a new release: make a new plan, which is"
                " charged."
            )

    def begin(self, run_id: str, prior: str, side: str) -> RunRecord | None:
        """Start the stage, after the charge, by fixing its prior and side.

        Parameters
        ----------
        run_id : str
            The run that was charged or resumed.
        prior : str
            The name of the prior in the request.
        side : str
            Digest of the side of all rows; "" if the law uses no prior.

        Returns
        -------
        RunRecord or None
            None if the stage may draw. If it was published before: the run's record, with the
            digest of the stage's output.

        Raises
        ------
        InvalidInput
            The stage has started with another prior or side: rows would be drawn twice.
        LedgerError
            Another process has started the plan, or the run's folder was restored from an older
            copy.
        """
        record = self._charged()
        # Two processes have charged the plan. The first run goes on; this one has drawn nothing,
        # but its epsilon stays spent.
        if record.run_id != run_id:
            self._ledger.abandon(run_id, "another process has started this plan at the same time")
            RunStore(self._ledger.run_dir(run_id)).forget_secret()
            raise LedgerError(
                "Expected one process to start a plan, but another one has charged run"
                f" {record.run_id}. Run this again."
            )
        stage = self._stage
        # If the folder was restored from an older copy, the ledger still knows that this stage may
        # have drawn, with a prior now unknown.
        if not self.started(stage.number) and any(
            part.name.startswith(f"{stage.name}/") for part in self._ledger.parts(run_id)
        ):
            raise LedgerError(
                f"Expected the prior of stage {stage.number} in the folder of run {run_id}, since"
                " the ledger has the stage's files, but it is gone: the folder was set back."
                " Restore it, or make a new plan, which is charged."
            )
        # Written once, before the stage draws: a second prior would draw its rows again.
        self._keep(record, "prior", prior)
        artefact = self.done(stage.number)
        if artefact is None:
            self._keep(record, "side", side)
            return None
        if stage.last and record.state == "charged":
            self.settle()  # a process has published the last stage and died before it settled
        return replace(record, artefact=artefact)

    def check_side(self, side: str) -> None:
        """Refuse another side than the one that this stage has started with."""
        if self._read(self._stage.number, "side") not in (None, side):
            raise self._another_prior()

    def _keep(self, record: RunRecord, what: str, digest_of_it: str) -> None:
        if (
            self._store(record).keep(f"{self._stage.name}.{what}", digest_of_it.encode()).decode()
            != digest_of_it
        ):
            raise self._another_prior()

    def _another_prior(self) -> InvalidInput:
        return InvalidInput(
            f"Expected the prior that stage {self._stage.number} started with, got another one."
            " Rows are drawn once: pass the former one."
        )

    def announce(self, run_id: str, files: Sequence[File], drawn: Mapping[str, str]) -> None:
        """Record the stage's files, and the digest of the drawn rows, in the ledger, after those of
        earlier stages."""
        # `intend` replaces all parts of a run, so those of earlier stages are passed again.
        earlier = [
            part
            for part in self._ledger.parts(run_id)
            if not part.name.startswith(f"{self._stage.name}/")
        ]
        mine = [
            Part(0, f"{self._stage.name}/{file.name}", file.rows, file.sha256) for file in files
        ]
        self._ledger.intend(run_id, [*earlier, *mine], drawn)

    def finish(self, artefact: str) -> None:
        """Record that the stage is published. After the last one the run settles, and its secret is
        destroyed."""
        stage = self._stage
        if (
            self._store(self._charged()).keep(f"{stage.name}.done", artefact.encode()).decode()
            != artefact
        ):
            raise LedgerError(
                f"Expected one process to release stage {stage.number}, but another one has"
                " published it. Use what it wrote."
            )
        if stage.last:
            self.settle()


def _plan_of(run: RunRecord) -> object:
    """Return the id of the plan that a run was charged for; None if it has none."""
    law = run.receipt.event.get("law")
    return law.get("plan") if isinstance(law, Mapping) else None
