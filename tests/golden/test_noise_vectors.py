# SPDX-License-Identifier: Apache-2.0
"""The vectors of docs/reference/noise.md, computed twice: by labeldp, and here from
the text of the document alone, one value at a time."""

import hashlib
import hmac
import json
import re
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.cmac import CMAC

from labeldp.noise import _words as noise

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "noise.md"
VECTORS: dict[str, Any] = json.loads(
    re.search(r"```json vectors\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL).group(
        1
    )
)
SECRET = bytes.fromhex(VECTORS["secret"])


# The format, read off the document
# -------------------------------------------------------------------------------------------------


def reference_plain(value: Any) -> Any:
    if isinstance(value, float):
        return {"float64": struct.pack(">d", value).hex()}
    if isinstance(value, dict):
        return {name: reference_plain(item) for name, item in value.items()}
    return [reference_plain(item) for item in value] if isinstance(value, list) else value


def reference_info(purpose: str, facts: dict[str, Any]) -> str:
    data = reference_plain({"format": 1, "purpose": purpose} | facts)
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def reference_key(purpose: str, facts: dict[str, Any]) -> bytes:
    extracted = hmac.digest(bytes(32), SECRET, "sha256")
    return hmac.digest(extracted, reference_info(purpose, facts).encode() + b"\x01", "sha256")[:16]


def reference_aes(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)


def reference_cmac(key: bytes, message: bytes) -> bytes:
    mac = CMAC(algorithms.AES(key))
    mac.update(message)
    return mac.finalize()


def reference_part(part: dict[str, Any]) -> tuple[int, bytes]:
    """Tag and bytes of one value as the vectors write it."""
    ((kind, value),) = part.items()
    match kind:
        case "row":
            return 0, int(value).to_bytes(12, "little")
        case "integer":
            return 1, int(value).to_bytes(12, "little", signed=True)
        case "text":
            return 2, value.encode()
        case "bytes":
            return 3, bytes.fromhex(value)
    raise ValueError(kind)


def reference_block(given: dict[str, Any], ids_key: bytes) -> bytes:
    if "composite" in given:
        parts = [reference_part(part) for part in given["composite"]]
        message = b"".join(
            bytes([tag]) + len(data).to_bytes(8, "little") + data for tag, data in parts
        )
        return b"\x04" + reference_cmac(ids_key, message)[:12] + bytes(3)
    tag, data = reference_part(given)
    return bytes([tag]) + (data if tag < 2 else reference_cmac(ids_key, data)[:12]) + bytes(3)


