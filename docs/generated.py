"""Generate the parts of pages that come from the sources: tables, examples, the reference.

A generated part is between two comments, so that the page is complete wherever it is read::

    .. generated: table stages
    .. generated: end

``python docs/generated.py`` writes the text between them; ``tests/ground/test_generated_docs.py``
checks that it is current.  The words after the colon are a key of :data:`MAKERS` and its arguments.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PICTURE = HERE / "loop.svg"
sys.path[:0] = [str(HERE), str(ROOT)]

import distributions  # noqa: E402
import loop  # noqa: E402

from hotplate import cli  # noqa: E402
from hotplate import settings as table_of  # noqa: E402
from hotplate.events.console_patterns import PATTERNS  # noqa: E402
from hotplate.hookkit.contract import EXCEPTIONS, LINES  # noqa: E402
from hotplate.hookkit.contract_configs import ROLES  # noqa: E402
from hotplate.hookkit.contract_file import built_in  # noqa: E402
from hotplate.inspection.cpu_level import RELEASES  # noqa: E402
from hotplate.inspection.standard import STANDARD  # noqa: E402
from hotplate.machine.cpu_models import LEVELS  # noqa: E402
from hotplate.plugin.options import OPTIONS  # noqa: E402
from hotplate.verdict.guest_standard import HARMLESS  # noqa: E402
from hotplate.verdict.rules import RULES  # noqa: E402
from hotplate.verdict.stages import STAGES  # noqa: E402

WIDTH = 99
BLOCK = re.compile(
    r"^\.\. generated: (?!end$)(?P<words>[^\n]+)\n.*?^\.\. generated: end$",
    re.MULTILINE | re.DOTALL,
)
OPTION = re.compile(r"(?<![\w`./-])(--?[a-z][a-z-]*[a-z]|-[a-zA-Z])(?![\w`])")
LITERAL = re.compile(r"(``[^`]+``)")
Rows = Iterable[tuple[str, ...]]


def stale() -> list[str]:
    """Return the pages, and the picture, that do not match the sources."""
    names = [page.name for page in pages() if filled(page.read_text()) != page.read_text()]
    current = PICTURE.is_file() and PICTURE.read_text() == loop.svg()
    return names if current else [*names, PICTURE.name]


def pages() -> list[Path]:
    """Return all hand-written pages."""
    return sorted(HERE.glob("*.rst"))


def filled(text: str) -> str:
    """Return a page with its generated parts updated."""

    def made(match: re.Match[str]) -> str:
        name, *arguments = match["words"].split()
        body = MAKERS[name](*arguments).strip("\n")
        return f".. generated: {match['words']}\n\n{body}\n\n.. generated: end"

    return BLOCK.sub(made, text)


# -- reStructuredText ----------------------------------------------------------------------------


def sentence(text: str) -> str:
    """Return a text of the code as a sentence, escaped for the markup."""
    end = "" if text.endswith("?") else "."
    return f"{text[:1].upper()}{escaped(text[1:])}{end}"


def escaped(text: str) -> str:
    """Return a text escaped for the markup, with options as literals; literals stay."""
    parts = LITERAL.split(text)
    parts[::2] = [
        OPTION.sub(r"``\1``", re.sub(r"([*`|\\])", r"\\\1", re.sub(r"_(?=\W|$)", r"\_", part)))
        for part in parts[::2]
    ]
    return "".join(parts)


def literal(text: str) -> str:
    return f"``{text}``" if text else ""


def title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n\n"


def indented(text: str) -> str:
    return textwrap.indent(text.strip("\n"), "    ") + "\n"


def list_table(heads: tuple[str, ...], rows: Rows, *, widths: str = "") -> str:
    """Return a table whose cells are one paragraph each."""
    lines = [".. list-table::", "   :header-rows: 1"]
    lines += [f"   :widths: {widths}", ""] if widths else [""]
    for row in (heads, *rows):
        for number, cell in enumerate(row):
            mark = "     -" if number else "   * -"
            wrapped = textwrap.wrap(cell, WIDTH - 7, break_on_hyphens=False, break_long_words=False)
            lines.append(f"{mark} {wrapped[0]}" if wrapped else mark)
            lines += [f"       {each}" for each in wrapped[1:]]
    return "\n".join(lines) + "\n"


# -- tables of the code, and examples ------------------------------------------------------------


def table(name: str) -> str:
    """Return one of the tables that the harness uses."""
    heads, rows = TABLES[name]()
    return list_table(heads, rows)


TABLES: dict[str, Callable[[], tuple[tuple[str, ...], Rows]]] = {
    "contract": lambda: (
        ("Line", "What holds", "What to do about a hook that fails"),
        ((literal(line.name), sentence(line.sentence), sentence(line.mend)) for line in LINES),
    ),
    "exceptions": lambda: (
        ("Exception", "Lines", "What does not count", "Groups of hotplate's own, and why"),
        (
            (
                literal(name),
                ", ".join(map(literal, lines)),
                sentence(what),
                "; ".join(
                    f"{literal(group)}: {given.exceptions[name]}"
                    for group, given in built_in()
                    if name in given.exceptions
                )
                or "none",
            )
            for name, (lines, what) in EXCEPTIONS.items()
        ),
    ),
    "cpu-levels": lambda: (
        ("Processor", "Level", "QEMU's CPU model"),
        (
            (literal(arch), literal(level), literal(model))
            for arch, models in LEVELS.items()
            for level, model in models.items()
        ),
    ),
    "cpu-releases": lambda: (
        ("Distribution", "Since", "Level", "Reason"),
        (
            (
                ", ".join(map(literal, row.ids)),
                str(row.since),
                literal(row.level),
                sentence(row.reason),
            )
            for row in RELEASES
        ),
    ),
    "roles": lambda: (
        ("Config", "What it has to do"),
        ((literal(name), sentence(what)) for name, what in ROLES.items()),
    ),
    "stages": lambda: (
        ("Stage", "What to look at when it is not reached"),
        ((row.stage.value, sentence(row.look)) for row in STAGES),
    ),
    "faults": lambda: (
        ("Fault", "Stage", "What to look at or do"),
        (
            (literal(rule.fault), rule.stage.value if rule.stage else "any", sentence(rule.advice))
            for rule in RULES
        ),
    ),
    "standard": lambda: (
        ("Id", "Finding", "Reason", "Source"),
        (
            (
                literal(row.id),
                ", ".join([*filter(None, [row.level]), *["guest"] * row.guest]),
                sentence(row.reason),
                escaped(row.source),
            )
            for row in STANDARD
        ),
    ),
    "harmless": lambda: (
        ("Error of the kernel", "Reason"),
        ((literal(row.line.pattern), sentence(row.reason)) for row in HARMLESS),
    ),
    "console": lambda: (
        ("Pattern", "The console shows that ...", "What to do", "Gives up"),
        (
            (
                literal(row.name),
                sentence(row.reason),
                sentence(row.advice),
                "yes" if row.fatal else "no",
            )
            for row in PATTERNS
        ),
    ),
}


def example(path: str, language: str) -> str:
    """Return a file of ``docs/examples`` as a block of code."""
    return f".. code-block:: {language}\n\n{indented((HERE / path).read_text())}"


# -- commands ------------------------------------------------------------------------------------


def commands() -> str:
    """Return every verb with its options, and the options of the plug-in."""
    parts = [_verb(name) for name in cli.VERBS]
    rows = (
        (
            ", ".join(literal(_spelled(name, option.metavar)) for name in option_names(option)),
            _capital(option.help),
        )
        for option in OPTIONS
    )
    parts.append(title("pytest", "-") + list_table(("Option", "What"), rows, widths="40 60"))
    return "\n".join(parts)


def option_names(option: object) -> list[str]:
    name = getattr(option, "name")  # noqa: B009
    return [f"--hotplate-{name}", *([f"--{name}"] if getattr(option, "short") else [])]  # noqa: B009


def _verb(name: str) -> str:
    parser = argparse.ArgumentParser(prog=f"hotplate {name}", add_help=False)
    cli._verb(name).add_arguments(parser)
    summary = cli.VERBS[name]
    return title(f"hotplate {name}", "-") + _capital(summary) + ".\n\n" + _arguments(parser)


def _arguments(parser: argparse.ArgumentParser) -> str:
    """Return the arguments of a command line and of the verbs below it."""
    plain = [each for each in parser._actions if not isinstance(each, argparse._SubParsersAction)]
    shown = [each for each in plain if each.help is not argparse.SUPPRESS and each.dest != "help"]
    rows = [(_names(each), _help(each)) for each in shown]
    text = list_table(("Argument", "What"), rows, widths="40 60") if rows else ""
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            text += "\n".join(_below(each))
    return text


def _below(action: argparse._SubParsersAction[argparse.ArgumentParser]) -> Iterator[str]:
    summaries = {each.dest: each.help or "" for each in action._choices_actions}
    for name, parser in action.choices.items():
        yield title(parser.prog, "~") + _capital(summaries[name]) + ".\n\n" + _arguments(parser)


def _names(action: argparse.Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return literal(value)
    return ", ".join(literal(_spelled(each, value)) for each in action.option_strings)


def _spelled(name: str, value: str) -> str:
    return f"{name} {value}" if value else name


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _help(action: argparse.Action) -> str:
    return _capital((action.help or "") % vars(action))


def _capital(text: str) -> str:
    return text[:1].upper() + escaped(text[1:])


# -- settings and variables ----------------------------------------------------------------------


def settings() -> str:
    """Return the settings of a run, with their variables, defaults and meanings."""
    return list_table(
        ("Setting", "Variable", "Default", "Meaning"),
        (
            (
                literal(name),
                literal(table_of.variable_of(name)),
                literal(table_of.default_of(name)) or "none",
                _meaning(name),
            )
            for name in table_of.TABLE
        ),
        widths="15 25 20 40",
    )


def _meaning(name: str) -> str:
    choices = ", ".join(table_of.choices_of(name))
    return _capital(table_of.help_of(name)) + (f" ({choices})" if choices else "")


def build_variables() -> str:
    """Return the variables that a build reads, from the pages of the elements."""
    return list_table(
        ("Variable", "Element", "Default", "What"),
        (
            (literal(name), readme_link(element), fields.get("Default", ""), _what(fields))
            for name, element, fields in _documented()
            if name.startswith("DIB_")
        ),
        widths="25 20 20 35",
    )


def server_variables() -> str:
    """Return the variables that hooks and commands read on a server."""
    described = {name: element for name, element, _ in _documented() if not name.startswith("DIB_")}
    rows = []
    for name, files in sorted(_read_in_guests().items()):
        where = readme_link(described[name]) if name in described else ":doc:`hooks`"
        rows.append((literal(name), ", ".join(map(literal, sorted(files))), where))
    return list_table(("Variable", "Read by", "Described in"), rows, widths="35 35 30")


def _what(fields: dict[str, str]) -> str:
    need = fields.get("Required", "No")
    return fields.get("Description", "") + ("" if need == "No" else f" Required: {need}.")


def _documented() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield each variable of each element's README: its name, the element, its fields."""
    entry = re.compile(r"^((?:[A-Z]+_\w+(?:, )?)+)\n((?:  +.*\n)+)", re.MULTILINE)
    for readme in sorted(ROOT.glob("elements/*/README.rst")):
        for match in entry.finditer(readme.read_text() + "\n"):
            parts = re.split(r"^  :(\w+):", match[2], flags=re.MULTILINE)[1:]
            fields = {key: " ".join(text.split()) for key, text in zip(*[iter(parts)] * 2)}  # noqa: B905
            for name in match[1].split(", "):
                yield name, readme.parent.name, fields


