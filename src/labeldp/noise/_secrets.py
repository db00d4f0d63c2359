# SPDX-License-Identifier: Apache-2.0
"""Secrets, and the keys derived from them: each draw has its own key, derived from all facts that
distinguish it from other draws.

A run's secret has two halves: 32 random bytes in the run's private folder and, if the ledger names
a key source, the release secret. If one half is lost, the run's noise can never be computed again.
No secret is kept in memory between two calls.
"""

import binascii
import hashlib
import hmac
import json
import math
import numbers
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from labeldp import _validate
from labeldp._files import path_text, sync
from labeldp.errors import InvalidInput, LedgerError

FORMAT: Final = 1
"""Version of the format in docs/reference/noise.md; it is part of every key, so that formats never
share words."""

DRAW_FACTS: Final = (
    "run_id",
    "dataset",
    "column",
    "unit",
    "max_rows_per_unit",
    "law",
    "classes",
    "prior",
    "stage",
)
"""The facts that distinguish one draw from another. A key of purpose "draw" needs all of them."""

SECRET_BYTES: Final = 32
KEY_BYTES: Final = 16
_OWN_USE: Final = MappingProxyType({"ids": "id_blocks", "partition": "partition", "pin": "Pin"})
_FORMS: Final = "'file:PATH' or 'env:NAME'"
_LARGEST_FILE: Final = 4096
# different bytes among 32; random ones have fewer with probability below 1e-40
_FEWEST_VALUES: Final = 8


class _Hidden:
    """Base of values that print as "<secret>", so that messages and tracebacks with variables do
    not show them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


class Secret(_Hidden, bytes):
    """Secret bytes: they print as "<secret>" and refuse to be pickled or copied, so that no tool
    logs or sends them by accident."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        # tools that shorten long values print a slice
        return Secret(found) if isinstance(index, slice) else found

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise TypeError(
            "A secret is never pickled or copied. Send the run's stored bytes and the key source,"
            " and derive it there."
        )


class SentSecret(Secret):
    """A secret that may be pickled, to send it to a worker process. It prints as "<secret>",
    too."""

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return SentSecret, (bytes(self),)


def new_secret() -> Secret:
    """Draw 32 bytes of the operating system's entropy: the secret of one run or ledger."""
    return Secret(os.urandom(SECRET_BYTES))


def new_run_id() -> str:
    """Draw 128 random bits in hexadecimal: the public name of one charge."""
    return os.urandom(16).hex()


@dataclass(frozen=True)
class SeededNoise:
    """Noise from a seed, for tests and benchmarks on public data. It protects nothing, and its
    receipts say so (`secure` is False).

    Parameters
    ----------
    seed : int
        At least 0. The same seed and the same calls give the same noise; no entropy of the
        operating system is used.
    """

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _validate.integer(seed=self.seed, low=0))

    def secret(self) -> bytes:
        """Return 32 bytes in place of those of `new_secret()`."""
        return hashlib.sha256(b"labeldp seeded secret %d" % self.seed).digest()

    def run_id(self, facts: Mapping[str, object], counter: int = 0) -> str:
        """Return an id in place of that of `new_run_id()`: a hash of the seed, the run's public
        facts, and a counter of equal runs."""
        info = _canonical({"counter": counter, "facts": dict(facts)})
        return hmac.new(
            self.secret(), b"labeldp seeded run id " + info, hashlib.sha256
        ).hexdigest()[:32]


class Key:
    """A key for one purpose, made by `derive_key`. It prints its purpose, never its bytes, and
    refuses to be pickled or copied."""

    __slots__ = ("__bytes", "purpose")

    def __init__(self, purpose: str, material: bytes) -> None:
        self.purpose = purpose
        self.__bytes = Secret(material)

    def __repr__(self) -> str:
        return f"Key(purpose={self.purpose!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"A labeldp key is never pickled or copied (purpose {self.purpose!r}). Derive it again"
            " where it is needed."
        )

    def material(self, used_by: str) -> Secret:
        """Return the key's 16 bytes for a use that its purpose allows. A key with two uses would
        give both the same words."""
        if _OWN_USE.get(self.purpose, "RowWords") != used_by:
            wanted = [purpose for purpose, use in _OWN_USE.items() if use == used_by] or ["draw"]
            raise InvalidInput(
                f"Expected a key of purpose {wanted[0]!r} for {used_by}, got {self.purpose!r}."
                " Derive one for this use."
            )
        return self.__bytes


