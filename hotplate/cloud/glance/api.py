"""Glance's v2 API over HTTP."""

from __future__ import annotations

import html
from functools import partial
from http import HTTPStatus
from itertools import zip_longest
from urllib.parse import urlencode
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.glance import schemas
from hotplate.cloud.glance.images import Images
from hotplate.cloud.glance.members import Values
from hotplate.cloud.http import limits
from hotplate.cloud.http.rest import (
    Answer,
    Headers,
    HttpError,
    Request,
    Routes,
    page,
    respond,
)
from hotplate.cloud.keystone.guard import admit
from hotplate.cloud.keystone.identity import Grant, Identity

#: Glance: ``[DEFAULT] limit_param_default`` and ``api_limit_max``.
PAGE = 25
MAX_PAGE = 1000
_CONTROL = {"limit", "marker", "sort_key", "sort_dir", "sort", "member_status", "os_hidden"}
_SORTED = ("name", "status", "container_format", "disk_format", "size", "id", "created_at",
           "updated_at")  # fmt: skip
#: The types of a change, by their versions: an operation is {"op": "add", "path": "/name", ...}, or
#: {"add": "/name", ...} by the older draft.
_PATCHES = (
    "application/openstack-images-v2.0-json-patch",
    "application/openstack-images-v2.1-json-patch",
)


