"""diskimage-builder's own dib-lint, run as a process, and what it prints, read.

Its messages are those of diskimage-builder 3.43.  It looks for text, not for what the text means:
where a look at the file shows that a message is wrong ("which" in prose, ``set -euo pipefail``, an
environment file that is told to set options of the shell that reads it), there is no finding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from hotplate.lint.collection import KNOWN_DIRECTORIES, TEXT_LIMIT, Collection
from hotplate.lint.finding import LintFinding, NotRun
from hotplate.lint.programs import LintOutput, Programs

COMMAND = r"(?:^|[;&|(`!]|\b(?:if|then|do|else|while|until|exec|command|eval)\s)\s*"
"""What stands before the name of a command."""


@dataclass(frozen=True)
class DibRule:
    """A message of dib-lint.

    :param word: of the rule; where dib-lint can be switched off for a file, by this word.
    :param message: a regular expression with the file as its group.
    :param reason: a sentence.
    :param mend: what to do about it.
    :param at: a regular expression for the lines that it is about; without such a line the message
        is wrong.
    :param unless: a regular expression; with such a line the message is wrong.
    :param programs: True when it is only about programs.
    :param each: False when the first of its lines is enough.
    """

    word: str
    message: str
    reason: str
    mend: str
    at: str = ""
    unless: str = ""
    programs: bool = False
    each: bool = True

    def lines(self, text: str) -> list[int | None]:
        """Return the lines that the message is about; [None] for the whole file."""
        lines = text.splitlines()
        if self.unless and any(re.search(self.unless, line) for line in lines):
            return []
        if self.programs and not text.startswith("#!"):
            return []
        if not self.at:
            return [None]
        numbers = [number for number, line in enumerate(lines, 1) if re.search(self.at, line)]
        return [*numbers] if self.each else [*numbers[:1]]


RULES = (
    DibRule(
        "source-repository",
        r"(.+) does not end with a newline",
        "the last line does not end, so it is not read",
        "end the file with a line feed",
    ),
    DibRule("executable", r"(.+) is not executable", "this is not executable", "chmod 0755 it"),
    DibRule(
        "indent",
        r"(.+) should use 4 spaces indent",
        "this line, and perhaps more, is not indented by 4 spaces or a multiple of them",
        "indent by 4 spaces",
        at=r"^( {4})* {1,3}[^ ]",
        each=False,
    ),
    DibRule(
        "order",
        r"(.+) is not sorted alphabetically",
        "the names are not sorted",
        "sort the lines",
    ),
    DibRule(
        "interpreter",
        r"(.+) : only use #!/bin/bash for scripts",
        "bash is named in another way than #!/bin/bash",
        "begin the file with #!/bin/bash",
        at=r"^#!",
        each=False,
    ),
    DibRule(
        "sete",
        r"(.+) is not set -e",
        "a command that fails does not end the script",
        "set -eu",
        unless=r"^#!.*\s-\w*e|^\s*set\b.*errexit",
    ),
    DibRule(
        "setu",
        r"(.+) is not set -u",
        "a misspelt variable does not end the script",
        "set -eu",
        unless=r"^#!.*\s-\w*u|^\s*set\b.*nounset",
    ),
    DibRule(
        "setpipefail",
        r"(.+) is not set -o pipefail",
        "a command that fails inside of a pipe does not end the script",
        "set -o pipefail",
        unless=r"^\s*set\b.*pipefail",
    ),
    DibRule(
        "dibdebugtrace",
        r"(.+) does not follow DIB_DEBUG_TRACE",
        "disk-image-create -x does not trace this",
        'if [ "${DIB_DEBUG_TRACE:-1}" -gt 0 ]; then set -x; fi',
    ),
    DibRule(
        "environment-trace",
        r"Environment file (.+) should not set tracing",
        "this traces what reads it",
        "remove set -x",
        at=r"^[^#]*set -x",
    ),
    DibRule(
        "environment-mode",
        r"Environment file (.+) should not be marked as executable",
        "this is read, not run, and is executable",
        "chmod 0644 it",
    ),
    DibRule(
        "export",
        r"Split export and assignments in (.+)",
        "export hides that the command fails whose output it takes",
        "assign in one line, export in the next",
        at=r"^[^#]*\bexport .*\$\((?!\()",
    ),
    DibRule(
        "safe_sudo",
        r"(.+) : potentially unsafe sudo",
        "sudo outside of the chroot, on what is perhaps not in the image",
        "name the path below $TARGET_ROOT, or end the line with # dib-lint: safe_sudo",
        at=rf"^(?!.*(?:dib-lint: safe_sudo|install-packages|TARGET_ROOT|IMAGE_BLOCK_DEVICE"
        rf"|TMP_MOUNT_PATH|TMP_IMAGE_PATH)).*?{COMMAND}sudo\s",
        programs=True,
    ),
    DibRule(
        "which",
        r"(.+) : potential use of which",
        "which is no builtin, and not in every system",
        "command -v, or type -P",
        at=rf"^(?!\s*#)(?!.*dib-lint: which).*?{COMMAND}which\s",
        programs=True,
    ),
    DibRule(
        "tabindent",
        r"(.+) contains tab characters",
        "this line, and perhaps more, is indented by a tab",
        "indent by spaces",
        at=r"^ *\t",
        each=False,
    ),
    DibRule(
        "newline",
        r"No newline at end of file: (.+)",
        "the last line does not end",
        "end the file with a line feed",
    ),
    DibRule(
        "mddocs",
        r"(?:\.md docs found: )?(.+\.md)",
        "diskimage-builder's documentation takes README.rst only",
        "write it in reStructuredText",
    ),
    DibRule("yaml", r"(.+) is not a valid YAML file", "this is not YAML", "mend its YAML"),
)
"""What dib-lint prints after ``ERROR:``; of several ``.md`` files only the first is there."""

SWITCHES = {
    *("executable", "indent", "sete", "setu", "setpipefail", "dibdebugtrace"),
    *("safe_sudo", "which", "tabindent", "newline", "mddocs"),
}
"""Rules that a comment in the file, or ``[dib-lint] ignore`` in tox.ini, switches off."""

OURS = (r"(.+) lacks a README\.rst", r"(.+) is not a valid JSON file", r"(.+) failed flake8")
"""Messages that are looked into here, or have a better one in the element lint."""

FOR_PROGRAMS = {"executable", "sete", "setu", "setpipefail", "dibdebugtrace"}
"""What dib-lint wants of each file that begins with #!, one that is only read among them."""