def derive_key(secret: bytes, *, purpose: str, facts: Mapping[str, object]) -> Key:
    """Derive the key for one use of a run's secret.

    Parameters
    ----------
    secret : bytes
        32 bytes, from `new_secret()` or `SeededNoise.secret()`.
    purpose : str
        "draw" for the words of a law, "ids" for `id_blocks`, "partition", "pin"; any other name for
        a further stream of words.
    facts : mapping
        All facts that distinguish this use from others: JSON-like (str, int, float, bool, None,
        lists, mappings with ASCII keys). A draw needs all of `DRAW_FACTS`.

    Returns
    -------
    Key
        HKDF-SHA256 (RFC 5869, no salt) of the secret, 16 bytes; its info is the canonical JSON of
        the facts, purpose and format.

    Notes
    -----
    Guarantee: keys of different facts are independent (HKDF is a pseudorandom function of its
    info), so two draws never share a word. If they did, two outputs of one row could reveal its
    label with certainty.
    """
    if not (isinstance(secret, bytes) and len(secret) == SECRET_BYTES):
        raise InvalidInput(
            f"Expected a secret of {SECRET_BYTES} bytes, got another value. Make one with"
            " new_secret()."
        )
    # Two draws that differ only in a fact that was left out would have one key, and so the same
    # words.
    missing = [name for name in DRAW_FACTS if name not in facts] if purpose == "draw" else []
    if missing:
        wanted = f"Expected the facts {', '.join(DRAW_FACTS)} for a draw"
        raise InvalidInput(
            f"{wanted}, got nothing for {', '.join(missing)}. Pass None where there is none."
        )
    # A fact named "purpose" would replace the real one below, and so give the key of another
    # purpose.
    clash = sorted({"format", "purpose"} & set(facts))
    if clash:
        raise InvalidInput(
            f"Expected facts other than format and purpose, got {', '.join(clash)}. Give it another"
            " name."
        )
    info = _canonical({"format": FORMAT, "purpose": purpose, **facts})
    return Key(purpose, _hkdf(secret, info, length=KEY_BYTES))


def _canonical(facts: Mapping[str, object]) -> bytes:
    """Write facts as RFC 8785 JSON in UTF-8: keys sorted, no spaces; a float as {"float64": its 8
    bytes, big-endian, in hexadecimal}."""
    # Different facts must give different bytes, else two draws would have one key.
    tree = _plain(facts, "facts")
    try:
        return json.dumps(
            tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            "Expected text in facts to be valid Unicode, got a lone surrogate. Repair the name."
        ) from None


def _plain(value: object, name: str) -> object:
    """Convert facts to types that JSON spells in one way only; refuse others."""
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        # As bits: languages spell a float differently in decimals, and 1.0 must differ from the
        # integer 1.
        return {"float64": struct.pack(">d", float(value)).hex()}
    if isinstance(value, Mapping):
        bad = [
            key
            for key in value
            if not (isinstance(key, str) and key.isascii() and key != "float64")
        ]
        if bad:
            raise InvalidInput(
                f"Expected ASCII keys other than 'float64' in {name}, got {bad[0]!r}. Rename it."
            )
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    raise InvalidInput(
        f"Expected JSON-like data with finite numbers, got {name} of type {type(value).__name__}."
        " Convert it first."
    )


def _hkdf(
    secret: bytes, info: bytes, *, salt: bytes | None = None, length: int = SECRET_BYTES
) -> Secret:
    # `bytes(secret)` exists only as an argument, in no local variable that a traceback with
    # variables would print.
    key = HKDF(
        algorithm=hashes.SHA256(),
        length=length,
        salt=None if salt is None else bytes(salt),
        info=info,
    )
    return Secret(key.derive(bytes(secret)))


# The release secret
# --------------------------------------------------------------------------------------------------


class UnknownReleaseSecret(LedgerError):
    """The release secret that was found has another id than the one required."""