#: Variables that hotplate's programs or tests set; the last is not a variable.
BETWEEN_PROGRAMS = {
    *("HEAT_CONFIG_LIB", "HEAT_CONFIG_CAPTURE", "HEAT_AGENT_ROOT", "HEAT_CFN_INIT_METADATA"),
    *("HEAT_METADATA_ADDRESS", "HEAT_CFN_NOVA_URL", "HEAT_SIGNAL"),
}


def _read_in_guests() -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for path in sorted((ROOT / "hooks").rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        if path.suffix != ".py" and b"python" not in path.read_bytes().partition(b"\n")[0]:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"(HEAT|SALT)_[A-Z_]+", text):
                names.setdefault(text, set()).add(str(path.relative_to(ROOT / "hooks")))
    return {name: files for name, files in names.items() if name not in BETWEEN_PROGRAMS}


# -- elements ------------------------------------------------------------------------------------


def elements() -> str:
    """Return the list of elements with their dependencies."""
    rows = []
    for readme in sorted(ROOT.glob("elements/*/README.rst")):
        name = readme.parent.name
        paragraph = readme.read_text().split("\n\n")[1]
        first = re.match(r"(.*?[.:])(?=\s|$)", paragraph.strip(), re.DOTALL)
        what = " ".join((first[1] if first else paragraph).split())
        uses = readme.with_name("element-deps")
        names = sorted(uses.read_text().split()) if uses.is_file() else []
        rows.append((readme_link(name), what.rstrip(":"), ", ".join(map(literal, names))))
    return list_table(("Element", "What it does", "Uses"), rows, widths="27 45 28")


