"""The output of a failed deployment, and the part of it with the error.

The place of the error depends on the tool; the formats are taken from real output of the tools,
which is in ``tests/verdict/written``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, quote_plus

#: The mark of truncated text: the runner's, which names the full copy, and that of the code that
#: captures a tool's output.
_LEFT_OUT = re.compile(
    r"\[\.\.\. +(?P<much>\d+ (?:of \d+ )?\w+(?: and \d+ bytes)?) are left out here"
    r"(?:; (?P<where>[^\]]*?))? \.\.\.\]"
)

#: The shortest value that is searched for in the output.
SHORTEST = 4
#: The shortest line of a value of several lines, such as a key, that is searched for alone.
SHORTEST_LINE = 12
#: The shortest value that is also searched for in base64 and quoted for a URL.
SHORTEST_ENCODED = 8


def left_out(text: str) -> str:
    """Return a clause about the text cut from an output and the place of the full one.

    :return: "" for one that is whole.
    """
    match = _LEFT_OUT.search(text)
    if not match:
        return ""
    where = match["where"] or "/var/log/heat-config on the server has more of it"
    return f"{match['much']} are left out; {where}"


@dataclass(frozen=True)
class HookOutput:
    """The output of a deployment's hook.

    :param stdout: Heat's ``deploy_stdout``, and so on.
    """

    stdout: str = ""
    stderr: str = ""
    status_code: str = ""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> HookOutput:
        """Read Heat's ``output_values`` of a deployment."""
        return cls(
            *(
                str(values.get(f"deploy_{name}") or "")
                for name in ("stdout", "stderr", "status_code")
            )
        )

    def __str__(self) -> str:
        return f"{self.stderr}\n{self.stdout}"

    def without(self, secrets: Iterable[str], redact: Callable[[str], str]) -> HookOutput:
        """Return a copy with "REDACTED" in place of each secret; see :func:`without_secrets`."""
        stdout, stderr = without_secrets((self.stdout, self.stderr), secrets, redact)
        return replace(self, stdout=stdout, stderr=stderr)

    @property
    def status(self) -> int | None:
        """The exit status of the hook, None when it was not sent or is no number."""
        try:
            return int(self.status_code)
        except ValueError:
            return None

    @property
    def cut(self) -> str:
        """A clause about the missing text; "" when nothing is missing."""
        for name, text in (("stderr", self.stderr), ("stdout", self.stdout)):
            if missing := left_out(text):
                return f"of its {name} {missing}"
        return ""

    @property
    def error(self) -> str:
        """The line with the error, "" when there is no output."""
        return error_in(self.stderr, self.stdout)


def without_secrets(value: Any, secrets: Iterable[str], redact: Callable[[str], str]) -> Any:
    """Return a value of JSON with "REDACTED" in place of each secret in its texts.

    :param secrets: texts; within another text, those too short to distinguish from words stay.
        Of one with several lines, each line is a secret too, since a quotation may be one line.
        One that is long enough is also replaced in base64 and quoted for a URL.
    :param redact: removes secrets that are recognised by their form.
    """
    whole = set(secrets) - {""}
    lines = {line.strip() for each in whole if "\n" in each for line in each.splitlines()}
    hidden = {each for each in whole if len(each) >= SHORTEST}
    hidden |= {each for each in lines if len(each) >= SHORTEST_LINE}
    hidden |= {form for each in whole if len(each) >= SHORTEST_ENCODED for form in _encoded(each)}
    # The longest first: it may have others as its parts.
    patterns = [_pattern(each) for each in sorted(hidden, key=len, reverse=True)]

    def clean(each: Any) -> Any:
        if isinstance(each, Mapping):
            return {clean(key): clean(inner) for key, inner in each.items()}
        if isinstance(each, list | tuple):
            return [clean(inner) for inner in each]
        if str(each) in whole:
            return "REDACTED"
        if not isinstance(each, str):
            return each
        for pattern in patterns:
            each = pattern.sub("REDACTED", each)
        return redact(each)

    return clean(value)


def _encoded(secret: str) -> Iterator[str]:
    """Yield a secret in base64, as a value and as a line of text, and quoted for a URL."""
    data = secret.encode(errors="surrogatepass")
    for each in (data, data + b"\n"):
        text = base64.b64encode(each).decode()
        yield from (text, text.rstrip("="))
    yield from (quote(data), quote(data, safe=""), quote_plus(data))


def _pattern(secret: str) -> re.Pattern[str]:
    """Return a pattern for a secret; a plain word matches only as a word or an option's value.

    A user whose password is "admin" still wants to read "mysqladmin: command not found".
    """
    quoted = re.escape(secret)
    if not re.fullmatch(r"[A-Z]?[a-z]{3,11}", secret):
        return re.compile(quoted)
    begins = r"(?:(?<![A-Za-z])|(?<=^-[A-Za-z])|(?<=[^A-Za-z0-9]-[A-Za-z]))"
    return re.compile(rf"{begins}(?:{quoted})+(?![A-Za-z])", re.MULTILINE)


#: The most characters of a quotation.
LIMIT = 400


