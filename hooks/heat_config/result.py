"""A hook's answer: read defensively, and cut to the size that a signal may have."""

from __future__ import annotations

import re

from . import files, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answer = dict[str, Any]

STDOUT = "deploy_stdout"
STDERR = "deploy_stderr"
STATUS = "deploy_status_code"

#: Bytes of a hook's stdout that are parsed.
ANSWER_LIMIT = 64 << 20

#: Bytes at the end of a text that are searched for an answer.
STRAY_LIMIT = 1 << 20

#: The largest number that can be a program's status, on any system.
LARGEST_STATUS = (1 << 63) - 1

#: Bytes of each captured stream that go into a result that the runner makes.
TEXT_LIMIT = 4 << 20


#: The form of files.left_out_mark(), in texts that were cut before they became a result.
_MARK = re.compile(
    r"\n\[\.\.\. ([0-9]{1,15}) bytes are left out here(?:; ([^\n]{1,400}))? \.\.\.\]\n"
)


def failure(sentence: str, *, status: int = 1, stdout: str = "", stderr: str = "") -> Answer:
    """Return a failed result whose stderr ends with *sentence*."""
    if stderr and not stderr.endswith("\n"):
        stderr += "\n"
    return {STDOUT: stdout, STDERR: stderr + sentence + "\n", STATUS: status}


def success() -> Answer:
    """Return the result of a deployment that needed no program."""
    return {STDOUT: "", STDERR: "", STATUS: 0}


def is_complete(data: bytes) -> bool:
    """Return whether *data*, a hook's stdout, is a whole answer, so that the hook had finished."""
    if len(data) > ANSWER_LIMIT:
        return False
    try:
        answer = values.decode(data)
    except ValueError:
        return False
    return isinstance(answer, dict) and STATUS in answer


def read_answer(
    data: bytes,
    stderr: bytes,
    exit_status: int | None,
    hook: str,
    outputs: list[str],
    *,
    hint: str = "",
) -> Answer:
    """Return the result that a hook's output gives.

    data, stderr: its streams, in bytes. exit_status: None when it is not known.
    hook: its name, for messages. outputs: the declared output names; other keys are dropped.
    hint: a clause about the hook's file that explains why it failed without an answer.

    Kept from heat-agents: text that is not JSON is the deployment's stdout, with the exit status
    as its status. Not kept: an answer without a status, no answer at all, and an answer with a
    non-zero exit status count as failed.
    """
    stderr_text = stderr.decode("utf-8", "replace")
    if len(data) > ANSWER_LIMIT:
        return failure(
            f'The hook "{hook}" answered with more than {ANSWER_LIMIT >> 20} MiB; nothing of it is '
            "kept.",
            stderr=stderr_text,
        )
    if not data.strip():
        return failure(
            f'The hook "{hook}" gave no answer{_ended(exit_status)}{hint and "; "}{hint}.',
            status=exit_status or 1,
            stderr=stderr_text,
        )
    try:
        answer = values.decode(data)
        if isinstance(answer, dict):
            return _checked(answer, stderr_text, exit_status, hook, outputs)
    except values.NestedTooDeeply:
        return failure(
            f'The hook "{hook}" answered with a list or map that is nested too deeply.',
            status=exit_status or 1,
            stderr=stderr_text,
        )
    except ValueError:
        text = data.decode("utf-8", "replace")
        if exit_status is None:
            return failure(
                f'The hook "{hook}" ended unobserved, and its answer is incomplete.',
                stdout=text,
                stderr=stderr_text,
            )
        if exit_status and hint:
            sentence = f'The hook "{hook}" failed{_ended(exit_status)}; {hint}.'
            return failure(sentence, status=exit_status, stdout=text, stderr=stderr_text)
        return {STDOUT: text, STDERR: stderr_text, STATUS: exit_status}
    return failure(
        f'The hook "{hook}" answered with JSON that is not an object.',
        status=exit_status or 1,
        stderr=stderr_text,
    )


def stray(data: bytes, hook: str) -> str | None:
    """Return a sentence when *data*, a hook's stdout, is text with an answer in it; else None.

    heat-agents take that as text too and ignore its status: a failure becomes a success.
    """
    text = data[-STRAY_LIMIT:].decode("utf-8", "replace")
    # The first and the last place where an object can begin on a line of its own.
    for start in {text.find("\n{"), text.rfind("\n{")} - {-1}:
        try:
            answer = values.decode(text[start:])
        except ValueError:
            continue
        if isinstance(answer, dict) and (STATUS in answer or STDOUT in answer):
            return (
                f'The hook "{hook}" printed something before its JSON answer, so all of it was '
                "taken as text, and the status in it was ignored. Print nothing else to stdout."
            )
    return None


def _checked(
    answer: dict[str, Any], stderr_text: str, exit_status: int | None, hook: str, outputs: list[str]
) -> Answer:
    # Only declared outputs: Heat ignores the others, and they count towards the size of a signal.
    result = {name: _tidy(answer[name]) for name in outputs if name in answer}
    result[STDOUT] = values.text(answer.get(STDOUT))
    result[STDERR] = values.text(answer.get(STDERR))
    status = _status(answer.get(STATUS))
    if status is None:
        problem = "answered without a usable deploy_status_code"
        if STATUS not in answer:
            problem = f"answered without a deploy_status_code{_ended(exit_status)}"
        result[STATUS] = exit_status or 1
    elif exit_status and not status:
        # A failed program wins over an answer that says 0; heat-agents ignore the exit status.
        problem = f"answered with status 0, but{_ended(exit_status)}".replace("but and", "but")
        result[STATUS] = exit_status
    else:
        result[STATUS] = status
        return result
    result.update(
        failure(
            f'The hook "{hook}" {problem}.',
            status=result[STATUS],
            stdout=result[STDOUT],
            stderr=result[STDERR] or stderr_text,
        )
    )
    return result