def readme_link(element: str) -> str:
    """Return a link to an element's page that a forge can follow; conf.py makes it Sphinx's."""
    return f"`{element} <../elements/{element}/README.rst>`__"


# -- distributions -------------------------------------------------------------------------------


def releases() -> str:
    """Return the releases of the distributions, with their Python and whether Salt has a lock."""
    lock = ROOT / "elements" / "heat-config-salt" / "heat-salt-lock" / "lock.txt"
    locked = lock.read_text().partition("\n")[0].split()
    sources = distributions.table()["pythons"]
    rows = []
    for release in distributions.releases():
        usable = release.python >= distributions.OLDEST_PYTHON
        version = ".".join(map(str, release.python))
        shown = f"`{version} <{sources[release.name]}>`__" if release.name in sources else version
        tried = "images are built and booted" if release.column == "Debian" else "not tried"
        rows.append(
            (
                f"{release.column} {release.name.removeprefix(release.column).strip()}",
                shown,
                tried if usable else "refused: Python is too old",
                ("yes" if version in locked else "``DIB_HEAT_SALT_PACKAGE``") if usable else "",
            )
        )
    return list_table(("Release", "Python", "Agent and hooks", "Salt from the index"), rows)


def packages() -> str:
    """Return the packages of the elements per distribution, as the elements' own maps give them."""
    rows = []
    for element, choice in distributions.installing():
        cells = [_packages_of(element, column, choice) for column in distributions.COLUMNS]
        set_to = " ".join(f"{name}={value}" for name, value in choice.items())
        if any(cell != "none" for cell in cells):
            label = readme_link(element) + (f", {literal(set_to)}" if set_to else "")
            rows.append((label, *cells))
    return list_table(("Element", *distributions.COLUMNS), rows, widths="20 16 16 16 16 16")


