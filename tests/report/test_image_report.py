"""The page of the comparison of two images."""

from __future__ import annotations

from hotplate.report import html


def test_page_lists_the_largest_packages_first():
    image = {"image": "a", "bytes": 1, "files": 1, "files_bytes": 1}
    first = {**image, "sizes": {"small": 10**6, "grown": 2 * 10**6}}
    second = {**image, "sizes": {f"p{number}": number for number in range(100)} | {"grown": 10**7}}
    empty = {part: [] for part in ("facts", "hooks", "services", "users", "owners", "packages")}
    page = html.images({"images": [first, second], **empty})
    assert page.index("<td>grown</td><td>2.0 MB</td><td>10.0 MB</td>") < page.index(
        "<td>small</td>"
    )
    assert "<td>p0</td>" not in page


def test_page_shows_names_as_text():
    bad = "<script>alert(1)</script>\x1b[31m"
    image = {"image": f"/x/{bad}", "bytes": 1, "files": 1, "files_bytes": 1, "sizes": {bad: 10**7}}
    change = {"name": bad, "how": "added", "before": "", "after": bad}
    empty = {part: [] for part in ("facts", "hooks", "services", "users")}
    owner = {"owner": bad, "files": [change], "before": 0, "after": 1}
    document = {"images": [image, image], "packages": [change], "owners": [owner], **empty}
    page = html.images(document)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_page_has_limited_rows():
    rows = [{"name": f"p{n}", "how": "added", "before": "", "after": ""} for n in range(3000)]
    image = {"image": "a", "bytes": 1, "files": 1, "files_bytes": 1, "sizes": {}}
    empty = {part: [] for part in ("facts", "hooks", "services", "users", "owners")}
    page = html.images({"images": [image, image], "packages": rows, **empty})
    assert page.count("<td>added</td>") == html.MAX_ROWS
    assert "packages: 3000" in page
