# SPDX-License-Identifier: Apache-2.0
"""Secrets and the keys derived from them: one key for each draw, from every fact that makes it a different draw."""

import hashlib
import hmac
import json
import math
import numbers
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.noise._secrets import Secret

FORMAT: Final = 1
"""Version of the format in docs/noise.md; it enters every key, so formats never share words."""

DRAW_FACTS: Final = ("run_id", "dataset", "column", "unit", "max_rows_per_unit", "law", "classes", "prior", "stage")
"""What makes two draws different draws; a key of purpose "draw" cannot be derived without each of them."""

_SECRET_BYTES: Final = 32
KEY_BYTES: Final = 16
_OWN_USE: Final = {"ids": "id_blocks", "partition": "partition", "pin": "Pin"}


def new_secret() -> Secret:
    """32 bytes of the operating system's entropy: the secret of one run or ledger. They are never shown, pickled or copied."""
    return Secret(os.urandom(_SECRET_BYTES))


def new_run_id() -> str:
    """128 random bits in hexadecimal, the public name of one charge."""
    return os.urandom(16).hex()


@dataclass(frozen=True)
class SeededNoise:
    """Noise from a seed, for tests and for benchmarks on public data: it protects nothing, and what is made with it says so.

    Parameters
    ----------
    seed : int
        At least 0. The same seed and the same calls give the same noise; nothing of the operating system's entropy enters.
    """

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _validate.integer(seed=self.seed, low=0))

    def secret(self) -> bytes:
        """The 32 bytes that stand in for `new_secret()`."""
        return hashlib.sha256(b"labeldp seeded secret %d" % self.seed).digest()

    def run_id(self, facts: Mapping[str, object], counter: int = 0) -> str:
        """The id that stands in for `new_run_id()`: a hash of the seed, what the run is (JSON-like facts) and how many such there were."""
        info = _canonical({"counter": counter, "facts": dict(facts)})
        return hmac.new(self.secret(), b"labeldp seeded run id " + info, hashlib.sha256).hexdigest()[:32]


class Key:
    """A key that only `derive_key` makes: it shows its purpose, never its bytes, and refuses to be pickled or copied."""

    __slots__ = ("__bytes", "purpose")

    def __init__(self, purpose: str, material: bytes) -> None:
        self.purpose = purpose
        self.__bytes = Secret(material)

    def __repr__(self) -> str:
        return f"Key(purpose={self.purpose!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"A labeldp key is never pickled or copied (purpose {self.purpose!r}). Derive it again where it is needed.")

    def material(self, used_by: str) -> Secret:
        """The key's 16 bytes, hidden, for a use that its purpose allows: a key that served two uses would give them the same words."""
        if _OWN_USE.get(self.purpose, "RowWords") != used_by:
            wanted = [purpose for purpose, use in _OWN_USE.items() if use == used_by] or ["draw"]
            raise InvalidInput(f"Expected a key of purpose {wanted[0]!r} for {used_by}, got {self.purpose!r}. Derive one for this use.")
        return self.__bytes


def derive_key(secret: bytes, *, purpose: str, facts: Mapping[str, object]) -> Key:
    """The key for one use of a run's secret.

    Parameters
    ----------
    secret : bytes
        32 bytes, from `new_secret()` or `SeededNoise.secret()`.
    purpose : str
        "draw" for the words of a law, "ids" for `id_blocks`, "partition", "pin"; any other name for a further stream of words.
    facts : mapping
        Everything that makes this use a different one: JSON-like (str, int, float, bool, None, lists, mappings with ASCII keys).
        A draw needs all of `DRAW_FACTS`.

    Returns
    -------
    Key
        HKDF-SHA256 (RFC 5869, no salt) of the secret, 16 bytes; its info is the canonical JSON of the facts, purpose and format.

    Notes
    -----
    Guarantee: keys whose facts differ in anything are independent, so two draws never share a word. If they did, two outputs of one
    row could reveal its label with certainty.
    """
    if not (isinstance(secret, bytes) and len(secret) == _SECRET_BYTES):
        raise InvalidInput(f"Expected a secret of {_SECRET_BYTES} bytes, got another value. Make one with new_secret().")
    missing = [name for name in DRAW_FACTS if name not in facts] if purpose == "draw" else []
    if missing:
        wanted = f"Expected the facts {', '.join(DRAW_FACTS)} for a draw"
        raise InvalidInput(f"{wanted}, got nothing for {', '.join(missing)}. Pass None where there is none.")
    clash = sorted({"format", "purpose"} & set(facts))
    if clash:
        raise InvalidInput(f"Expected facts other than format and purpose, got {', '.join(clash)}. Give it another name.")
    info = _canonical({"format": FORMAT, "purpose": purpose, **facts})
    return Key(purpose, Secret(HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(bytes(secret))))


def _canonical(facts: Mapping[str, object]) -> bytes:
    """RFC 8785 JSON in UTF-8: keys sorted, no spaces; a float as {"float64": its 8 bytes, big-endian, in hexadecimal}."""
    tree = _plain(facts, "facts")
    try:
        return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("Expected text in facts to be valid Unicode, got a lone surrogate. Repair the name.") from None


def _plain(value: object, name: str) -> object:
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return {"float64": struct.pack(">d", float(value)).hex()}
    if isinstance(value, Mapping):
        bad = [key for key in value if not (isinstance(key, str) and key.isascii() and key != "float64")]
        if bad:
            raise InvalidInput(f"Expected ASCII keys other than 'float64' in {name}, got {bad[0]!r}. Rename it.")
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    raise InvalidInput(f"Expected JSON-like data with finite numbers, got {name} of type {type(value).__name__}. Convert it first.")