@dataclass(frozen=True, repr=False)
class KeySource:
    """The place of a release secret, in a form that can be printed, pickled and sent, since it
    never holds the secret itself.

    Parameters
    ----------
    text : str
        "file:PATH" (32 bytes or 64 hexadecimal digits, readable by its owner only), or "env:NAME"
        (64 hexadecimal digits or base64).
    key_id : str
        The public id that the secret must have; "" (default) for any.
    """

    text: str
    key_id: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _checked(self.text))

    def __repr__(self) -> str:
        return f"KeySource({self.text!r})"

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, value: object) -> "KeySource":
        """Convert a KeySource, a text, or the path of a file to a source."""
        if isinstance(value, KeySource):
            return value
        if isinstance(value, Path):
            return cls(f"file:{value}")
        return cls(str(value) if isinstance(value, str) else "")

    def expecting(self, key_id: str) -> "KeySource":
        """Return a source that accepts only the secret with this id."""
        return replace(self, key_id=key_id)

    def fetch(self) -> Secret:
        """Read the release secret. It is read anew by each call, so that revoking it has effect at
        once.

        Raises
        ------
        LedgerError
            It cannot be read, or has another id than the expected one. The message never shows what
            was read.
        """
        kind, _, place = self.text.partition(":")
        secret = _from_file(place) if kind == "file" else _from_environment(place)
        # With a wrong secret a resumed run would draw its rows a second time, with other noise,
        # under a charge for one draw.
        if self.key_id and not hmac.compare_digest(key_id(secret), self.key_id):
            raise UnknownReleaseSecret(
                f"Expected the release secret with id {self.key_id} from {self.text}, got one with"
                f" id {key_id(secret)}. Name the source that holds the former."
            )
        return secret


@dataclass(frozen=True, repr=False)
class SecretHalves:
    """A run's secret with its two halves: the stored bytes, and the source of the release secret
    (None if there is none)."""

    run_id: str
    secret: Secret
    stored: Secret
    key: KeySource | None

    def __repr__(self) -> str:
        return f"SecretHalves({self.run_id!r}, key={self.key!r})"

    def for_worker(self) -> tuple[bytes, KeySource | None]:
        """Return the arguments of `run_secret` for a worker, to be sent privately: without a key
        source the bytes are the secret."""
        return SentSecret(self.stored), self.key


def run_secret(stored: bytes, key: KeySource | None, run_id: str) -> Secret:
    """Compute the secret of a run from its two halves.

    Parameters
    ----------
    stored : bytes
        The 32 random bytes in the run's folder.
    key : KeySource or None
        Source of the release secret; None: the stored bytes are the run's secret.
    run_id : str

    Returns
    -------
    Secret
        HKDF-SHA256 (RFC 5869) of the release secret, 32 bytes; salt: the stored bytes; info:
        "labeldp run secret " and the run id.
    """
    return run_secret_halves(stored, key, run_id).secret


def run_secret_halves(stored: bytes, key: KeySource | None, run_id: str) -> SecretHalves:
    """Compute the secret of a run, as `run_secret`, and return it with its halves; the source then
    accepts this release secret only."""
    stored = Secret(stored)
    if len(stored) != SECRET_BYTES:
        raise LedgerError(
            f"Expected {SECRET_BYTES} stored bytes of run {run_id}, got {len(stored)}. The run's"
            " folder is damaged."
        )
    if key is None:
        return SecretHalves(run_id, stored, stored, None)
    release = key.fetch()
    # Both halves enter: neither the run's folder nor the release secret alone suffices to compute a
    # word of noise.
    secret = _hkdf(release, b"labeldp run secret " + run_id.encode(), salt=stored)
    return SecretHalves(run_id, secret, stored, key.expecting(key_id(release)))


def key_id(release: bytes) -> str:
    """Compute the public id of a release secret: 16 hexadecimal digits, a hash that reveals nothing
    of 32 random bytes."""
    return _hkdf(release, b"labeldp release secret id", length=8).hex()


