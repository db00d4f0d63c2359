# SPDX-License-Identifier: Apache-2.0
"""The private folder of one run: half of its secret and its pin until it settles, and the public
results of its stages."""

import contextlib
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from labeldp._files import private_file, replace_file, sync, write_new
from labeldp.errors import LedgerError
from labeldp.evidence import NoisyLabels

# a training on noisy labels stores checkpoints here, too, without the dependencies of secrets
if TYPE_CHECKING:
    from labeldp.noise._secrets import Secret, SecretHalves

CHARGE: Final = "charge.json"
"""The file in a run's folder that holds a copy of its charge, which `Ledger.adopt` reads if the
ledger was lost."""

ROWS: Final = "rows-drawn"
"""Ending of the names of the arrays that hold the rows of a stage."""


class Held:
    """A lock on a folder, released at the latest when the process ends. Only POSIX systems have it;
    elsewhere it always succeeds."""

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else -1

    def take(self, *, wait: bool) -> bool:
        """Wait until the lock is free, and take it. Or tell whether it is free, by taking it
        shared: several processes can ask at once, and none blocks."""
        if self._handle < 0:
            return True
        import fcntl  # POSIX alone has it

        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX if wait else fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the lock."""
        # so that the second call, by __del__, does not close a file that got this number since
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class RunStore:
    """The private folder of one run; each of its files appears whole or not at all, whenever the
    process dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def require(
        self,
        otherwise: str = "draw anew with redraw=True (of privatize, aggregate and release)",
    ) -> None:
        """Refuse a run that was charged and whose folder is gone, since what it drew cannot be
        drawn again under that charge."""
        if not self.folder.is_dir():
            raise LedgerError(
                f"Expected the private folder of run {self.folder.name} at {self.folder}, but it is"
                " gone, and with it what the run has stored; its epsilon stays spent. If it was"
                f" moved, move it back; else restore it from a backup, or {otherwise}, which is"
                " charged."
            )

    def write(self, name: str, data: bytes, *, last: bool = True) -> None:
        """Write a file that only its owner can read, and wait until it is on disk; `last` as in
        `labeldp._files.replace_file`."""
        private_folder(self.folder)
        replace_file(self._part(name), self.folder / name, data, last=last)

    def keep(self, name: str, data: bytes) -> bytes:
        """Write a file once: if it exists, also from another process, it stays. Return the content
        of the file."""
        private_folder(self.folder)
        part = self._part(name)
        write_new(part, data)
        # another process has kept its content, and removed this one's part
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(part, self.folder / name)  # a link never replaces a file, as a rename would
        # Also the parts of processes that were killed: of answers drawn from the same labels only
        # the one that is kept may stay.
        for path in self.folder.iterdir():
            if re.fullmatch(rf"\.{re.escape(name)}\.\d+\.[0-9a-f]{{8}}\.part", path.name):
                path.unlink(missing_ok=True)
        sync(self.folder)
        return (self.folder / name).read_bytes()

    def _part(self, name: str) -> Path:
        # The dot hides it from the searches for results, and each call has its own: what a killed
        # process leaves is never read, and `repair` recognises it by the form of its name.
        return self.folder / f".{name}.{os.getpid()}.{os.urandom(4).hex()}.part"

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is no such file."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def keep_secret(self, halves: "SecretHalves") -> None:
        """Write the stored half of the secret, and the id of the release secret that is the other
        half, before the charge."""
        if halves.key is not None:
            facts = {"source": halves.key.text, "key_id": halves.key.key_id}
            # The id is on disk before the half: a crash in between must not leave a half that
            # passes for a whole secret. A resumed run would then draw other noise.
            self.write("key", json.dumps(facts).encode())
        self.write("secret", halves.stored, last=False)

    def stored_half(self) -> "Secret | None":
        """Read the stored half of the secret, which is all of it without a release secret; None if
        it was destroyed."""
        from labeldp.noise._secrets import Secret

        try:
            # in no variable of its own: a traceback with variables shows nothing
            return Secret((self.folder / "secret").read_bytes())
        except FileNotFoundError:
            return None

    def key_id(self) -> str | None:
        """Read the public id of the release secret that the run was charged under; None if it was
        charged without one."""
        data = self.read("key")
        try:
            return None if data is None else str(json.loads(data)["key_id"])
        except (ValueError, KeyError, TypeError):
            raise LedgerError(
                f"Expected the id of a release secret in {self.folder / 'key'}, got something else."
                " Restore it."
            ) from None

    def forget_secret(self) -> None:
        """Destroy the stored half of the secret, and the pin: after that nobody can compute the
        noise, even with the release secret."""
        from labeldp.noise._secrets import erase

        # Overwritten before it is unlinked: the blocks of an unlinked file stay readable on the
        # disk until they are used again. The pin goes, too: with the release secret it could
        # confirm guesses of labels.
        for name in ("secret", "pin"):
            with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
                erase(self.folder / name)

    def has_results(self) -> bool:
        """Tell whether the folder holds results. They are written after the charge only, so a
        ledger must know the run."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return any(
            re.fullmatch(r"(?!\.)(.*\.)?(output|manifest\.json|done|parquet)", name)
            for name in names
        )

    def alone(self) -> AbstractContextManager["Held"]:
        """Hold the run's lock during a `with` block, against other processes and other threads."""
        return contextlib.closing(self.hold())

    def hold(self) -> "Held":
        """Wait for the run's lock, and hold it until the returned object is closed or collected, or
        the process ends."""
        private_folder(self.folder)
        held = Held(self.folder)
        held.take(wait=True)
        return held

    def is_held(self) -> bool:
        """Tell whether any process, also this one, holds the run's lock."""
        if not self.folder.is_dir():
            return False
        with contextlib.closing(Held(self.folder)) as held:
            return not held.take(wait=False)

    def save_array(self, name: str, array: NDArray[np.generic]) -> None:
        """Store a public array."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        self.write(f"{name}.npy", buffer.getvalue())

    def load_array(self, name: str) -> NDArray[np.generic] | None:
        """Read a stored array; None if there is none."""
        path = self.folder / f"{name}.npy"
        return np.asarray(np.load(path, allow_pickle=False)) if path.exists() else None

    def keep_side(
        self, stage: str, side: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, NDArray[np.generic]]:
        """Store the side that a stage's law derived from its prior, before the draw; if one is
        stored already, return that."""
        # Two processes in one run may derive two sides, from models that were trained with other
        # rounding. Each word of noise must be used with one side only: two outputs of one word can
        # reveal the label. So the first side that is stored counts for both.
        buffer = io.BytesIO()
        np.savez(buffer, **side)  # type: ignore[arg-type]
        self.keep(f"{stage}.side.npz", buffer.getvalue())
        return self.load_side(stage) or {}

    def load_side(self, stage: str) -> dict[str, NDArray[np.generic]] | None:
        """Read the stored side of a stage; None if there is none."""
        data = self.read(f"{stage}.side.npz")
        if data is None:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as side:
            return {name: side[name] for name in side.files}

    def claims(self) -> list[str]:
        """List the stages that have started: the rows of each are stored as an array before they
        are drawn."""
        return sorted(
            path.name.removesuffix(f".{ROWS}.npy") for path in self.folder.glob(f"*.{ROWS}.npy")
        )

    def stages(self) -> list[str]:
        """List the stages whose outputs are stored."""
        return sorted(path.name.removesuffix(".parquet") for path in self.folder.glob("*.parquet"))

    def save_noisy(self, stage: str, noisy: NoisyLabels) -> None:
        """Store a stage's outputs, atomically."""
        part = self._part(f"{stage}.parquet")
        noisy.save(private_file(part))
        sync(part)
        part.replace(self.folder / f"{stage}.parquet")
        sync(self.folder)

    def load_noisy(self, stage: str) -> NoisyLabels | None:
        """Read a stage's outputs; None if there are none."""
        path = self.folder / f"{stage}.parquet"
        return NoisyLabels.load(path) if path.exists() else None

    def digest(self) -> str:
        """Compute the digest of all stored outputs, with their names, which the run settles
        with."""
        state = hashlib.sha256()
        for path in sorted(self.folder.glob("*.parquet")):
            state.update(path.name.encode())
            state.update(path.read_bytes())
        return state.hexdigest()


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can open, with missing parents; on disk when this returns.

    Raises
    ------
    LedgerError
        The folder, or the folder of all runs above it, exists and belongs to another user, or
        others may write to it: they could read or replace the secrets.
    """
    # From the top down, each name on disk before anything is put into the folder: else power loss
    # could take away a folder, with the secret of a run whose charge, in another folder, is kept.
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)
    for folder in (path.parent, path) if os.name == "posix" else ():
        facts = folder.stat()
        mode, foreign = stat.S_IMODE(facts.st_mode), facts.st_uid != os.geteuid()
        if (folder == path or folder.name.endswith(".runs")) and (foreign or mode & 0o022):
            raise LedgerError(
                f"Expected {folder} to be a folder of your own that nobody else can write to, since"
                " secrets are kept there; got one of"
                f" {'another user' if foreign else f'mode {mode:o}'}. Nothing was charged. Look who"
                f" made it; if it is yours: chmod 700 {folder}"
            )


def unknown_runs(runs_dir: Path, unknown: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
    """Find the runs with results that a ledger does not know, in one listing of its runs' folder.

    Parameters
    ----------
    runs_dir : Path
    unknown : function of a sequence of run ids
        Returns those that the ledger does not know.
    """
    try:
        with os.scandir(runs_dir) as listed:
            names = [
                entry.name
                for entry in listed
                if re.fullmatch("[0-9a-f]{32}", entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):  # nothing was drawn beside this ledger
        return []
    except OSError as error:
        raise LedgerError(
            f"Expected to list the runs in {runs_dir}, got: {error.strerror}. Nothing was charged."
            " Check its rights."
        ) from None
    # The ledger is asked once for all names, and only the few folders that it does not know are
    # opened: a charge stays fast with many runs.
    return sorted(
        run_id
        for run_id in (unknown(names) if names else ())
        if RunStore(runs_dir / run_id).has_results()
    )
