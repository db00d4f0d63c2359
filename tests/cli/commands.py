# SPDX-License-Identifier: Apache-2.0
"""How tests call the command line: no traceback and no raw label ever reach the user."""

from typer.testing import CliRunner

from labeldp.cli import app

SENTINEL = "SENTINEL-4711"
"""A raw label that no command may show."""


def run(*args: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    assert SENTINEL not in result.output
    return result.exit_code, result.stdout, result.stderr
