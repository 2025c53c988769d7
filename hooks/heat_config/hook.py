"""Library of all hooks: the deployment on stdin, files, running a tool, the answer on stdout.

A hook is short::

    import os, sys
    sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
    from heat_config import hook

    @hook.main
    def main(deployment):
        result = hook.run(["true"], env=deployment.environment())
        return hook.Response(result.stdout, result.stderr, result.status)

The contract is that of heat-agents: one JSON object in, one JSON object out, exit status 0 when
there is an answer, even if the tool failed. Nothing here puts an input's or an output's value into
a log or a message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from . import capture, files, process, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

#: Bytes of a tool's output that go into the answer; the whole stays in the deployment's log.
CAPTURE_LIMIT = 4 << 20

#: Bytes of one output file that go into the answer.
OUTPUT_LIMIT = 2 << 20

# The runner's list of deployments has the same limit (deployments.LIMIT).
STDIN_LIMIT = 64 << 20


class HookError(Exception):
    """A failure, as a sentence for the reader of the stack; it never contains a value."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


class Deployment:
    """One deployment as the runner hands it to a hook.

    id, name, group, action, creation_time, server_id: strings, "" when absent.
    config: the template's, of any JSON type. options: a dict, also when Heat sends null.
    inputs: {name: value of any JSON type}, the derived ``deploy_*`` ones included.
    outputs: the declared output names that may be part of a file name.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.id = _string(document.get("id"))
        self.name = _string(document.get("name"))
        self.group = _string(document.get("group"))
        self.creation_time = _string(document.get("creation_time"))
        self.config = document.get("config")
        options = document.get("options")
        self.options = options if isinstance(options, dict) else {}
        self.inputs = values.named_values(document.get("inputs"))
        self.outputs = values.output_names(document.get("outputs"))
        self.action = _string(self.inputs.get("deploy_action"))
        self.server_id = _string(self.inputs.get("deploy_server_id"))

    @property
    def user_inputs(self) -> dict[str, Any]:
        """The inputs without Heat's own ``deploy_*``, which may hold credentials."""
        return {n: v for n, v in self.inputs.items() if not n.startswith("deploy_")}

    def environment(self) -> dict[str, str]:
        """Return the inputs as environment variables: text as it is, null empty, the rest JSON.

        Raises HookError, naming the input, for one that no environment can carry.
        """
        variables = {}
        for name, value in self.inputs.items():
            string = values.text(value)
            # os.execve would refuse the whole environment, without naming the input.
            if not name or "=" in name or "\0" in name or "\0" in string:
                raise HookError(
                    f"The input {values.encode(values.clean(name))} cannot be an environment "
                    "variable: a NUL byte or an equals sign in its name, or a NUL byte in its "
                    "value. Take it out, or encode it, for instance as base64."
                )
            variables[values.clean(name)] = string
        return variables


class Result:
    """How a program ended: status (127 when it could not be started), stdout and stderr as text."""

    def __init__(self, status: int, stdout: str, stderr: str) -> None:
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class Response:
    """A hook's answer: the three values that Heat always has, and declared outputs by name."""

    def __init__(
        self,
        stdout: str = "",
        stderr: str = "",
        status: int = 0,
        outputs: dict[str, Any] | None = None,
    ) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.status = status
        self.outputs = outputs or {}


class Workspace:
    """A private directory (0700) in which each deployment has its own names."""

    def __init__(self, directory: str, deployment: Deployment) -> None:
        self.directory = directory
        self._deployment = deployment

    def path(self, suffix: str = "") -> str:
        """Return ``<directory>/<id><suffix>``."""
        return os.path.join(self.directory, self._deployment.id + suffix)


def read() -> Deployment:
    """Return the Deployment on stdin; for anything else answer with a failure, and end the hook."""
    data = sys.stdin.buffer.read(STDIN_LIMIT + 1)
    if len(data) > STDIN_LIMIT:
        fail(f"The deployment is larger than {STDIN_LIMIT >> 20} MiB.")
    try:
        document = values.decode(data)
    except ValueError:
        fail("The hook was given something on stdin that is not JSON.")
    if not isinstance(document, dict):
        fail("The hook was given JSON on stdin that is not an object.")
    # heat-agents' <id>.json holds the whole deployment and may be passed by hand; ours may not.
    if "heat_config" in document and "config" not in document:
        fail(
            "The hook was given the runner's record of a deployment, which holds no config and no "
            'inputs. "heat-config rerun ID" runs the deployment once more.'
        )
    # The id becomes part of file names that root writes.
    if not values.is_plain_id(document.get("id")):
        fail("The deployment's id is not a plain name of letters, digits, - and _.")
    return Deployment(document)


