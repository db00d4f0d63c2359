# SPDX-License-Identifier: Apache-2.0
"""What the workers of a cluster run between the passes, for a prior that is asked once: they write a sealed copy of their partitions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from labeldp.tables.batch import Facts
from labeldp.tables.jobs import SUMMARY, Batches, Work, conformed, regrouped, summarised
from labeldp.tables.sealed import SealedFolder, Sealer, SealSummary, write_copy


@dataclass(frozen=True)
class SealJob:
    """Ask the prior of a partition's rows and copy them.

    Attributes
    ----------
    work : Work
        With the prior to ask.
    run_id : str
        Of the run that will be charged.
    folder : SealedFolder
    """

    schema: ClassVar[pa.Schema] = SUMMARY

    work: Work
    run_id: str
    folder: SealedFolder

    def __call__(self, batches: Batches) -> Batches:
        return summarised(self._run, batches)

    def _run(self, batches: Batches) -> Iterator[SealSummary]:
        work = self.work
        secrets = work.handle.fetch().run_secrets(work.facts)
        sealer = Sealer(work.facts, next(secret for secret in secrets if secret.run_id == self.run_id))
        yield write_copy(self._asked(batches), sealer, work.spec.label, self.folder)

    def _asked(self, batches: Batches) -> Iterator[tuple[pa.RecordBatch, Facts, int]]:
        for batch in regrouped(batches):
            rows = conformed(batch, self.work.shape.schema)
            yield rows, self.work.reader(rows, None), 0


def whole_copy(found: list[SealSummary]) -> SealSummary:
    """The copies of all partitions as one."""
    sums = found[0].sums
    for each in found[1:]:
        sums.merge(each.sums)
    return SealSummary(tuple(part for each in found for part in each.parts), sums)
