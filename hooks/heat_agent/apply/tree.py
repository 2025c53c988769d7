"""A tree of templates, and the files rendered from one document."""

from __future__ import annotations

import os
import stat

from heat_config import files

from . import control, executable, mustache, writing
from .errors import ApplyError

CONTROL_SUFFIX = ".oac"
#: Maximum bytes of a template.
TEMPLATE_LIMIT = 64 << 20

PARTIAL_SUFFIX = ".mustache"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Log = Callable[[str, str], None]


def install(
    document: dict[str, Any],
    templates: str,
    output: str = "/",
    *,
    log: Log,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Render all templates below *templates*, then put the files in their places below *output*.

    The only programs started are templates that are programs themselves; they have *environment*,
    by default that of this process, and those in plain Python run in forks. *log* is called with a
    level ("INFO") and a line for each file. Raises ApplyError; when a template cannot be rendered,
    or a file cannot be written, all files are as before.
    """
    writing.write(render(document, templates, environment=environment), output, log)


def render(
    document: dict[str, Any],
    templates: str,
    *,
    environment: Mapping[str, str] | None = None,
) -> list[writing.File]:
    """Return the files rendered from the templates below *templates* and *document*, by name.

    Raises ApplyError for the first invalid template or control file.
    """
    if environment is None:
        environment = os.environ
    rendered = []
    for name in names(templates):
        path = os.path.join(templates, name)
        text = render_one(path, document, environment)
        try:
            body = text.encode("utf-8")
        except UnicodeEncodeError:
            raise ApplyError(f"a value for {path} holds half a character") from None
        rendered.append(writing.File(name, body, read_control(path + CONTROL_SUFFIX)))
    return rendered


def names(root: str) -> list[str]:
    """Return the paths of all templates below *root*, relative to it, sorted.

    Links to files are templates; links to directories are not followed.
    """
    paths = []
    for folder, folders, here in os.walk(root):
        # In place: os.walk() descends in this order.
        folders.sort()
        relative = os.path.relpath(folder, root)
        paths += [
            os.path.normpath(os.path.join(relative, name))
            for name in sorted(here)
            if not name.endswith(CONTROL_SUFFIX)
        ]
    return paths


def render_one(path: str, document: dict[str, Any], environment: Mapping[str, str]) -> str:
    """Return the text that the template at *path* gives for *document*. Raises ApplyError."""
    if executable.is_executable(path):
        return executable.run(path, document, environment)
    # As a file opened in text mode, which is how upstream reads templates.
    text = _read(path).replace("\r\n", "\n").replace("\r", "\n")
    try:
        return mustache.render(text, document, _partial)
    except RecursionError:
        raise ApplyError(
            f"could not render moustache template {path}: it, or its metadata, has no end"
        ) from None
    except (ValueError, OSError) as error:
        raise ApplyError(f"could not render moustache template {path}: {error}") from None


def _partial(name: str) -> str:
    """Return the text of NAME.mustache in the working directory, as pystache finds it."""
    path = os.path.join(os.curdir, name + PARTIAL_SUFFIX)
    return _read(path) if os.path.exists(path) else ""


def read_control(path: str) -> control.Control:
    """Return the Control of the control file at *path*, if it exists. Raises ApplyError."""
    try:
        return control.Control(control.parse(_read(path) if os.path.isfile(path) else ""))
    except ApplyError as error:
        raise ApplyError(f"{path}: {error}") from None


def _read(path: str) -> str:
    try:
        # Without this, opening a pipe without a writer would block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ApplyError(f"{path} is not a file")
            data = files.read_range(descriptor, 0, TEMPLATE_LIMIT + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ApplyError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > TEMPLATE_LIMIT:
        raise ApplyError(f"{path} is larger than {TEMPLATE_LIMIT} bytes")
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        raise ApplyError(f"{path} is not UTF-8") from None