def _ended(exit_status: int | None) -> str:
    if exit_status is None:
        return ""
    if exit_status > 128:
        return f" and was ended by signal {exit_status - 128}"
    return f" and ended with exit status {exit_status}"


def _status(value: object) -> int | None:
    """Return a status code as Heat sees it (0 or not), None for anything else."""
    # Bounded before int(), which takes quadratic time for long text.
    if isinstance(value, str) and len(value) <= len(str(-LARGEST_STATUS)):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, (int, float)) and abs(value) <= LARGEST_STATUS:
        # 0.5 is not 0, so it is a failure for Heat and must not become a success.
        return int(value) or (1 if value else 0)
    return None


def _tidy(value: Any) -> Any:
    """Return an output without lone surrogates, which JSON carries and Heat's database does not."""
    if isinstance(value, str):
        return values.clean(value)
    if isinstance(value, (dict, list)):
        return values.decode(values.clean(values.encode(value, ascii_only=False)))
    return value


def text_of(descriptor: int, start: int = 0) -> str:
    """Return the text of an open capture from offset *start*, its middle cut if huge."""
    return files.read_part(descriptor, start, TEXT_LIMIT).decode("utf-8", "replace")


def earlier_cut(value: object) -> tuple[bool, str | None]:
    """Return (whether *value* was cut before it became a result, the place that its mark names)."""
    mark = _MARK.search(value) if isinstance(value, str) else None
    return mark is not None, mark.group(2) if mark else None


def trim(answer: Answer, limit: int, where: Callable[[str], str]) -> bytes:
    """Return *answer* as JSON bytes of at most *limit*, with a mark in each field that was cut.

    The size that counts is the encoded one: Heat limits the request. All fields share the room:
    the longest are cut first, and to the same length. ``where(field)`` names the place of the
    whole.
    """
    data = values.encode(answer).encode("ascii")
    if len(data) <= limit:
        return data
    # Only the status must arrive whole.
    fields = {
        name: value if isinstance(value, str) else values.encode(value)
        for name, value in answer.items()
        if name != STATUS
    }
    sizes = {name: _size(value) for name, value in fields.items()}
    fixed = len(data) - sum(
        sizes[name] if isinstance(answer[name], str) else len(fields[name]) for name in fields
    )
    share = _share(list(sizes.values()), limit - fixed - 8 * len(fields))
    trimmed = dict(answer)
    for name, value in fields.items():
        if sizes[name] > share:
            trimmed[name] = _cut(value, share, where(name))
    data = values.encode(trimmed).encode("ascii")
    if len(data) <= limit:
        return data
    # Marks alone exceed the limit when there are thousands of outputs.
    return values.encode(
        failure(
            f"The result is too large to be signalled: {len(answer)} fields. {where(STDERR)}",
            status=answer.get(STATUS) or 1,
        )
    ).encode("ascii")


def shorten(answer: Answer, limit: int) -> Answer:
    """Return *answer* cut to *limit* bytes of JSON, for a disk without room for more."""
    shortened: Answer = values.decode(trim(answer, limit, lambda _field: "the disk was full"))
    return shortened


def _share(sizes: list[int], room: int) -> int:
    """Return the size that each may have so that together they fit *room*."""
    sizes = sorted(sizes)
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return max(share, 0)
        room -= size
    return max(sizes, default=0)


def _size(value: str) -> int:
    # Without the two quotation marks.
    return len(values.encode(value)) - 2


def _cut(value: str, room: int, where: str) -> str:
    """Keep a quarter of *room* from the start of *value* and the rest from its end."""
    # The mark of an earlier cut is in the middle, too.
    before = sum(int(mark.group(1)) for mark in _MARK.finditer(value))
    and_bytes = f" and {before} bytes" if before else ""

    def mark(count: int) -> str:
        counts = f"{count} of {len(value)} characters{and_bytes}"
        return f"\n[... {counts} are left out here; {where} ...]\n"

    # The mark grows with its numbers: assume the largest, so that the result is never too long.
    longest = _size(mark(len(value)))
    if room <= longest:
        return ""
    room -= longest
    head = _fitting(value, room // 4, 1)
    tail = _fitting(value, room - room // 4, -1)
    left_out = len(value) - head - tail
    return value[:head] + mark(left_out) + (value[len(value) - tail :] if tail else "")


def _fitting(value: str, room: int, side: int) -> int:
    """Return how many characters from the start (1) or end (-1) of *value* fit *room* encoded."""
    # A binary search: a character takes one byte to twelve in JSON ("\ud83d\ude00").
    low, high = 0, min(len(value), room)
    while low < high:
        middle = (low + high + 1) // 2
        part = value[:middle] if side > 0 else value[len(value) - middle :]
        if _size(part) <= room:
            low = middle
        else:
            high = middle - 1
    return low