BY_BUILD = {*KNOWN_DIRECTORIES, "bin"}
"""Directories whose programs a build runs, with its variables; others are for the guest."""

FLAKE8 = re.compile(r"(?P<file>/.+?):(?P<line>\d+):\d+: (?P<code>[A-Z]+\d+):? (?P<text>.+)")
FLAKE8_OWN = re.compile(r"[EFWC]\d+")
"""The codes of flake8 itself; those of plug-ins that happen to be installed are left out."""


def dib_lint_findings(
    collection: Collection, programs: Programs
) -> tuple[list[LintFinding], list[NotRun]]:
    """Run dib-lint; return what it is right about, and what was not run.

    :raises HostError: when it takes too long.
    """
    program = programs.find("dib-lint")
    if program is None:
        return [], [NotRun("dib-lint", "it is not installed; pip install diskimage-builder")]
    if re.search(r"[\s*?\[]", str(collection.path)):
        reason = f'it cannot take the path "{collection.path}"; use one without blanks'
        return [], [NotRun("dib-lint", reason)]
    reader = _Reader(collection)
    findings = set(_without_page(collection))
    for done in _outputs(collection, programs, program):
        lines = done.stdout.splitlines()
        findings.update(each for line in lines for each in reader.read(line))
        if not (lines and lines[-1] in ("PASS", "*** FAIL: Some tests failed!")):
            findings.update(reader.stopped(done.stderr))
    return list(findings), reader.not_run(flake8=programs.find("flake8") is not None)


def _outputs(collection: Collection, programs: Programs, program: str) -> Iterator[LintOutput]:
    """Run dib-lint on each element by itself, several at once; yield what it wrote, in order.

    It starts a Python for each file.  Where it stops, it stops for one element.
    """
    # Beside the elements it looks into a directory of libraries, of which there is none; and it
    # asks for the "exclusions" of the last file, where an element may have none that it reads.
    settings = {"LIB_DIR": "/dev/null", "exclusions": ""}
    top = _top_of(collection)
    if _is_ignored(collection.path, programs):
        # Neither the git nor the settings of a checkout are about what that checkout ignores;
        # flake8 looks for them upwards.
        settings["GIT_DIR"], top = "/dev/null", Path("/")

    def run(element: Path) -> LintOutput:
        return programs.run([program], cwd=top, ELEMENTS_DIR=str(element), **settings)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(run, each) for each in collection.elements]
        try:
            yield from (each.result() for each in running)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _top_of(collection: Collection) -> Path:
    """Return where dib-lint is run: where the tox.ini and the git of the elements are."""
    for directory in (collection.path, *collection.path.parents):
        if (directory / "tox.ini").is_file() or (directory / ".git").exists():
            return directory
    return collection.path