def workspace(deployment: Deployment, *, env: str, default: str) -> Workspace:
    """Return the Workspace named by the environment variable *env*, else by the path *default*."""
    directory = os.environ.get(env) or default
    try:
        files.make_directory(directory)
    except OSError as error:
        raise HookError(
            f'The working directory "{directory}" cannot be made: {error.strerror}.'
        ) from None
    return Workspace(directory, deployment)


def write_file(path: str, data: str | bytes, mode: int = files.PRIVATE_FILE) -> None:
    """Put *data* at *path*, whole or not at all, with *mode*. Raises HookError with a sentence."""
    try:
        files.write_whole(path, data, mode)
    except OSError as error:
        raise HookError(f'"{path}" cannot be written: {error.strerror}.') from None


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    input: str | bytes | None = None,
    quiet: bool = False,
    timeout: float | None = None,
) -> Result:
    """Run a program to its end and return its Result; never raises for what the program does.

    argv: the program and its arguments. env: its whole environment, by default the hook's own.
    cwd: where it runs. input: text or bytes for its stdin, by default nothing.
    quiet: keep its output out of the deployment's log (for questions such as ``--version``).
    timeout: seconds, by default none: the runner has one for the whole hook.

    Output is read by a process of its own: a child that stays in the background blocks nothing,
    and output printed before the tool, or the hook, was killed is in the deployment's log. Very
    long output loses its middle, with a mark.
    """
    words = [os.fspath(item) for item in argv]
    environment = dict(os.environ if env is None else env)
    with contextlib.ExitStack() as stack:
        stdin = _input(input, stack)
        output = _Output(stack, quiet)
        try:
            # In the hook's own process group, so that the runner ends the tool together with the
            # hook.
            pid = process.spawn(
                words,
                env=environment,
                stdin=stdin,
                stdout=output.stdout,
                stderr=output.stderr,
                cwd=cwd,
            )
        except FileNotFoundError as error:
            return Result(process.NOT_FOUND, "", _not_found(words[0], cwd, error))
        except OSError as error:
            return Result(process.NOT_RUNNABLE, "", _not_runnable(words[0], error))
        except ValueError:
            sentence = f'"{words[0]}" cannot be run: an argument holds a NUL byte.\n'
            return Result(process.NOT_RUNNABLE, "", sentence)
        output.started()
        status = process.wait(pid, timeout)
        late = ""
        if status is None:
            status = process.TIMED_OUT
            late = f'"{words[0]}" was stopped: it took longer than {timeout:g} seconds.\n'
            _stop(pid)
        stdout, stderr = output.read()
        return Result(status, stdout, stderr + late)


class _Output:
    """The destinations of a tool's output: memory, and the deployment's log unless *quiet*.

    A quiet tool answers a question; its output needs no bounds and no log, and goes straight to
    memory. The runner names the log in HEAT_CONFIG_CAPTURE.
    """

    def __init__(self, stack: contextlib.ExitStack, quiet: bool) -> None:
        self._kept = [capture.memory(CAPTURE_LIMIT) for _ in range(2)]
        self._streams: list[capture.Stream] = []
        self._pump: capture.Pump | None = None
        self.stdout, self.stderr = (kept.descriptor for kept in self._kept)
        if quiet:
            for kept in self._kept:
                stack.callback(os.close, kept.descriptor)
            return
        for number, stream in enumerate(("stdout", "stderr")):
            made = capture.Stream(self._kept[number], *_log(stream))
            stack.callback(made.close)
            self._streams.append(made)
        self._pump = capture.Pump(self._streams)
        stack.callback(self._pump.close)
        self._pump.stand_apart()
        self.stdout, self.stderr = (stream.writer for stream in self._streams)

    def started(self) -> None:
        """Close our copies of the pipes' ends that the tool now has."""
        for stream in self._streams:
            stream.close_writer()

    def read(self) -> list[str]:
        """Return (stdout, stderr) of a tool that has ended, as text."""
        if self._pump is not None:
            self._pump.settle()
        return [kept.read(CAPTURE_LIMIT).decode("utf-8", "replace") for kept in self._kept]


def _log(stream: str) -> list[capture.Kept]:
    """Return the sinks beside memory: the deployment's capture of *stream*, under a runner."""
    prefix = os.environ.get("HEAT_CONFIG_CAPTURE")
    # Without a runner, for instance when a person tries the hook by hand.
    if not prefix:
        return []
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(f"{prefix}.{stream}", flags, files.PRIVATE_FILE)
    except OSError as error:
        log(f"the tool's output is not logged: {error.strerror}")
        return []
    return [capture.on_disk(descriptor)]