def reference_word(key: bytes, block: bytes, counter: int) -> int:
    encrypted = reference_aes(key, block[:13] + (counter // 2).to_bytes(3, "little"))
    return int.from_bytes(encrypted[8 * (counter % 2) :][:8], "little")


# The same by labeldp
# --------------------------------------------------------------------------------------------------


def python_value(part: dict[str, Any]) -> Any:
    ((kind, value),) = part.items()
    return {
        "integer": lambda: int(value),
        "text": lambda: value,
        "bytes": lambda: bytes.fromhex(value),
    }[kind]()


def made_blocks(given: dict[str, Any]) -> noise.Blocks:
    if "row" in given:
        return noise.row_blocks(1, int(given["row"]))
    ids = (
        tuple(python_value(part) for part in given["composite"])
        if "composite" in given
        else python_value(given)
    )
    return noise.id_blocks([ids], made_key("ids"))


def made_key(name: str) -> noise.Key:
    vector = VECTORS["keys"][name]
    return noise.derive_key(SECRET, purpose=vector["purpose"], facts=vector["facts"])


def raw(blocks: noise.Blocks) -> bytes:
    return blocks.templates().tobytes()


USED_BY = {
    "draw": "RowWords",
    "order": "RowWords",
    "ids": "id_blocks",
    "partition": "partition",
    "pin": "Pin",
}


@pytest.mark.parametrize("name", VECTORS["keys"])
def test_keys(name: str) -> None:
    vector = VECTORS["keys"][name]
    assert reference_info(vector["purpose"], vector["facts"]) == vector["info"]
    assert reference_key(vector["purpose"], vector["facts"]).hex() == vector["key"]
    assert made_key(name).material(USED_BY[vector["purpose"]]).hex() == vector["key"]


@pytest.mark.parametrize("vector", VECTORS["blocks"], ids=lambda vector: json.dumps(vector["id"]))
def test_blocks(vector: dict[str, Any]) -> None:
    assert (
        reference_block(vector["id"], bytes.fromhex(VECTORS["keys"]["ids"]["key"])).hex()
        == vector["block"]
    )
    assert raw(made_blocks(vector["id"])).hex() == vector["block"]


@pytest.mark.parametrize(
    "vector", VECTORS["words"], ids=lambda vector: f"{vector['id']}-{vector['counter']}"
)
def test_words(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(VECTORS["keys"]["draw"]["key"])
    block = reference_block(vector["id"], bytes.fromhex(VECTORS["keys"]["ids"]["key"]))
    assert f"{reference_word(key, block, vector['counter']):016x}" == vector["word"]
    (word,) = noise.RowWords(made_key("draw"), made_blocks(vector["id"])).take(vector["counter"])
    assert f"{int(word):016x}" == vector["word"]


def test_partition() -> None:
    vector = VECTORS["partition"]
    key, rows = bytes.fromhex(VECTORS["keys"]["partition"]["key"]), range(len(vector["parts"]))
    edges = [
        sum(map(Fraction, vector["fractions"][: i + 1])) * 2**64 // 1
        for i in range(len(vector["fractions"]) - 1)
    ]
    words = [reference_word(key, reference_block({"row": row}, b""), 0) for row in rows]
    assert [sum(word >= edge for edge in edges) for word in words] == vector["parts"]
    assert (
        noise.partition(
            made_key("partition"), noise.row_blocks(len(rows)), vector["fractions"]
        ).tolist()
        == vector["parts"]
    )


def test_pin() -> None:
    vector = VECTORS["pin"]
    key, sums = bytes.fromhex(VECTORS["keys"]["pin"]["key"]), [0, 0]
    for row, code in enumerate(vector["codes"]):
        inner = int.from_bytes(reference_aes(key, reference_block({"row": row}, b"")), "little")
        outer = reference_aes(key, (inner ^ code).to_bytes(16, "little"))
        sums = [
            (total + int.from_bytes(outer[8 * i :][:8], "little")) % 2**64
            for i, total in enumerate(sums)
        ]
    assert f"{len(vector['codes']):016x}{sums[0]:016x}{sums[1]:016x}" == vector["pin"]
    pin = noise.Pin(made_key("pin"))
    pin.update(noise.row_blocks(len(vector["codes"])), np.array(vector["codes"], np.int32))
    assert pin.hexdigest() == vector["pin"]


def test_seeded() -> None:
    vector = VECTORS["seeded"]
    secret = hashlib.sha256(f"labeldp seeded secret {vector['seed']}".encode()).digest()
    seeded = noise.SeededNoise(vector["seed"])
    assert secret.hex() == seeded.secret().hex() == vector["secret"]
    info = json.dumps(
        {"counter": 0, "facts": vector["facts"]}, sort_keys=True, separators=(",", ":")
    )
    assert (
        hmac.digest(secret, b"labeldp seeded run id " + info.encode(), "sha256").hex()[:32]
        == vector["run_id"]
    )
    assert seeded.run_id(vector["facts"]) == vector["run_id"]


def test_cmac_of_the_rfc() -> None:
    """RFC 4493, section 4: the examples, all at once."""
    from labeldp._hash import Strings
    from labeldp.noise._words import cmac_chunks

    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    message = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    expected = {
        0: "bb1d6929e95937287fa37d129b756746",
        16: "070a16b46b4d4144f79bdd9dd04a287c",
        40: "dfa66747de9ae63030ca32611497c827",
        64: "51f0bebf7e3b9d92fc49741779363cfe",
    }
    data = np.frombuffer(b"".join(message[:n] for n in expected), np.uint8)
    ends = np.cumsum([0, *expected])
    found = [
        mac.tobytes().hex()
        for _, macs in cmac_chunks(key, Strings([(data, ends[:-1], ends[1:])]))
        for mac in macs
    ]
    assert found == list(expected.values())


def test_hkdf_of_the_rfc() -> None:
    """RFC 5869, test case 3 (no salt, no info): the reference above is HKDF."""
    extracted = hmac.digest(bytes(32), bytes([0x0B] * 22), "sha256")
    assert (
        hmac.digest(extracted, b"\x01", "sha256").hex()
        == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    )
