# SPDX-License-Identifier: Apache-2.0
"""Put on PYTHONPATH: every process that draws notes under which key it drew which rows, in the file
that LABELDP_RECORD names.

Python imports this module by itself at its start, so that the workers of Spark and Ray record too.
The file also gets the run's secret, so that an undisturbed run under the same one can be made: for
public test data only.
"""

import hashlib
import importlib.abc
import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "labeldp.custody._draw"


class _Watch(importlib.abc.MetaPathFinder):
    """Finds the one module that draws, and changes it once it is loaded."""

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        load = loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            _record(module)

        loader.exec_module = loaded
        return spec


def _record(module: ModuleType) -> None:
    begin, draw = module.SecondPass.__init__, module.SecondPass.draw

    def begun(self: Any, facts: Any, secret: Any, *args: Any, **named: Any) -> None:
        begin(self, facts, secret, *args, **named)
        self._recorded = hashlib.sha256(self._draw._key.material("RowWords")).hexdigest()[:16]
        _note({"run": secret.run_id, "secret": bytes(secret._RunSecret__secret).hex()})

    def drawn(self: Any, codes: Any, ids: Any, *args: Any, **named: Any) -> Any:
        _note(
            {
                "run": self.receipt.run_id,
                "key": self._recorded,
                "rows": len(codes),
                "first": str(ids[0]) if ids is not None else None,
            }
        )
        return draw(self, codes, ids, *args, **named)

    module.SecondPass.__init__, module.SecondPass.draw = begun, drawn


def _note(facts: dict[str, object]) -> None:
    """One write that is not torn apart, whatever else writes to the file."""
    handle = os.open(os.environ["LABELDP_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, json.dumps(facts).encode() + b"\n")
    finally:
        os.close(handle)


if os.environ.get("LABELDP_RECORD"):
    sys.meta_path.insert(0, _Watch())
