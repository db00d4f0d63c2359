# SPDX-License-Identifier: Apache-2.0
"""Logs of epochs: what is written is the figures of noisy labels, and it is there after every
epoch."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from rich.console import Console

import labeldp as ldp
from labeldp.deep import Epoch, Recipe, logs, train
from labeldp.deep._losses import Dense

EPOCHS = [Epoch(1, 1.5, -0.9, 2), Epoch(2, 1.25, None, 2)]


def test_csv_grows_by_a_line_an_epoch_and_goes_on(tmp_path):
    path = tmp_path / "new" / "log.csv"
    for epoch in EPOCHS:
        logs.CsvLog(path)(epoch)  # each time another log of the same file, as after a restart
    assert path.read_text().splitlines() == ["number,loss,held_out", "1,1.5,-0.9", "2,1.25,"]
    log = logs.CsvLog(path)
    path.write_text("a,b\n")
    with pytest.raises(ldp.InvalidInput, match="other columns"):
        logs.CsvLog(path)  # before a fit is charged
    with pytest.raises(ldp.InvalidInput, match="other columns"):
        log(EPOCHS[0])
    assert path.read_text() == "a,b\n"


def test_a_folder_is_no_log(tmp_path):
    with pytest.raises(ldp.InvalidInput, match=r"got the folder .*log\.csv"):
        logs.CsvLog(tmp_path)


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="needs labeldp[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = logs.TensorBoardLog(tmp_path)
    for epoch in [*EPOCHS, EPOCHS[0]]:
        log(epoch)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("noisy/loss")] == [
        (1, 1.5),
        (2, 1.25),
        (3, 1.5),
    ]
    assert [e.step for e in found.Scalars("noisy/held_out")] == [1, 3]


def test_tensorboard_goes_on_in_a_copy(tmp_path):
    pytest.importorskip("tensorboard", reason="needs labeldp[tensorboard]")
    log = logs.TensorBoardLog(tmp_path)
    log(EPOCHS[0])
    for twin in (copy.deepcopy(log), pickle.loads(pickle.dumps(log))):
        twin(EPOCHS[1])
        assert twin._steps == 2 and log._steps == 1


@pytest.mark.parametrize(
    ("missing", "call"), [("tensorboard", "TensorBoardLog('x')"), ("rich", "progress_bar()")]
)
def test_what_is_missing_is_named(missing, call):
    program = f"""
import sys
sys.modules["{missing}"] = None
from labeldp import MissingExtra
from labeldp.deep import logs
try:
    logs.{call}
except MissingExtra as error:
    assert "{missing}" in str(error) and "pip install" in str(error)
    print("told")
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "told\n"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_one_line_on_a_terminal_and_a_line_an_epoch_elsewhere(terminal):
    out = io.StringIO()
    show = logs.progress_bar(Console(file=out, force_terminal=terminal, width=100))
    for epoch in EPOCHS:
        show(epoch)
    text = out.getvalue()
    assert text.count("\n") == (1 if terminal else 2) and text.endswith("\n")
    assert "epoch 1/2  loss 1.5000  held-out -0.9000" in text and "━" * 24 in text
    show(Epoch(3, 1.0, None))
    assert "epoch 3  loss 1.0000" in out.getvalue()


def test_only_functions_are_combined():
    with pytest.raises(ldp.InvalidInput, match="progress as a function of an Epoch, got None"):
        logs.combine(print, None)


def test_several_are_combined_in_a_training(tmp_path):
    told = []
    torch.manual_seed(0)
    train(
        torch.nn.Linear(2, 3),
        torch.rand(20, 2),
        Dense(torch.rand(20, 3).log()),
        Recipe(3, 8, precision="float32"),
        generator=torch.Generator().manual_seed(0),
        progress=logs.combine(
            told.append,
            logs.CsvLog(tmp_path / "log.csv"),
            logs.progress_bar(Console(file=io.StringIO())),
        ),
    )
    assert [(epoch.number, epoch.epochs) for epoch in told] == [(1, 3), (2, 3), (3, 3)]
    written = (tmp_path / "log.csv").read_text().splitlines()[1:]
    assert written == [f"{epoch.number},{epoch.loss}," for epoch in told]