class GlanceApi:
    """Glance's WSGI application."""

    def __init__(self, images: Images, identity: Identity) -> None:
        self._images = images
        self._identity = identity
        one = "/v2/images/{id}"
        self._routes: Routes[Grant] = Routes(
            ("GET", "/v2/images", self._list),
            ("POST", "/v2/images", self._create),
            ("GET", one, self._show),
            ("PATCH", one, self._change),
            ("DELETE", one, self._delete),
            ("PUT", one + "/file", self._upload),
            ("GET", one + "/file", self._download),
            ("POST", one + "/actions/deactivate", partial(self._set_active, False)),
            ("POST", one + "/actions/reactivate", partial(self._set_active, True)),
            ("PUT DELETE", one + "/tags/{tag}", self._tag),
            ("GET", one + "/members", self._members),
            ("POST", one + "/members", self._add_member),
            ("GET", one + "/members/{project}", self._member),
            ("PUT", one + "/members/{project}", self._refuse_status),
            ("DELETE", one + "/members/{project}", self._remove_member),
            ("GET", "/v2/schemas/{name}", self._schema),
            ("GET", "/v2/info/import", self._import_info),
            ("GET", "/v2/tasks", self._tasks),
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        return respond(environ, start_response, self._answer, describe=lambda error: str(error))

    def _answer(self, request: Request) -> Answer:
        if request.path in ("", "/versions") and request.method == "GET":
            # As Glance: 300 at the root, and 200 at /versions.
            status = 200 if request.path else 300
            versions = _versions(self._identity.host["glance"])
            return Answer(status, {"versions": versions}, identified=False)
        if request.environ.get("PATH_INFO", "").endswith("/images/"):
            # Not the list: the path of an image without its id.
            raise _page(404, "The resource could not be found.")
        try:
            caller = admit(request, self._identity)
        except HttpError as error:
            if error.status != 401:
                raise _page(error.status, str(error)) from error
            raise _page(401, _UNVERIFIED, headers=error.headers, identified=False) from error
        try:
            return self._routes.answer(request, caller)
        except HttpError as error:
            raise _page(error.status, str(error)) from error

    # -- images --------------------

    def _list(self, request: Request, caller: Grant) -> Answer:
        images = [
            image
            for image in self._images.all()
            if _visible(image, caller) and _matches(image, request)
        ]
        images = _sorted(images, request)
        limit = request.number("limit", default=PAGE, most=MAX_PAGE)
        chosen, more = page(
            images, lambda image: str(image["id"]), limit=limit, marker=request.one("marker")
        )
        query = {name: values for name, values in request.query.items() if name != "marker"}
        body: Values = {
            "images": [_shown(image) for image in chosen],
            "first": _link(query),
            "schema": "/v2/schemas/images",
        }
        if more and chosen:
            body["next"] = _link({**query, "marker": [chosen[-1]["id"]]})
        return Answer(body=body)

    def _create(self, request: Request, caller: Grant) -> Answer:
        values = request.json()
        schemas.check(values)
        _check_public(values)
        if values.get("owner", caller.project) != caller.project:
            raise HttpError(
                403, f"You are not permitted to create images owned by '{values['owner']}'"
            )
        values = {**values, "tags": sorted(set(values.get("tags", [])))}
        with self._images.transaction():
            image = self._images.create(values, caller.project)
        location = f"{self._identity.host['glance']}/v2/images/{image['id']}"
        return Answer(201, _shown(image), (("Location", location),))

    def _show(self, request: Request, caller: Grant) -> Answer:
        return Answer(body=_shown(self._mine(request, caller)))

    def _change(self, request: Request, caller: Grant) -> Answer:
        kind = request.environ.get("CONTENT_TYPE", "").partition(";")[0].strip()
        if kind not in _PATCHES:
            allowed = ", ".join(_PATCHES)
            raise HttpError(415, f"Image PATCH expects Content-Type one of: {allowed}")
        older = kind == _PATCHES[0]
        operations = _operations(request, older=older)
        with self._images.transaction():
            image = self._mine(request, caller)
            changes, drop = _changes(image, operations, older=older)
            schemas.check(changes)
            _check_public(changes)
            if "owner" in changes:
                raise HttpError(403, "Owner can't be updated by non admin.")
            merged = {**image, **changes}
            # Without Glance's own properties, which check() refuses.
            schemas.check(
                {
                    name: value
                    for name, value in merged.items()
                    if name not in schemas.READ_ONLY and name not in drop
                }
            )
            return Answer(body=_shown(self._images.change(image, changes, drop=drop)))

    def _delete(self, request: Request, caller: Grant) -> Answer:
        with self._images.transaction():
            self._images.delete(self._mine(request, caller))
        return Answer(204, headers=_EMPTY)

    def _mine(self, request: Request, caller: Grant) -> Values:
        """Return the image of a path, if the caller may see it."""
        image = self._images.get(request.parts["id"])
        if not _visible(image, caller):
            raise HttpError(404, f"No image found with ID {request.parts['id']}")
        return image

    # -- data --------------------

    def _upload(self, request: Request, caller: Grant) -> Answer:
        if not request.environ.get("CONTENT_TYPE", "").startswith("application/octet-stream"):
            raise HttpError(415, "An image's data has the content type application/octet-stream")
        self._images.upload(self._mine(request, caller), request.environ["wsgi.input"])
        return Answer(204, headers=_EMPTY)

    def _download(self, request: Request, caller: Grant) -> Answer:
        image = self._mine(request, caller)
        if image["status"] == "deactivated":
            raise HttpError(
                403, "The requested image has been deactivated. Image data download is forbidden."
            )
        path = self._images.path(image)
        if path is None:
            # As Glance: 204 for an image without data.
            return Answer(204)
        size = path.stat().st_size
        if size > limits.IMAGE_DOWNLOAD:
            raise HttpError(
                413,
                f"The image has {size} bytes; {limits.IMAGE_DOWNLOAD} are handed out at most. "
                f"It lies in the file {path}.",
            )
        checksum = (("Content-MD5", image["checksum"]),) if image["checksum"] else ()
        return Answer(200, path.read_bytes(), checksum)

    def _set_active(self, active: bool, request: Request, caller: Grant) -> Answer:
        with self._images.transaction():
            self._images.set_active(self._mine(request, caller), active=active)
        return Answer(204, headers=_EMPTY)

    # -- tags --------------------

    def _tag(self, request: Request, caller: Grant) -> Answer:
        tag = request.parts["tag"]
        with self._images.transaction():
            image = self._mine(request, caller)
            if request.method == "PUT":
                tags = sorted({*image["tags"], tag})
            elif tag in image["tags"]:
                tags = [each for each in image["tags"] if each != tag]
            else:
                raise HttpError(404, f"Image {image['id']} has no tag {tag}")
            try:
                schemas.check({"tags": tags})
            except HttpError as error:
                if error.status == 413:
                    text = f"Image tag limit exceeded for image {image['id']}: {error}:"
                    raise HttpError(413, text) from error
                raise HttpError(400, f"Could not update image: {error}") from error
            self._images.change(image, {"tags": tags})
        return Answer(204, headers=_EMPTY)

    # -- members --------------------

    def _members(self, request: Request, caller: Grant) -> Answer:
        members = self._images.members.all(self._mine(request, caller))
        return Answer(body={"members": members, "schema": "/v2/schemas/members"})

    def _member(self, request: Request, caller: Grant) -> Answer:
        image = self._mine(request, caller)
        return Answer(body=self._images.members.get(image, request.parts["project"]))

    def _add_member(self, request: Request, caller: Grant) -> Answer:
        project = request.json().get("member")
        with self._images.transaction():
            return Answer(body=self._images.members.add(self._mine(request, caller), project))

    def _refuse_status(self, request: Request, caller: Grant) -> Answer:
        """Refuse to accept an image, which its owner cannot do."""
        image = self._mine(request, caller)
        self._images.members.get(image, request.parts["project"])
        raise HttpError(403, f"Not allowed to update members for image {image['id']}.")

    def _remove_member(self, request: Request, caller: Grant) -> Answer:
        image = self._mine(request, caller)
        self._images.members.remove(image, request.parts["project"])
        return Answer(204)

    # -- versions and schemas --------------------

    def _schema(self, request: Request, _caller: Grant) -> Answer:
        name = request.parts["name"]
        if name not in schemas.SCHEMAS:
            raise HttpError(404, "The resource could not be found.")
        return Answer(body=schemas.SCHEMAS[name])

    def _tasks(self, _request: Request, _caller: Grant) -> Answer:
        raise HttpError(403, "You are not authorized to complete tasks_api_access action.")

    def _import_info(self, _request: Request, _caller: Grant) -> Answer:
        methods = {"description": "Import methods available.", "type": "array", "value": []}
        return Answer(body={"import-methods": methods})


#: WebOb's words, which Glance's pipeline has for a request that keystonemiddleware refuses.
_UNVERIFIED = (
    "This server could not verify that you are authorized to access the document you requested. "
    "Either you supplied the wrong credentials (e.g., bad password), or your browser does not "
    "understand how to supply the credentials required."
)
#: Of an answer without a body, for which Glance leaves WebOb's default.
_EMPTY = (("Content-Type", "text/html; charset=UTF-8"),)


def _check_public(values: Values) -> None:
    """Refuse to a user to make an image everybody's (Glance's policy ``publicize_image``)."""
    if values.get("visibility") == "public":
        raise HttpError(403, "You are not authorized to complete publicize_image action.")


def _page(
    status: int, message: str, *, headers: Headers = (), identified: bool = True
) -> HttpError:
    """Return an error in the form of Glance's, which are HTML pages."""
    title = f"{status} {HTTPStatus(status).phrase}"
    text = (
        f"<html>\n <head>\n  <title>{title}</title>\n </head>\n <body>\n  <h1>{title}</h1>\n"
        # Clients show it unparsed, so only the necessary characters are escaped.
        f"  {html.escape(message, quote=False)}<br /><br />\n\n\n </body>\n</html>"
    )
    headers = (*headers, ("Content-Type", "text/html; charset=UTF-8"))
    return HttpError(status, message, headers=headers, body=text.encode(), identified=identified)


def _versions(base: str) -> list[Values]:
    links = [{"rel": "self", "href": f"{base}/v2/"}]
    return [
        {"id": "v2.9", "status": "CURRENT", "links": links},
        {"id": "v2.0", "status": "SUPPORTED", "links": links},
    ]


def _visible(image: Values, caller: Grant) -> bool:
    return image["owner"] == caller.project or image["visibility"] in ("public", "community")


def _shown(image: Values) -> Values:
    path = f"/v2/images/{image['id']}"
    return {**image, "self": path, "file": f"{path}/file", "schema": "/v2/schemas/image"}


def _link(query: dict[str, list[str]]) -> str:
    return "/v2/images" + (f"?{urlencode(query, doseq=True)}" if query else "")


# -- lists --------------------


def _matches(image: Values, request: Request) -> bool:
    hidden = request.one("os_hidden").lower() == "true"
    if image["os_hidden"] is not hidden:
        return False
    for name, values in request.query.items():
        if name not in _CONTROL and not all(_has(image, name, value) for value in values):
            return False
    return True


def _has(image: Values, name: str, text: str) -> bool:
    if name == "visibility" and text == "all":
        return True
    if name == "tag":
        return text in image["tags"]
    if name in ("size_min", "size_max"):
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise HttpError(400, f"{name} is a number of bytes")
        size = image["size"] or 0
        return size >= int(text) if name == "size_min" else size <= int(text)
    value = image.get(name)
    wanted = text.removeprefix("in:").split(",") if text.startswith("in:") else [text]
    wanted = [each.strip('"') for each in wanted]
    if isinstance(value, bool):
        return str(value).lower() in [each.lower() for each in wanted]
    return value is not None and str(value) in wanted


def _sorted(images: list[Values], request: Request) -> list[Values]:
    # KEY:DIRECTION; the slice drops the colon.
    pairs = [each.partition(":")[::2] for each in request.one("sort").split(",") if each]
    if not pairs:
        directions = request.query.get("sort_dir", [])
        keys = request.query.get("sort_key", [])
        # The last direction is that of all further keys.
        shared = directions[-1] if directions else "desc"
        pairs = [*zip_longest(keys, directions[: len(keys)], fillvalue=shared)]
    # The last key first, because sorted() is stable.
    for key, direction in reversed(pairs):
        if key not in _SORTED or direction not in ("", "asc", "desc"):
            raise HttpError(400, f"Invalid sort key: {key} {direction}")
        default = 0 if key == "size" else ""
        # None does not compare with text: images without a value are a group of their own.
        images = sorted(
            images,
            key=lambda image: (image[key] is not None, image[key] or default),
            reverse=direction != "asc",
        )
    return images


# -- changes --------------------


def _operations(request: Request, *, older: bool) -> list[Values]:
    """Return the operations of a change, with the members ``op``, ``path`` and ``value``.

    :param older: they have an operation's name and path in one member.
    """
    try:
        operations = request.document()
    except HttpError:
        operations = None
    if not isinstance(operations, list):
        raise HttpError(400, "Request body must be a JSON array of operation objects.")
    return [_operation(each, older=older) for each in operations]


def _operation(given: object, *, older: bool) -> Values:
    if not isinstance(given, dict):
        raise HttpError(400, "Operations must be JSON objects.")
    if older:
        names = [name for name in ("add", "remove", "replace") if name in given]
        if len(names) != 1:
            raise HttpError(
                400,
                "Operation objects must contain exactly one member named "
                '"add", "remove", or "replace".',
            )
        given = {**given, "op": names[0], "path": given[names[0]]}
    op, path = given.get("op"), given.get("path")
    if op not in ("add", "remove", "replace"):
        raise HttpError(
            400,
            f"Invalid operation: `{op}`. It must be one of the following: add, remove, replace.",
        )
    if not isinstance(path, str) or not path.startswith("/"):
        raise HttpError(400, f'Pointer `{path}` does not start with "/".')
    if path.startswith("/locations"):
        verb = {"add": "add", "remove": "remove", "replace": "update"}[op]
        raise HttpError(403, f"It's not allowed to {verb} locations if locations are invisible.")
    if "/" in path[1:]:
        raise HttpError(400, f"Invalid JSON pointer for this resource: '{path}'")
    if op != "remove" and "value" not in given:
        raise HttpError(400, f'Operation "{op}" requires a member named "value".')
    return given


def _changes(image: Values, operations: list[Values], *, older: bool) -> tuple[Values, set[str]]:
    """Return the properties that a JSON patch sets, and those that it removes.

    :param older: it does not set those that are there by ``add``.
    """
    changes: Values = {}
    drop: set[str] = set()
    for each in operations:
        # RFC 6901: "~1" is replaced first, so that "~01" becomes "~1" and not "/".
        name = each["path"][1:].replace("~1", "/").replace("~0", "~")
        present = (name in image or name in changes) and name not in drop
        if each["op"] != "add" and not present:
            raise HttpError(409, f"Property {name} does not exist.")
        if older and each["op"] == "add" and present:
            raise HttpError(409, f"Property {name} already present.")
        if name in ("disk_format", "container_format") and image["status"] != "queued":
            raise HttpError(403, f"Attribute {name} can be only replaced for a queued image.")
        if each["op"] == "remove":
            if name in schemas.IMAGE_PROPERTIES:
                raise HttpError(403, f"Property {name} may not be removed.")
            drop.add(name)
            changes.pop(name, None)
        else:
            drop.discard(name)
            changes[name] = each["value"]
    return changes, drop
