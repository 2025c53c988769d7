"""55-heat-config: run each deployment's hook once, and signal each result until it is accepted.

A pass reads the deployments that os-apply-config rendered. Its exit status is 0 when every one of
them has run; 1 when something could not be read or recorded, and the agent should run it again;
75 when another runner is running.

A signal that was not accepted is no reason to run all phases again. It is noted in the state
directory (state.WAITING), and while that note exists the agent has ``heat-config resend --due``
send the signals between its polls.
"""

import contextlib
import errno
import os
import signal
import stat
import sys

from . import delivery, files, process, result, transport, values
from .execution import Execution
from .item import Item
from .journal import Journal
from .leftovers import Leftovers
from .settings import Settings, seconds
from .state import (
    DAMAGED,
    FINISHED,
    MANY,
    RECEIVED,
    SIGNALLED,
    STARTED,
    UNDELIVERABLE,
    Record,
    Store,
)

AGAIN = 1
BUSY = 75
RERUNS = 3
DOCUMENT_LIMIT = 64 << 20
DROPPED = {
    "kubelet": 'the group "script" with "podman kube play", or the group "docker-cmd"',
    "atomic": 'the group "docker-cmd" with podman',
}
"""Groups that heat-agents had a hook for -> what to use instead."""

NO_PROGRAM = ("os-apply-config", "Heat::Ungrouped")
"""Groups whose config is metadata for os-apply-config, which has rendered it by now."""

FULL = (errno.ENOSPC, errno.EDQUOT)
FAILED_PASSES = 5
"""After this many passes in a row without room for a hook, the deployments not started fail."""

EMPTY_FACTOR = 7
"""How much longer state is kept when the metadata has no deployments at all."""


