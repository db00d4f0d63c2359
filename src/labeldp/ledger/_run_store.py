# SPDX-License-Identifier: Apache-2.0
"""The private folder of one run: its half of the secret and its pin until it settles, and the public results of its steps."""

import contextlib
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from labeldp._files import private_file, replace_file, sync, write_new
from labeldp.errors import LedgerError
from labeldp.evidence import NoisyLabels

if TYPE_CHECKING:  # a machine that only trains keeps its steps here too, and has no secrets
    from labeldp.noise._secrets import Secret, SecretHalves

CHARGE: Final = "charge.json"
"""The file in a run's folder that says what was charged, as the ledger does: `Ledger.adopt` reads it where the ledger was lost."""

ROWS: Final = "rows-drawn"
"""Ending of the arrays that say which rows a stage draws."""


class Held:
    """A lock on a folder, which ends with the process at the latest; other systems than POSIX have none."""

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else -1

    def wait(self) -> None:
        """Take the lock, when nobody else has it."""
        self._lock(wait=True)

    def try_now(self) -> bool:
        """Take the lock together with others who only look, unless somebody holds it; whether it was free."""
        return self._lock(wait=False)

    def _lock(self, *, wait: bool) -> bool:
        if self._handle < 0:
            return True
        import fcntl  # POSIX alone has it

        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX if wait else fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let others have the lock."""
        handle, self._handle = self._handle, -1  # a second call, as __del__ makes, closes no handle of somebody else
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class RunStore:
    """The private folder of one run; each of its files appears whole or not at all, whenever the process dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, data: bytes, *, last: bool = True) -> None:
        """Write a file, readable by its owner only, and wait until it is on disk; `last`: see `labeldp._files.replace_file`."""
        private_folder(self.folder)
        replace_file(self._part(name), self.folder / name, data, last=last)

    def keep(self, name: str, data: bytes) -> bytes:
        """Write a file once: what was written under this name first stands, by whatever process, and is returned."""
        private_folder(self.folder)
        part = self._part(name)
        write_new(part, data)
        with contextlib.suppress(FileExistsError):
            os.link(part, self.folder / name)  # a link never replaces a file, as a rename would
        part.unlink()
        sync(self.folder)
        return (self.folder / name).read_bytes()

    def _part(self, name: str) -> Path:
        # hidden, and different in each process and call: what a killed one leaves is no result, and `repair` knows it by its form
        return self.folder / f".{name}.{os.getpid()}.{os.urandom(4).hex()}.part"

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is no such file."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def keep_secret(self, halves: "SecretHalves") -> None:
        """Write the stored half of the secret, and which release secret is the other half, before the last file of a charge."""
        if halves.key is not None:
            facts = {"source": halves.key.text, "key_id": halves.key.key_id}
            self.write("key", json.dumps(facts).encode())  # first: without it the stored half would pass for the whole
        self.write("secret", halves.stored, last=False)

    def stored_half(self) -> "Secret | None":
        """Read what is stored of the secret; None if it is gone."""
        from labeldp.noise._secrets import Secret

        try:
            return Secret((self.folder / "secret").read_bytes())  # in no variable of its own: a traceback with variables shows nothing
        except FileNotFoundError:
            return None

    def key_id(self) -> str | None:
        """Read the public id of the release secret that the run was charged under; None where there is none."""
        data = self.read("key")
        try:
            return None if data is None else str(json.loads(data)["key_id"])
        except (ValueError, KeyError, TypeError):
            raise LedgerError(f"Expected the id of a release secret in {self.folder / 'key'}, got something else. Restore it.") from None

    def forget_secret(self) -> None:
        """Destroy the stored half of the secret, and the pin: the noise can never be computed again, whoever has the release secret."""
        # overwritten before it is unlinked: an unlinked file's blocks stay readable on the disk until something else is written there
        for name in ("secret", "pin"):
            path = self.folder / name
            with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
                with path.open("r+b") as file:
                    file.write(os.urandom(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
                path.unlink()

    def has_results(self) -> bool:
        """Tell whether something was drawn, and so charged before: a folder without a charge never has such files."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return any(re.fullmatch(r"(?!\.)(.*\.)?(output|manifest\.json|done|parquet)", name) for name in names)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other process, and every other handle of this one, out of such a block of the same run."""
        held = self.hold()
        try:
            yield
        finally:
            held.close()

    def hold(self) -> "Held":
        """Wait until nobody holds this run, and hold it until what is returned is closed or collected, or the process ends."""
        private_folder(self.folder)
        held = Held(self.folder)
        held.wait()
        return held

    def is_held(self) -> bool:
        """Tell whether some process, or this one, holds the run now."""
        if not self.folder.is_dir():
            return False
        held = Held(self.folder)
        try:
            return not held.try_now()
        finally:
            held.close()

    def save_array(self, name: str, array: NDArray[np.generic]) -> None:
        """Keep a public array."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        self.write(f"{name}.npy", buffer.getvalue())

    def load_array(self, name: str) -> NDArray[np.generic] | None:
        """Read a kept array; None where there is none."""
        path = self.folder / f"{name}.npy"
        return np.asarray(np.load(path, allow_pickle=False)) if path.exists() else None

    def keep_side(self, stage: str, side: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Store the side that a stage's law derived from its prior, before the draw; if one is stored already, return that.

        Two processes in the same run so draw with one side, and not each row twice.
        """
        buffer = io.BytesIO()
        np.savez(buffer, **side)  # type: ignore[arg-type]
        self.keep(f"{stage}.side.npz", buffer.getvalue())
        return self.load_side(stage) or {}

    def load_side(self, stage: str) -> dict[str, NDArray[np.generic]] | None:
        """Read the kept side of a stage; None where there is none."""
        data = self.read(f"{stage}.side.npz")
        if data is None:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as side:
            return {name: side[name] for name in side.files}

    def claims(self) -> list[str]:
        """List the stages that have begun: the rows of each are kept as an array before they are drawn."""
        return sorted(path.name.removesuffix(f".{ROWS}.npy") for path in self.folder.glob(f"*.{ROWS}.npy"))

    def stages(self) -> list[str]:
        """List the stages whose outputs are kept."""
        return sorted(path.name.removesuffix(".parquet") for path in self.folder.glob("*.parquet"))

    def save_noisy(self, stage: str, noisy: NoisyLabels) -> None:
        """Keep a stage's outputs."""
        part = self._part(f"{stage}.parquet")
        noisy.save(private_file(part))
        sync(part)
        part.replace(self.folder / f"{stage}.parquet")
        sync(self.folder)

    def load_noisy(self, stage: str) -> NoisyLabels | None:
        """Read a stage's outputs; None where there are none."""
        path = self.folder / f"{stage}.parquet"
        return NoisyLabels.load(path) if path.exists() else None

    def digest(self) -> str:
        """Digest the stored outputs of all stages, with their names; the run settles with it."""
        state = hashlib.sha256()
        for path in sorted(self.folder.glob("*.parquet")):
            state.update(path.name.encode())
            state.update(path.read_bytes())
        return state.hexdigest()


def private_folder(path: Path) -> None:
    """Make a folder, and whatever folders it lacks above it, for the owner only; on disk when this returns.

    Raises
    ------
    LedgerError
        It, or the folder of all runs that it is in, is there already and is another user's, or others may write to it: they could read or
        replace the secrets.
    """
    # from the top down, and each name on disk before anything is put into the folder: power loss leaves no secret in a lost folder
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)
    for folder in (path.parent, path) if os.name == "posix" else ():
        facts = folder.stat()
        mode, foreign = stat.S_IMODE(facts.st_mode), facts.st_uid != os.geteuid()
        if (folder == path or folder.name.endswith(".runs")) and (foreign or mode & 0o022):
            raise LedgerError(
                f"Expected {folder} to be a folder of your own that nobody else can write to, since secrets are kept there; got one of "
                f"{'another user' if foreign else f'mode {mode:o}'}. Nothing was charged. Look who made it; if it is yours: "
                f"chmod 700 {folder}"
            )


def unknown_runs(runs_dir: Path, unknown: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
    """Find the runs with results that a ledger does not know, in one listing; `unknown` says which of these run ids it does not know."""
    try:
        with os.scandir(runs_dir) as listed:
            names = [entry.name for entry in listed if re.fullmatch("[0-9a-f]{32}", entry.name) and entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):  # nothing was drawn beside this ledger
        return []
    except OSError as error:
        raise LedgerError(
            f"Expected to list the runs in {runs_dir}, got: {error.strerror}. Nothing was charged. Check its rights."
        ) from None
    return sorted(run_id for run_id in (unknown(names) if names else ()) if RunStore(runs_dir / run_id).has_results())
