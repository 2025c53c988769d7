"""Lists in Neutron's form: filtered, sorted, in pages, with the requested fields."""

from __future__ import annotations

from urllib.parse import urlencode

from webob import exc

from hotplate.cloud.http.rest import TAG_FILTERS, Request, page
from hotplate.cloud.neutron.attributes import ResourceKind
from hotplate.cloud.neutron.records import Values

#: Maximum number of entries on a page.
MAX_PAGE = 1000
_CONTROL = {"fields", "sort_key", "sort_dir", "limit", "marker", "page_reverse"}


def listed(kind: ResourceKind, records: list[Values], request: Request, base: str) -> Values:
    """Return the response body of a list.

    :param records: all resources that the caller may see, as clients see them.
    :param base: the URL of the collection, for the links to other pages.
    :raises webob.exc.HTTPBadRequest: for an unknown filter.
    """
    records = [record for record in records if _matches(kind, record, request)]
    records = _sorted(kind, records, request)
    limit = request.number("limit", default=0, most=MAX_PAGE)
    body: Values = {}
    if limit:
        reverse = request.one("page_reverse").lower() in ("true", "1")
        # Backwards, a page ends at the marker: turn the list, cut it, and turn the page.
        if reverse:
            records.reverse()
        records, more = page(
            records, lambda record: str(record["id"]), limit=limit, marker=request.one("marker")
        )
        if reverse:
            records.reverse()
        links = _links(request, records, base, more=more, reverse=reverse)
        if links:
            body[f"{kind.name}_links"] = links
    fields = set(request.query.get("fields", []))
    return {kind.name: [chosen(record, fields) for record in records], **body}


def chosen(record: Values, fields: set[str]) -> Values:
    """Return a resource with the requested fields; with all of them when none is requested."""
    fields = fields - {""}
    if not fields:
        return record
    return {name: value for name, value in record.items() if name in fields}


def _matches(kind: ResourceKind, record: Values, request: Request) -> bool:
    for name, values in request.query.items():
        wanted = [value for value in values if value]
        if name in _CONTROL or not wanted:
            continue
        if name in TAG_FILTERS:
            tags = {tag for value in wanted for tag in value.split(",")}
            if not TAG_FILTERS[name](set(record["tags"]), tags):
                return False
        elif not _has(kind, record, name, wanted):
            return False
    return True


def _has(kind: ResourceKind, record: Values, name: str, wanted: list[str]) -> bool:
    """Return True when a resource has one of the wanted values."""
    if name == "fixed_ips":
        return all(_has_fixed_ip(record, each) for each in wanted)
    spec = kind.map.get(name)
    if spec is None or not (spec.get("is_filter") or spec.get("is_visible")):
        raise exc.HTTPBadRequest(f"['{name}'] is invalid attribute for filtering")
    value = record.get(name)
    if isinstance(value, list):
        return any(each in value for each in wanted)
    return any(_same(value, kind.filter_value(name, each)) for each in wanted)


def _same(value: object, wanted: object) -> bool:
    if isinstance(value, str) or value is None:
        return (value or "") == wanted
    return value == wanted or str(value).lower() == str(wanted).lower()


def _has_fixed_ip(record: Values, text: str) -> bool:
    name, _, value = text.partition("=")
    if name == "ip_address_substr":
        return any(value in ip["ip_address"] for ip in record["fixed_ips"])
    if name not in ("ip_address", "subnet_id"):
        raise exc.HTTPBadRequest(
            f"Invalid input for fixed_ips. Reason: '{name}' is not ip_address or subnet_id."
        )
    return any(ip[name] == value for ip in record["fixed_ips"])


def _sorted(kind: ResourceKind, records: list[Values], request: Request) -> list[Values]:
    keys = [key for key in request.query.get("sort_key", []) if key]
    directions = request.query.get("sort_dir", [])
    # The last key first, because sorted() is stable.
    for place, key in reversed(list(enumerate(keys))):
        if not kind.map.get(key, {}).get("is_sort_key"):
            raise exc.HTTPBadRequest(f"['{key}'] is invalid attribute for sort keys")
        down = place < len(directions) and directions[place] == "desc"
        # As text, because None does not compare with other values.
        records = sorted(records, key=lambda record: str(record.get(key)), reverse=down)
    return records


def _links(
    request: Request, records: list[Values], base: str, *, more: bool, reverse: bool
) -> list[dict[str, str]]:
    if not records:
        return []
    query = {name: values for name, values in request.query.items() if name != "page_reverse"}
    forward = {**query, "marker": [records[-1]["id"]]}
    backward = {**query, "marker": [records[0]["id"]], "page_reverse": ["True"]}
    links = []
    if more or reverse:
        links.append({"rel": "next", "href": f"{base}?{urlencode(forward, doseq=True)}"})
    if request.one("marker"):
        links.append({"rel": "previous", "href": f"{base}?{urlencode(backward, doseq=True)}"})
    return links