def _packages_of(element: str, column: str, choice: Mapping[str, str]) -> str:
    """Return the packages of an element in a column's releases, with the table's marks."""
    found: dict[str, list[str]] = {}
    for release in distributions.releases():
        if release.column == column and release.python >= distributions.OLDEST_PYTHON:
            names = distributions.resolve(element, *release.names[0], choice)
            marks = {"absent": " (elsewhere)", "unknown": " (?)"}
            kinds = {kind: distributions.listed(kind, release.name) for kind in marks}
            shown = [
                literal(name)
                + "".join(marks[kind] for kind, listed in kinds.items() if name in listed)
                for name in names or ()
            ]
            cell = "refused" if names is None else ", ".join(shown) or "none"
            found.setdefault(cell, []).append(release.name.removeprefix(column).strip())
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(where)}: {cell}" for cell, where in found.items())


def package_sources() -> str:
    """Return where the packages are documented."""
    rows = []
    for kind, what in (("documented", "has"), ("absent", "has not")):
        for row in distributions.table()[kind]:
            names = ", ".join(map(literal, row["packages"]))
            rows.append((", ".join(row["releases"]), f"{what} {names}", row["source"]))
    return list_table(("Releases", "Packages", "Source"), rows, widths="18 42 40")


# -- the Python API ------------------------------------------------------------------------------