@dataclass(frozen=True)
class ToolError:
    """The format of one tool's errors.

    :param tool: its name.
    :param pattern: matches the line, or lines, with the error.
    :param quote: makes the quotation from a match; "" for one without an error.
    """

    tool: str
    pattern: re.Pattern[str]
    quote: Callable[[re.Match[str]], str] = lambda match: match[0]

    def find(self, text: str) -> str:
        """Return the first error that the tool reported, "" when there is none."""
        return next(filter(None, (self.quote(each) for each in self.pattern.finditer(text))), "")


def _ansible(match: re.Match[str]) -> str:
    try:
        result: Any = json.loads(match["result"])
    except ValueError:
        result = match["result"]
    if isinstance(result, dict):
        message = result.get("stderr") or result.get("module_stderr") or result.get("msg")
        result = _last_line(str(message or "")) or match["result"]
    task = f"TASK [{match['task']}]: " if match["task"] else ""
    return f"{task}{result}"


def _salt(match: re.Match[str]) -> str:
    return f"{match['state']}: {' '.join(match['comment'].split())}"


_PYTHON = ToolError(
    "python",
    re.compile(
        r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(?P<error>\S.*)$",
        re.MULTILINE,
    ),
    lambda match: match["error"],
)
TOOL_ERRORS = (
    ToolError(
        "ansible",
        re.compile(
            r"(?:^TASK \[(?P<task>[^\]\n]*)\] \*+\n(?:(?!^TASK |^fatal: |^failed: ).*\n)*?)?"
            r"^(?:fatal|failed): \[[^\]\n]*\].*?=> (?P<result>\{.*)$",
            re.MULTILINE,
        ),
        _ansible,
    ),
    ToolError("ansible", re.compile(r"^ERROR! .*$", re.MULTILINE)),
    ToolError(
        "salt",
        re.compile(
            r"^ *ID: (?P<state>.*)\n(?: *(?:Function|Name): .*\n)* *Result: False\n"
            r" *Comment: (?P<comment>.*(?:\n {14}.*)*)",
            re.MULTILINE,
        ),
        _salt,
    ),
    ToolError(
        "salt",
        re.compile(r"^\[ERROR +\] stderr: (?P<error>\S.*)$", re.MULTILINE),
        lambda match: match["error"],
    ),
    # The line before it only announces an exception, whose text follows the traceback.
    ToolError(
        "salt",
        re.compile(
            r"^\[CRITICAL *\] (?P<error>Rendering SLS \S.*(?:\n(?![-{\[]|\s*$).+)*)", re.MULTILINE
        ),
        lambda match: match["error"],
    ),
    ToolError(
        "salt",
        re.compile(
            r"^\[(?:ERROR|CRITICAL) *\] (?!Rendering exception occurred)(?P<error>\S.*)$",
            re.MULTILINE,
        ),
        lambda match: match["error"],
    ),
    # Facter reports files of the host that it may not read in the same form, and goes on.
    ToolError("puppet", re.compile(r"^Error: (?!Facter: ).*$", re.MULTILINE)),
    ToolError("compose", re.compile(r"^ERROR: (?!Encountered errors).*$", re.MULTILINE)),
    ToolError("docker", re.compile(r"^(?:docker: )?Error response from daemon: .*$", re.MULTILINE)),
    ToolError(
        "chef",
        re.compile(
            r"^(?:\[[^\]\n]*\] )?FATAL: (?!Stacktrace dumped|Please provide|-+$"
            r"|Chef::Exceptions::ChildConvergeError).*\S.*$",
            re.MULTILINE,
        ),
    ),
    _PYTHON,
)


def last_exception(text: str) -> str:
    """Return the line with the exception in the last traceback, "" when there is none."""
    matches = list(_PYTHON.pattern.finditer(text))
    return _PYTHON.quote(matches[-1]) if matches else ""


def error_in(*texts: str) -> str:
    """Return the line with the error of a failed tool, "" when there is no output.

    Output of no known tool is taken for a shell script's: its last line, without those of
    ``set -x``, and the first line with an error, where the script went on after that.

    :param texts: its stderr and stdout; the first with an error is quoted.
    """
    errors = (each.find(text) for text in texts for each in TOOL_ERRORS)
    last = (_of_script(text) for text in texts)
    quoted = " ".join(next(filter(None, (*errors, *last)), "").split())
    return quoted if len(quoted) <= LIMIT else f"{quoted[: LIMIT // 2]} ... {quoted[-LIMIT // 2 :]}"


#: Matches an error of a shell, of apt, or in the form common among other programs.
_SCRIPT_ERROR = re.compile(
    r": (?:command )?not found$|: No such file or directory$|: Permission denied$"
    r"|: the program \"[^\"]+\" is not on this machine$"
    r"|^(?:E|[Ee]rror|ERROR|[Ff]atal|FATAL): |: (?:error|fatal): |: cannot "
)


def _of_script(text: str) -> str:
    last = _last_line(text)
    first = next((line for line in _output(text) if _SCRIPT_ERROR.search(line)), last)
    return last if first == last else f"{first} ... {last}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    # A command that fails silently is the last that was traced.
    return (_output(text) or lines or [""])[-1]


def _output(text: str) -> list[str]:
    """Return the lines that contain a word, without those of ``set -x``."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    return [line for line in lines if not re.match(r"\++ ", line)]
