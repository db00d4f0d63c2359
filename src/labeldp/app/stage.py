# SPDX-License-Identifier: Apache-2.0
"""Releases one table in several stages under one charge, with any training between
them (LP-MST).

A folder holds the plan, which is public; the progress is in the ledger and in the run's private
folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labeldp._files import path_text, sync
from labeldp.app._release import Release
from labeldp.app._release import release as release_table
from labeldp.custody._staged import stage_name
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.ledger._run_store import RunStore
from labeldp.tables._release import KEPT_PLACE, kept_name
from labeldp.tables._spec import ReleasePlan, ReleaseSpec, make_plan
from labeldp.tables.engines._local import Progress, silent

PLAN = "plan.json"


def plan(
    folder: str | Path,
    spec: ReleaseSpec,
    parts: Sequence[float],
    *,
    first_law: str | None = None,
    ledger: Ledger | None = None,
) -> ReleasePlan:
    """Plan a release in stages and write the plan; nothing is read and nothing is charged.

    Parameters
    ----------
    folder : str or Path
        New or empty; the plan is written there.
    spec : ReleaseSpec
        The facts that all stages share; `id`, `dataset` and declared classes are required. Its
        epsilon is the total over all stages, whose rows are disjoint. Its law is the name of each
        stage's law; None stands for "auto", or "threshold" of a range. It has no prior: each later
        stage gets its own.
    parts : sequence of float
        Share of the rows in each stage: above 0, sum 1. A secret key decides which rows these are.
    first_law : str, optional
        Law of the first stage, which has no prior. Default: that of `spec`; "subset" for "split"
        and "rr" for "rr-top-k".
    ledger : Ledger, or its path, optional
        The ledger of all stages; default: the user's own.

    Returns
    -------
    ReleasePlan
        `load` reads it back, for example in another process.

    See Also
    --------
    labeldp.release : releases a table in one stage.
    """
    where = Path(path_text(folder))
    made = make_plan(spec, parts, first_law, ledger_of(ledger))
    text = made.to_json()
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise ReleaseError(
            f"Expected a new folder for the plan, got {where}, which holds something else. Choose"
            " another name."
        )
    where.mkdir(parents=True, exist_ok=True)
    # "x": if two processes plan at once, one fails
    with (where / PLAN).open("x", encoding="utf-8") as file:
        file.write(text + "\n")
    sync(where / PLAN)
    sync(where)
    return made


def load(folder: str | Path, ledger: Ledger | None = None, *, draws: bool = True) -> ReleasePlan:
    """Read a plan.

    Parameters
    ----------
    folder : str or Path
        The folder that `plan` wrote.
    ledger : Ledger, or its path, optional
        The ledger that the plan was made with; default: the user's own. The plan is a public file,
        so it must not choose the ledger: a plan made for another one is refused.
    draws : bool, default=True
        False: for `status` and `close` alone, which need neither the plan's budget nor a key
        source.
    """
    path = Path(path_text(folder)) / PLAN
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(
            f"Expected a folder that labeldp.app.stage.plan wrote, got {folder} without {PLAN}."
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(
            f"Expected a plan in {path}, got bytes that are no UTF-8 text. Restore it, or make a"
            " new one."
        ) from None
    return ReleasePlan.from_json(text, ledger_of(ledger), draws=draws)


def release(
    plan: ReleasePlan,
    source: Any,
    stage: int,
    out: Any,
    *,
    prior: Any = None,
    engine: str = "local",
    master: str | None = None,
    progress: Progress = silent,
) -> Release:
    """Release one stage of a plan: the rows of the table that a secret key put into this part, with
    their noisy labels.

    Parameters
    ----------
    plan : ReleasePlan
    source : str, Path or Place
        The whole table, the same rows and labels in every stage; columns of a prior may come and
        go.
    stage : int
        Number of the stage, from 1; stages are released in order.
    out : str, Path or Place
        As in `labeldp.release`.
    prior : as in ReleaseSpec, optional
        Public weights of the classes for every row of the table. Required after the first stage if
        the law uses a prior.
    engine : {"local", "spark", "ray"}, default="local"
    master : str, optional
        As in `labeldp.release`.
    progress : function of (phase, done, total), optional

    Returns
    -------
    Release
        Returned when table and manifest are written and the ledger has recorded the stage.

    Guarantee
    ---------
    All stages together are epsilon-label-DP: their rows are disjoint, and each row is drawn once.
    The first stage is charged for all of them. The same call finishes a killed stage, with the same
    labels; a released stage is not drawn again.

    References
    ----------
    Ghazi, Golowich, Kumar, Manurangsi and Zhang (2021), "Deep Learning with Label Differential
    Privacy", NeurIPS (LP-MST).
    """
    return release_table(
        source, out, plan.spec(stage, prior), plan.ledger, engine, master=master, progress=progress
    )


def close(plan: ReleasePlan) -> str:
    """End a plan before its last stage: give up later stages and destroy the secret. Return the
    digest of the released stages."""
    return plan.run().settle()


def status(plan: ReleasePlan) -> dict[str, object]:
    """Report which stages are released and which is next, as JSON-ready facts."""
    record = plan.run().record
    state = "planned" if record is None else record.state
    stages = [_stage_facts(plan, number, state) for number in range(1, len(plan.laws) + 1)]
    following = next(
        (facts["stage"] for facts in stages if facts["state"] in ("next", "started")), None
    )
    return {
        "plan": plan.id,
        "dataset": plan.dataset,
        "label": plan.label,
        "unit": plan.unit or "row",
        "epsilon": plan.epsilon if record is None else record.receipt.epsilon,
        "ledger": str(plan.ledger.location),
        "run_id": None if record is None else record.run_id,
        "state": state,
        "next": following,
        "stages": stages,
    }


def _stage_facts(plan: ReleasePlan, number: int, state: str) -> dict[str, object]:
    run = plan.run()
    record, artefact = run.record, run.done(number)
    facts: dict[str, object] = {
        "stage": number,
        "law": plan.laws[number - 1],
        "fraction": plan.fractions[number - 1],
        "epsilon": plan.epsilon if record is None else record.receipt.epsilon,
        "state": "released",
        "rows": None,
        "artefact": artefact,
        "path": None,
    }
    if artefact is None or record is None:
        turn = number == 1 or run.done(number - 1) is not None
        return facts | {
            "state": (
                "given up"
                if state not in ("planned", "charged")
                else "waiting"
                if not turn
                else "started"
                if run.started(number)
                else "next"
            )
        }
    parts = [
        part
        for part in plan.ledger.parts(record.run_id)
        if part.name.startswith(f"{stage_name(number)}/")
    ]
    path = RunStore(plan.ledger.run_dir(record.run_id)).read(
        kept_name(KEPT_PLACE, stage_name(number))
    )
    return facts | {
        "rows": sum(part.rows for part in parts),
        "path": None if path is None else path.decode(),
    }