def create_key_file(path: Path) -> KeySource:
    """Write a new random release secret to a file that only its owner can read; on disk when this
    returns."""
    path = Path(path_text(path)).expanduser().absolute()
    for folder in reversed([each for each in path.parents if not each.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise LedgerError(
            f"Expected the name of a new file, got {path}, which exists. A key is never"
            " overwritten."
        ) from None
    secret = Secret(os.urandom(SECRET_BYTES))
    try:  # a file that is not written to its end must not stay under this name
        with open(handle, "wb") as file:
            file.write(secret.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return KeySource(f"file:{path}", key_id(secret))


def key_file_id(path: Path) -> str:
    """Read the public id of the release secret in a file, also if others may read the file."""
    return key_id(_from_file(str(Path(path_text(path)).expanduser().absolute()), private=False))


def destroy_key_file(path: Path) -> str:
    """Overwrite and remove a file with a release secret, and return the secret's public id. Copies
    of the file stay."""
    path = Path(path_text(path)).expanduser().absolute()
    if path.is_symlink():
        raise LedgerError(
            f"Expected the key file itself, got the link {path}. Name the file that it leads to."
        )
    # raises for a file without a key, which so is not overwritten by mistake
    name = key_file_id(path)
    erase(path)
    sync(path.parent)
    return name


def erase(path: Path) -> None:
    """Overwrite a file with a secret, and remove it."""
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


# Sources
# --------------------------------------------------------------------------------------------------


class _SecretText(_Hidden, str):
    """The text of a secret, in hexadecimal or base64; it prints as "<secret>"."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return _SecretText(super().__getitem__(index))


def _checked(text: object) -> str:
    """Check the text of a source, and return it with an absolute path. A refused text may be the
    secret itself, so it is not shown."""
    kind, _, place = text.partition(":") if isinstance(text, str) else ("", "", "")
    good = {
        "file": place.strip() != "" and place.isprintable(),
        "env": re.fullmatch(r"[A-Za-z_]\w*", place, re.ASCII) is not None,
    }
    if not good.get(kind, False) or _decoded(place) is not None:
        raise InvalidInput(
            f"Expected a key source: {_FORMS}; got something else, not shown here. Say where the"
            " secret is, not what it is."
        )
    return (
        f"file:{Path(path_text(place)).expanduser().absolute()}"
        if kind == "file"
        else f"{kind}:{place}"
    )


def _from_file(place: str, private: bool = True) -> Secret:
    try:
        with open(place, "rb", buffering=0, opener=_open_at_once) as file:
            facts, data = os.fstat(file.fileno()), Secret(file.read(_LARGEST_FILE + 1))
    except OSError as error:
        raise LedgerError(
            f"Expected the release secret in {place}, got: {error.strerror}. {_ABANDON}"
        ) from None
    if not stat.S_ISREG(facts.st_mode):
        raise LedgerError(
            f"Expected the release secret in an ordinary file, got something else at {place}."
        )
    if private and os.name == "posix" and facts.st_mode & 0o077:
        mode = stat.S_IMODE(facts.st_mode)
        raise LedgerError(
            f"Expected {place} to be readable by its owner only, got mode {mode:o}. Repair it:"
            f" chmod 600 {place}"
        )
    # 32 printable bytes are a password, or half of a key in hexadecimal: both have far less entropy
    # than 32 random bytes.
    secret = (
        Secret(data)
        if len(data) == SECRET_BYTES and not _is_text(data)
        else _from_hexadecimal(data)
    )
    if secret is None:
        raise LedgerError(
            f"Expected {SECRET_BYTES} random bytes or {2 * SECRET_BYTES} hexadecimal digits in"
            f" {place}, got something else. Make one with `labeldp key PATH`."
        )
    return _random(secret, f"file:{place}")


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without blocking, for `open(opener=)`: opening a pipe that has no writer would
    wait for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _from_environment(name: str) -> Secret:
    if name not in os.environ:
        raise LedgerError(
            f"Expected the release secret in the environment variable {name}, which is not set."
            f" {_ABANDON}"
        )
    secret = _decoded(_SecretText(os.environ[name].strip()))
    if secret is None:
        raise LedgerError(
            f"Expected {2 * SECRET_BYTES} hexadecimal digits, or {SECRET_BYTES} bytes in base64, in"
            f" the environment variable {name}; got something else."
        )
    return _random(secret, f"env:{name}")


_ABANDON: Final = (
    "Nothing was drawn. If the release secret is elsewhere, say where. If it is gone, a run that"
    " was charged under it can never be finished: abandon it with `labeldp ledger repair --abandon"
    " RUN`."
)


def _random(secret: Secret, source: str) -> Secret:
    """Refuse bytes that are obviously not random, for example zeros, or one repeated letter."""
    # Only a check for mistakes: whether bytes are random cannot be seen from the bytes.
    if len(set(secret)) < _FEWEST_VALUES:
        raise LedgerError(
            f"Expected random bytes from {source}, got almost always the same one. Make a key with"
            " `labeldp key PATH`."
        )
    return secret


def _is_text(data: bytes) -> bool:
    """Tell whether bytes are printable text, as a password of 32 characters; 32 random bytes are so
    with probability 2e-14."""
    return all(0x20 <= byte < 0x7F for byte in data)


def _from_hexadecimal(data: bytes) -> Secret | None:
    text = Secret(data.strip())
    return (
        Secret(bytes.fromhex(text.decode("ascii")))
        if re.fullmatch(rb"[0-9a-fA-F]{64}", text)
        else None
    )


def _decoded(text: str) -> Secret | None:
    """Decode 32 bytes from hexadecimal digits or base64 (either alphabet); None for any other
    text."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text, re.ASCII):
        return Secret(bytes.fromhex(text))
    if not re.fullmatch(r"[A-Za-z0-9+/_-]{43}=", text, re.ASCII):
        return None
    try:
        return Secret(
            binascii.a2b_base64(text.replace("-", "+").replace("_", "/"), strict_mode=True)
        )
    except binascii.Error:
        return None