def fixtures() -> str:
    """Return the fixtures of the pytest plug-in."""
    tree = ast.parse((ROOT / "hotplate" / "plugin" / "plugin.py").read_text())
    rows = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            marks = [each for each in map(ast.unparse, node.decorator_list) if "fixture" in each]
            for mark in marks:
                scope = re.search(r"scope='(\w+)'", mark)
                doc = (ast.get_docstring(node) or "").partition("\n")[0]
                rows.append((literal(node.name), scope[1] if scope else "function", plain(doc)))
    return list_table(("Fixture", "Scope", "What"), rows, widths="25 15 60")


def api(module: str, name: str) -> str:
    """Return a class: its docstring, and each public method with its docstring."""
    source = (ROOT / Path(*module.split("."))).with_suffix(".py")
    node = next(
        each
        for each in ast.parse(source.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == name
    )
    text = title(name, "-") + f"``{module}.{name}``\n\n" + plain(ast.get_docstring(node) or "")
    return text + "\n\n" + "\n".join(_method(each) for each in node.body if _is_public(each))


def _is_public(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.FunctionDef)
        and (not node.name.startswith("_") or node.name == "__call__")
        and ast.get_docstring(node) is not None
    )


def _method(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef)
    doc = plain(ast.get_docstring(node) or "")
    return f"``{_signature(node)}``\n{indented(doc)}"


def _signature(node: ast.FunctionDef) -> str:
    """Return a method's signature: names and defaults, without types."""
    if any("property" in ast.unparse(each) for each in node.decorator_list):
        return node.name
    bare = ast.parse(ast.unparse(node.args).join(("def f(", "): ...")), mode="exec").body[0]
    assert isinstance(bare, ast.FunctionDef)
    given = bare.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None:
            each.annotation = None
    is_static = any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)
    given.args = given.args if is_static else given.args[1:]
    return f"{node.name}({ast.unparse(given)})"


def plain(doc: str) -> str:
    """Return a docstring without the roles and fields that only Sphinx knows."""
    doc = re.sub(r":\w+:`~?[\w.]*?(\w+)(\(\))?`", r"``\1``", doc)
    doc = re.sub(r"^:param (\w+):", r":\1:", doc, flags=re.MULTILINE)
    return re.sub(r"^:return:", ":returns:", doc, flags=re.MULTILINE)


MAKERS: dict[str, Callable[..., str]] = {
    "table": table,
    "example": example,
    "commands": commands,
    "settings": settings,
    "build-variables": build_variables,
    "server-variables": server_variables,
    "elements": elements,
    "releases": releases,
    "packages": packages,
    "package-sources": package_sources,
    "fixtures": fixtures,
    "api": api,
}


def main() -> None:
    """Write the generated parts into their pages, and the picture."""
    for page in pages():
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            print(f"wrote {page.name}")
    PICTURE.write_text(loop.svg())


if __name__ == "__main__":
    main()