def _is_ignored(path: Path, programs: Programs) -> bool:
    """Return True when git ignores all of it, a virtual environment in a checkout for instance.

    dib-lint looks at nothing that git ignores.
    """
    git = programs.find("git")
    if git is None:
        return False
    return programs.run([git, "check-ignore", "--quiet", str(path)], cwd=path).status == 0


def _without_page(collection: Collection) -> Iterator[LintFinding]:
    for element in collection.elements:
        if not (element / "README.rst").is_file():
            reason = "the element has no README.rst"
            mend = "write one: what the element does, and its variables"
            yield LintFinding(element, "dib-lint/readme", reason, mend)


class _Reader:
    """Reads dib-lint's lines one by one."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._checking: Path | None = None
        self._styled = False
        self._unreadable: list[str] = []
        self._not_run: list[NotRun] = []

    def read(self, line: str) -> Iterator[LintFinding]:
        """Yield what is wrong according to a line."""
        kind, _, rest = line.partition(" ")
        if line.startswith("Running dib-lint in "):
            self._checking = None
        elif kind == "Checking" and rest.startswith("/"):
            self._checking, self._styled = Path(rest), False
        elif kind == "ERROR:":
            yield from self._error(rest)
        elif line.startswith("/") and line.endswith(".md"):
            yield from self._error(line)
        elif style := FLAKE8.fullmatch(line):
            self._styled = True
            if FLAKE8_OWN.fullmatch(style["code"]):
                mend = f"mend it, or exempt the line: # noqa: {style['code']}"
                rule = f"flake8/{style['code']}"
                yield LintFinding(
                    Path(style["file"]), rule, style["text"], mend, int(style["line"])
                )

    def _error(self, message: str) -> Iterator[LintFinding]:
        if message.endswith(" failed flake8") and not self._styled:
            self._unreadable.append(message.removesuffix(" failed flake8"))
        if any(re.fullmatch(each, message) for each in OURS):
            return
        for rule in RULES:
            match = re.fullmatch(rule.message, message)
            if match:
                yield from self._findings(rule, Path(match[1]))
                return
        yield self._unread(message)

    def _unread(self, message: str) -> LintFinding:
        """Return a message of another version of dib-lint as it is."""
        path = self._checking or self._collection.path
        return LintFinding(path, "dib-lint/other", message, "see the comments in dib-lint")

    def _findings(self, rule: DibRule, file: Path) -> Iterator[LintFinding]:
        if not self._may_be_right(rule, file):
            return
        with file.open("rb") as stream:
            text = stream.read(TEXT_LIMIT).decode("utf-8", "replace")
        if rule.word == "yaml" and _is_yaml(text):
            return
        mend = rule.mend
        if rule.word in SWITCHES:
            mend += f"; or exempt the file: # dib-lint: disable={rule.word}"
        for line in rule.lines(text):
            yield LintFinding(file, f"dib-lint/{rule.word}", rule.reason, mend, line)

    def _may_be_right(self, rule: DibRule, file: Path) -> bool:
        """Return True when a rule makes sense for a file."""
        if "__pycache__" in file.parts or not file.is_file():
            return False
        if rule.word == "mddocs" and file.stem == "README":
            return file.with_suffix(".rst").is_file()  # else it is a finding that there is none
        place = file.relative_to(self._collection.directory).parts[1:-1]
        top = place[0] if place else ""
        if top == "environment.d" and rule.word in FOR_PROGRAMS:
            return False
        return rule.word != "dibdebugtrace" or top in BY_BUILD

    def stopped(self, errors: str) -> Iterator[LintFinding]:
        """Yield where dib-lint ended before it was through, when that can be mended."""
        if self._checking is not None and self._checking.name == "element-deps":
            reason = "dib-lint stops at names that are not sorted, or none, and looks no further"
            mend = "sort the names, or remove a file without any"
            yield LintFinding(self._checking, "dib-lint/stopped", reason, mend)
            return
        last = (errors.strip().splitlines() or ["it says nothing"])[-1]
        place = f' after "{self._checking}"' if self._checking else ""
        self._not_run.append(NotRun("dib-lint", f"it stopped{place}: {last}"))

    def not_run(self, *, flake8: bool) -> list[NotRun]:
        """Return what was not looked at.

        :param flake8: whether it is installed, without which dib-lint looks at no Python.
        """
        if self._unreadable:
            some = f"{len(self._unreadable)} programs in Python"
            reason = "it could not be run" if flake8 else "it is not installed; pip install flake8"
            self._not_run.append(NotRun(f"flake8 on {some}", reason))
        return self._not_run


def _is_yaml(text: str) -> bool:
    """Return True for YAML, of several documents too, which dib-lint takes for none."""
    try:
        return len(list(yaml.compose_all(text, Loader=yaml.SafeLoader))) > 0
    except yaml.YAMLError:
        return False