def file_outputs(deployment: Deployment, outputs_dir: str) -> dict[str, str]:
    """Return {name: content} of the declared outputs in files ``<outputs_dir>/<id>.<name>``.

    An absent file has no key: for Heat an ``error_output`` that is present means failure.
    A link is followed, as in heat-agents: a script made it, and may read anything as root anyway.
    Bytes that are not UTF-8 are replaced; a very long file loses its middle, with a mark.
    """
    contents = {}
    for name in deployment.outputs:
        path = os.path.join(outputs_dir, f"{deployment.id}.{name}")
        where = "the whole is on the server in " + path
        data = files.read_bounded(path, OUTPUT_LIMIT, follow=True, where=where)
        if data is not None:
            contents[name] = data.decode("utf-8", "replace")
    return contents


def respond(
    *, stdout: str = "", stderr: str = "", status: int = 0, outputs: dict[str, Any] | None = None
) -> NoReturn:
    """Print the answer, the one JSON object, and end the hook with exit status 0."""
    answer = dict(outputs or {})
    answer["deploy_stdout"] = stdout
    answer["deploy_stderr"] = stderr
    answer["deploy_status_code"] = status
    data = (values.encode(answer) + "\n").encode("ascii")
    # Earlier prints of the script come first. The answer is ASCII, so no locale matters.
    sys.stdout.flush()
    files.write_all(sys.stdout.fileno(), data)
    sys.exit(0)


def fail(sentence: str, status: int = 1) -> NoReturn:
    """Answer that the deployment failed, with *sentence* as its stderr, and end the hook."""
    respond(stderr=sentence + "\n", status=status)


def log(message: str) -> None:
    """Write a line to the deployment's log. Never pass an input's or an output's value."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def main(function: Callable[[Deployment], Response]) -> Callable[[Deployment], Response]:
    """Run ``function(deployment) -> Response`` as the hook; use as a decorator.

    HookError becomes a failed answer with its sentence; any other exception becomes one that
    names its type and place, but not its message, which may quote an input. SIGTERM, with which
    the runner stops a hook that takes too long, ends it like an exit: ``finally`` is run.
    """
    module = sys.modules.get(function.__module__)
    # The file was imported, not run: its function is returned to the importer.
    if module is not None and module.__name__ != "__main__":
        return function
    # Set before the input is read: the runner may stop the hook at any time.
    signal.signal(signal.SIGTERM, _terminated)
    deployment = read()
    try:
        response = function(deployment)
    except HookError as error:
        return fail(error.sentence, error.status)
    except Exception as error:
        return fail(_unexpected(error))
    return respond(
        stdout=response.stdout,
        stderr=response.stderr,
        status=response.status,
        outputs=response.outputs,
    )


def _terminated(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    sys.exit(128 + number)


def _unexpected(error: Exception) -> str:
    trace = error.__traceback__
    # The innermost frame is where the exception was raised.
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        name = os.path.basename(trace.tb_frame.f_code.co_filename)
        place = f" at {name} line {trace.tb_lineno}"
    detail = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return f"The hook failed unexpectedly: {type(error).__name__}{detail}{place}."


def _string(value: object) -> str:
    return values.clean(value) if isinstance(value, str) else ""


def _not_found(program: str, cwd: str | None, error: OSError) -> str:
    if cwd is not None and not os.path.isdir(cwd):
        return f'The directory "{cwd}" does not exist, so "{program}" cannot run in it.\n'
    # The program is there, so exec has missed its interpreter or loader.
    if os.path.exists(program):
        return _not_runnable(program, error)
    return f'"{program}" was not found: it is not installed, or not on PATH.\n'


def _not_runnable(program: str, error: OSError) -> str:
    return f'"{program}" cannot be run: {process.why_not(program, error)}.\n'


def _input(data: str | bytes | None, stack: contextlib.ExitStack) -> int:
    if data is None:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    else:
        # Not a pipe: no process has to feed it, and a tool that does not read it blocks nothing.
        descriptor = os.memfd_create("stdin")
        files.write_all(
            descriptor, data.encode("utf-8", "replace") if isinstance(data, str) else data
        )
        os.lseek(descriptor, 0, os.SEEK_SET)
    stack.callback(os.close, descriptor)
    return descriptor


def _stop(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if process.wait(pid, 5) is not None:
            return