class Pass:
    """One pass over the deployments."""

    def __init__(self, settings):
        self.settings = settings
        self.store = Store(settings.state)
        self.journal = None
        self.failed = False
        self._lacked_room = False
        self.sender = transport.Sender(settings)
        self.leftovers = Leftovers(
            os.environ,
            base=os.path.dirname(os.path.abspath(settings.state)),
            kept=(settings.state, settings.logs),
        )

    def run(self, only=None):
        """Do the pass and return the exit status; *only* is the id of a deployment to run again.

        With *only* the status is 1 also when that deployment failed.
        """
        refused = self._open()
        if refused is not None:
            return refused
        items, readable = self._items()
        self.records = self.store.load()
        self._receive(items)
        if only is not None and not self._again(items, only):
            return AGAIN
        self._isolated(self._resend)
        for item in items.values():
            self._isolated(self._serve, item)
        self._isolated(self._finish_strangers, items)
        self._isolated(self._forget, items, readable)
        self._note_waiting()
        if only is not None:
            self.failed |= self.records[only].mark.get("status") != 0
        return AGAIN if self.failed else 0

    def resend(self, only=None, *, due=False):
        """Send the waiting signals: all of them, *only* one, or with *due* those that are due.

        Returns the exit status, 1 when one still waits.
        """
        refused = self._open()
        if refused is not None:
            return refused
        self.records = self.store.load()
        if only is not None and not self._revive(only):
            return AGAIN
        for record in list(self.records.values()):
            if not due and only in (None, record.key):
                record.mark.pop("signal", None)
        self._isolated(self._resend, only)
        waiting = self._note_waiting()
        if only is not None:
            waiting = self.records[only].state != SIGNALLED
        return AGAIN if self.failed or waiting else 0

    def _open(self):
        """Open and lock the state directory; return an exit status if that fails, else None."""
        try:
            free = self.store.open()
        except OSError as error:
            _say(
                'the state directory "%s" cannot be used: %s'
                % (self.store.directory, error.strerror)
            )
            return AGAIN
        if not free:
            _say("another heat-config is running; nothing was done")
            return BUSY
        self.journal = Journal(self.settings, self.store.directory)
        for problem in self.settings.problems:
            self.journal.say(problem)
        return None

    def _note_waiting(self):
        """Note for the agent whether a signal waits, and return it."""
        waiting = any(record.state == FINISHED for record in self.records.values())
        self.store.note_waiting(waiting)
        return waiting

    def _isolated(self, step, *arguments):
        """Do one step; an unexpected exception in it must not stop the others."""
        try:
            step(*arguments)
        except Exception as error:
            self.journal.say("a step failed unexpectedly: %s" % _place(error))
            self.failed = True

    def _unexpected(self, record, error, effect):
        """Return the failed result of a deployment whose step raised *error*, an exception.

        effect: the rest of the sentence, without a value.
        """
        sentence = "failed unexpectedly (%s), so %s" % (_place(error), effect)
        self.journal.say("the runner %s: %s" % (sentence, record.key))
        return result.failure("The runner %s." % sentence)

    def _items(self):
        """Return ({key: Item} in the order of the list, whether the metadata could be read)."""
        path = self.settings.document
        try:
            with open(path, "rb") as stream:
                data = stream.read(DOCUMENT_LIMIT + 1)
        except OSError as error:
            self.journal.say(
                'the deployments in "%s" cannot be read: %s. os-apply-config writes them; is its '
                "template installed?" % (path, error.strerror)
            )
            self.failed = True
            return {}, False
        if os.stat(path).st_mode & 0o077:
            self._hide(path)
        if not data.strip():
            return {}, False
        try:
            document = values.decode(data) if len(data) <= DOCUMENT_LIMIT else False
        except ValueError:
            document = False
        if document is None:
            return {}, False
        if not isinstance(document, list):
            self.journal.say('"%s" holds no JSON list; nothing new is run' % path)
            self.failed = True
            return {}, False
        items = {}
        for element in document:
            if not isinstance(element, dict):
                self.journal.say("an entry of the deployments is not an object and was ignored")
                continue
            item = Item(element)
            if item.key in items:
                self.journal.say("the id %s occurs twice; the first entry is used" % item.key)
            else:
                items[item.key] = item
        return items, True

    def _hide(self, path):
        """Make the list 0600: it holds credentials, and an old os-apply-config leaves it 0644."""
        try:
            os.chmod(path, files.PRIVATE_FILE)
        except OSError as error:
            self.journal.say('"%s" cannot be made private: %s' % (path, error.strerror))

    def _receive(self, items):
        """Record every new deployment before the first is run."""
        fresh = False
        for item in items.values():
            try:
                fresh |= self._note(item)
            except ValueError:
                item.flatten()
                fresh |= self._note(item)
        if fresh:
            self.store.sync()

    def _note(self, item):
        """Record one deployment of the metadata; return whether it is new."""
        record = self.records.get(item.key)
        if record is None:
            record = Record.new(item.key, item.element)
            record.enter(RECEIVED)
            saved = self._save(record, sync=False)
            self.records[item.key] = record
            self.journal.event("received", record)
            return saved
        if record.state == UNDELIVERABLE:
            self._revive_changed(record, item)
        elif record.state != SIGNALLED:
            record.mark.pop("gone", None)
            record.describe(item.element)
        elif record.mark.get("foreign") and not record.name:
            # A record that heat-agents left holds credentials; ours must not.
            record.describe(item.element)
            record.strip()
            self._save(record)
        elif record.mark.pop("gone", None):
            self._save(record)
        return False

    def _revive_changed(self, record, item):
        """Make an undeliverable signal wait again if its address has changed."""
        gone = record.mark.pop("gone", None)
        unaddressed = transport.kind(item.inputs) is None
        if not unaddressed and delivery.address(item.inputs) != record.mark.get("address"):
            self._wait_again(record, item)
        elif gone:
            self._save(record)

    def _wait_again(self, record, item):
        record.describe(item.element)
        for name in ("address", "reason", "signal"):
            record.mark.pop(name, None)
        record.enter(FINISHED)
        return self._save(record)

    def _revive(self, only):
        """Make an undeliverable signal wait again, on an administrator's request."""
        record = self.records[only]
        if record.state == FINISHED:
            return True
        items, _readable = self._items()
        if record.state != UNDELIVERABLE:
            self.journal.say('"%s" has no waiting signal: it is %s' % (only, record.state))
        elif only not in items:
            self.journal.say(
                '"%s" is not among the deployments in the metadata, so the address of its '
                "signal is not known" % only
            )
        else:
            return self._wait_again(record, items[only])
        return False

    def _save(self, record, sync=True):
        try:
            self.store.save(record, sync=sync)
        except OSError as error:
            self.journal.say("the state of %s cannot be written: %s" % (record.key, error.strerror))
            self.failed = True
            return False
        return True

    def _again(self, items, only):
        """Make *only* run once more, on an administrator's request."""
        if only not in items or self.records[only].state in (RECEIVED, STARTED):
            if only not in items:
                self.journal.say('"%s" is not among the deployments in the metadata' % only)
                return False
            return True
        record = self.records[only]
        record.describe(items[only].element)
        record.mark.pop("foreign", None)
        record.enter(RECEIVED, runs=0)
        return self._save(record)

    def _resend(self, only=None):
        for record in list(self.records.values()):
            if record.state == FINISHED and only in (None, record.key):
                self._isolated(self._deliver, record)

    def _serve(self, item):
        record = self.records[item.key]
        if record.state in (RECEIVED, STARTED, DAMAGED):
            self._finish(record, self._run, item, record)

    def _finish(self, record, run, *arguments):
        """Record and signal the result that *run* returns, if any; an exception is a failure.

        So no exception leaves a deployment neither run again nor signalled.
        """
        try:
            answer = run(*arguments)
        except Exception as error:
            answer = self._unexpected(record, error, "it is not known how far the hook got")
        if answer is None:
            return
        try:
            kept = self._record_result(record, answer)
        except Exception as error:
            answer = self._unexpected(record, error, "the result of the hook cannot be kept")
            kept = self._record_result(record, answer)
        if kept:
            self._deliver(record)

    def _run(self, item, record):
        """Return the result of a deployment, None when it is to be tried again."""
        hook = None
        if record.state == DAMAGED:
            item.refusal = (
                "The record of this deployment on the server is damaged, so it is not known "
                "whether it has run; it is not run now. Check the disk of %s."
                % values.encode(values.clean(self.store.directory))
            )
        if item.refusal is None:
            hook, path, item.refusal = self._find(item)
        if item.refusal is not None:
            self.journal.event("rejected", record, reason=item.refusal)
            return result.failure(item.refusal)
        if hook is None:
            return result.success()
        return self._execute(item, record, hook, path)

    def _find(self, item):
        """Return (hook name, path, refusal); no name and no refusal: there is nothing to run."""
        name = "".join(c for c in item.group if c.isascii() and (c.isalnum() or c in "-_"))
        useless = None
        for directory in self.settings.hooks if name else ():
            path = os.path.join(directory, name)
            try:
                if stat.S_ISREG(os.stat(path).st_mode):
                    if os.access(path, os.X_OK):
                        return name, path, None
                    useless = useless or path
            except OSError:
                continue
        if item.group in NO_PROGRAM:
            return None, None, None
        if useless is not None:
            sentence = 'The hook for the group "%s" at "%s" is not executable: chmod 0755 %s'
            return None, None, sentence % (name, useless, useless)
        return (
            None,
            None,
            (
                "There is no hook for the group %s on this machine; it is looked for in %s. %s"
                % (
                    values.encode(values.clean(item.group)),
                    ", ".join(self.settings.hooks),
                    self._nearly(name) or _instead_of(item.group, name),
                )
            ),
        )

    def _nearly(self, name):
        """Return a sentence about a file whose name is close to the hook *name*, or ""."""
        for directory in self.settings.hooks if name else ():
            with contextlib.suppress(OSError):
                for file in sorted(os.listdir(directory)):
                    path = os.path.join(directory, file)
                    if _plain_name(file) == _plain_name(name) and os.path.isfile(path):
                        return (
                            '"%s" is not its hook, because a hook has the name of the group and '
                            "no ending: mv %s %s" % (path, path, os.path.join(directory, name))
                        )
        return ""

    def _execute(self, item, record, hook, path):
        """Run the hook once; return the result, None when it is to be tried again."""
        limit = seconds(item.options.get("timeout"))
        if limit is None:
            if item.options.get("timeout") is not None:
                self.journal.say(
                    "the option timeout of %s is not a number of seconds and was ignored"
                    % record.key
                )
            limit = self.settings.timeout
        execution = Execution(
            record,
            hook=hook,
            seconds=limit,
            store=self.store,
            journal=self.journal,
            settings=self.settings,
        )
        try:
            if record.state == STARTED and not execution.never_began():
                answer = self._recover(item, record, execution)
                if answer is not None:
                    return answer
                record.mark["runs"] = record.mark.get("runs", 1) + 1
            return self._start(item, record, execution, path)
        except OSError as error:
            return self._without_room(record, execution, error)
        finally:
            execution.close()

    def _without_room(self, record, execution, error):
        """Leave deployments without room to the next pass; the fifth pass fails them."""
        self.failed = True
        if not self._lacked_room:
            self.store.failed_passes(self.store.failed_passes() + 1)
        self._lacked_room = True
        has_begun = record.state == STARTED and not execution.never_began()
        if self.store.failed_passes() < FAILED_PASSES:
            reason = "the end of the hook cannot be read yet: %s"
            if not has_begun:
                reason = "the hook was not started, because its start cannot be recorded: %s"
                if error.errno not in FULL:
                    reason = "the hook was not started, it is tried again: %s"
            self.journal.event("signal-failed", record, reason=reason % error.strerror)
            return None
        sentence = "The hook was started, but its end could not be read at any attempt: %s."
        if not has_begun:
            sentence = "The hook was not started: %s, at every attempt."
            if error.errno in FULL:
                sentence = 'The hook was not started: the disk of "%s" was full at every attempt.'
                return result.failure(sentence % self.store.directory)
        return result.failure(sentence % error.strerror)

    def _start(self, item, record, execution, path):
        self.journal.make_room()
        execution.open()
        before = dict(record.mark)
        record.enter(STARTED, runs=record.mark.get("runs") or 1, boot=process.boot_id())
        try:
            self.store.save(record)
        except OSError:
            record.mark.clear()
            record.mark.update(before)  # it has not begun
            raise
        self._warn_of_age(record)
        self.journal.event("started", record)
        self.leftovers.remove_outputs(record.key)
        try:
            answer = execution.run(path, item.element)
        except OSError:
            if not execution.has_begun:
                record.mark.update(before, state=RECEIVED)
                self._save(record)
            raise
        if not self._lacked_room and 0 < self.store.failed_passes() < MANY:
            self.store.failed_passes(0)
        if execution.was_cut:
            self.leftovers.remove_secrets(record)
        return answer

    def _warn_of_age(self, record):
        url = record.inputs.get("deploy_signal_id")
        if transport.kind(record.inputs) != "CFN_SIGNAL" or not isinstance(url, str):
            return
        age = transport.url_age(url)
        if age is not None and age > transport.AGED:
            self.journal.note(
                record.key,
                "the URL to signal to was signed %d minutes ago and may be refused" % (age // 60),
            )

    def _recover(self, item, record, execution):
        """Return the result of an interrupted run; None when it is to be run again."""
        answer = execution.recover()
        if execution.was_cut:
            self.leftovers.remove_secrets(record)
        if answer is not None:
            return answer
        runs = record.mark.get("runs", 1)
        rerun = item is not None and item.options.get("on_interrupt") == "rerun"
        if rerun and runs <= RERUNS:
            self.journal.event(
                "interrupted", record, reason="run %d was interrupted; running it again" % runs
            )
            execution.close()
            return None
        sentence = (
            "The hook was interrupted, at run %d: the machine or the agent stopped before it "
            "ended, so it is not known how far it got." % runs
        )
        if not rerun:
            sentence += " With the option on_interrupt: rerun it would be run again."
        self.journal.event("interrupted", record, reason=sentence)
        stdout, stderr = execution.partial()
        return result.failure(sentence, stdout=stdout, stderr=stderr)

    def _finish_strangers(self, items):
        """Record the result of interrupted runs whose deployments have left the metadata since."""
        for key, record in self.records.items():
            if key in items or record.state != STARTED:
                continue
            execution = Execution(
                record,
                hook=record.group,
                seconds=self.settings.timeout,
                store=self.store,
                journal=self.journal,
                settings=self.settings,
            )
            self._finish(record, self._recover_stranger, record, execution)

    def _recover_stranger(self, record, execution):
        try:
            return self._recover(None, record, execution)
        except OSError as error:
            return self._without_room(record, execution, error)
        finally:
            execution.close()

    def _record_result(self, record, answer):
        try:
            try:
                self.store.save_result(record, answer, result.shorten)
            except OSError:
                self.journal.make_room()
                self.store.give_room()
                self.store.save_result(record, answer, result.shorten)
        except OSError as error:
            self.journal.event(
                "signal-failed",
                record,
                reason="the result cannot be recorded yet: %s" % error.strerror,
            )
            self.failed = True
            return False
        self.journal.event("finished", record, status=record.mark.get("status"))
        return True

    def _deliver(self, record):
        """Signal a finished deployment, and record that it was accepted or when to try again."""
        way = transport.kind(record.inputs)
        note = record.mark.get("signal")
        if way is not None and not delivery.is_due(note):
            return
        answer = self.store.result(record)
        if answer is None:
            answer = result.failure("The result of the deployment could not be read back.")
        limit = transport.limit(record.inputs)
        try:
            body = result.trim(answer, limit, self._where(record, answer))
        except Exception as error:
            answer = self._unexpected(record, error, "the result of the hook cannot be sent")
            body = values.encode(answer).encode("ascii")
        try:
            if self.settings.notify and way not in (None, "NO_SIGNAL"):
                delivery.through_program(record, body, self.store, self.journal, self.settings)
            else:
                self.sender.send(record.inputs, body)
        except transport.NotAccepted as error:
            self._not_accepted(record, error)
            return
        self._close(record, SIGNALLED)
        self.journal.event("signalled", record, status=record.mark.get("status"))

    def _not_accepted(self, record, error):
        """Record a failed try, and whether it was the last."""
        note = record.mark["signal"] = delivery.failed_try(record.mark.get("signal"), error)
        reason = error.sentence
        if delivery.is_final(note, error):
            record.mark.update(reason=reason, address=delivery.address(record.inputs))
            self._close(record, UNDELIVERABLE)
            reason += ". It will not be tried again; the result is kept on the server"
        else:
            self._save(record)
        self.journal.event("signal-failed", record, reason=reason)

    def _close(self, record, state):
        """Remove the credentials, which are no longer needed, and record the last *state*."""
        record.strip()
        record.mark.pop("signal", None)
        record.enter(state)
        self._save(record)

    def _where(self, record, answer):
        """Return a function that names the place of the whole of a field of *answer*."""

        def where(field):
            value = answer.get(field)
            was_cut, place = result.earlier_cut(value)
            if place:
                return place
            path = self.store.path(record.key, ".notify.json")
            stream = {result.STDOUT: "stdout", result.STDERR: "stderr"}.get(field)
            if stream and isinstance(value, str):
                kept, left_out = self.journal.extent(record.key, stream)
                if kept + left_out >= len(value):  # else it is the hook's own output, not a tool's
                    path, was_cut = self.journal.path(record.key, stream), False
                    if left_out:
                        return "all but %d bytes of it are on the server in %s" % (left_out, path)
            return "%s on the server in %s" % (
                "all that is kept is" if was_cut else "the whole is",
                path,
            )

        return where

    def _forget(self, items, readable):
        """Remove the state of deployments that have been gone from the metadata for long enough.

        Only metadata that could be read counts, and a source that is down for a while may leave
        it without some deployments, or without any: forgetting one too early would run it twice.
        """
        if not readable:
            return
        patience = self.settings.forget_after * (1 if items else EMPTY_FACTOR)
        for key, record in list(self.records.items()):
            if key in items:
                continue
            gone = record.mark.get("gone")
            if not isinstance(gone, dict) or gone.get("boot") != process.boot_id():
                gone = record.mark["gone"] = {"boot": process.boot_id(), "since": delivery.uptime()}
                if patience and not self._save(record):
                    continue
            since = gone.get("since")
            if not isinstance(since, (int, float)) or delivery.uptime() - since >= patience:
                self.leftovers.remove(key)
                self.store.forget(key)
                del self.records[key]
        self.journal.prune(self.records, self.settings.keep_logs)


def _plain_name(file):
    """Return the name of a hook's file without differences that are easily overlooked."""
    return file.partition(".")[0].lower().replace("_", "-")


def _place(error):
    """Return the type of *error* and where it was raised, not its message: it may quote a value."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = os.path.basename(trace.tb_frame.f_code.co_filename)
    return "%s at %s line %d" % (type(error).__name__, name, trace.tb_lineno)


def _say(message):
    os.write(2, ("heat-config: %s\n" % message).encode("utf-8", "replace"))


def main(only=None):
    """Do one pass and return its exit status."""
    return _begin(lambda one: one.run(only))


def resend(only=None, *, due=False):
    """Send signals that wait and return the exit status; see Pass.resend."""
    return _begin(lambda one: one.resend(only, due=due))


def _begin(work):
    umask = os.umask(0o077)  # ours; hooks get the umask of the agent's unit
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignoring it would lose the hooks' status
    try:
        return work(Pass(Settings(umask=umask)))
    except KeyboardInterrupt:
        return 130


def _instead_of(group, name):
    """Return advice for a *group* without a hook; *name* is its part that can be a file name."""
    if group in DROPPED:
        return "This group of heat-agents was dropped; use %s." % DROPPED[group]
    if group != name:
        return "Correct the group: no hook can have that name."
    return "Install the element heat-config-%s in the image, or correct the group." % name


if __name__ == "__main__":
    sys.exit(main())
