"""Exceptions in hotplate's threads are not lost."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hotplate"

#: Modules with threads that are no Background, and the reason.
PLAIN = {
    "children/keeper.py": "what it calls is guarded by who gives it; its room knows no events",
    "cloud/http/serving.py": "logs what a connection raises, as waitress's own threads do",
    "elsewhere/ways.py": "keeps what ssh complains of, and raises nothing but at its end",
    "output.py": "draws a line, which is no part of a verdict",
    "session/channel.py": "answers with what it raises",
}


def test_each_thread_is_a_background_or_has_a_reason():
    plain = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread")
    }
    assert plain == set(PLAIN)
