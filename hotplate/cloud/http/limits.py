"""Limits on requests: the defaults of the real services, and those of this process.

The numbers of the first part are the defaults of the services themselves; a deployment may set
others.  :attr:`hotplate.cloud.options.CloudOptions.lift_limits` lifts them.
"""

#: Heat: ``[DEFAULT] max_json_body_size`` (``heat/common/wsgi.py``); a larger one is answered with
#: 400.  It also limits a signal in a TempURL's object (``clients/os/swift.py``).
JSON_BODY = 1 << 20

#: Heat: ``[DEFAULT] max_resources_per_stack`` (``heat/common/config.py``).
RESOURCES = 1000

#: Keystone: ``[oslo_middleware] max_request_body_size`` (``oslo_middleware/sizelimit.py``, in the
#: pipeline of ``keystone/server/flask/core.py``); a larger one is answered with 413.
KEYSTONE_BODY = 114688

#: Zaqar: ``[transport] max_messages_post_size``, ``max_queue_metadata``, ``max_messages_per_page``,
#: ``max_queues_per_page`` and ``max_messages_per_claim_or_pop``, ``default_message_ttl``,
#: ``max_message_delay``, the longest name of a queue, the shortest and ``max_message_ttl``
#: (``zaqar/conf/transport.py``, ``zaqar/transport/validation.py``); more is answered with 400.
ZAQAR_POST = 256 * 1024
ZAQAR_METADATA = 64 * 1024
ZAQAR_PAGE = 20
ZAQAR_DEFAULT_TTL = 3600
ZAQAR_DELAY = 900
ZAQAR_NAME = 64
ZAQAR_TTL = (60, 1209600)

#: Swift: the constraints on names, metadata and the other headers
#: (``swift/common/constraints.py``); more is answered with 400.
SWIFT_OBJECT_NAME = 1024
SWIFT_CONTAINER_NAME = 256
SWIFT_META_NAME = 128
SWIFT_META_VALUE = 256
SWIFT_META_COUNT = 90
SWIFT_META_OVERALL = 4096
SWIFT_HEADER = 8192

#: A path with its query: ``url_length_limit`` of eventlet, under which Heat and Swift run
#: (``eventlet/wsgi.py``; Swift: ``max_request_line``); more is answered with 414.
REQUEST_LINE = 8192

#: Size of all headers of a request; Heat accepts lines of 16 KiB (``max_header_line``).
HEADERS = 64 * 1024

#: Maximum size of a body, by service, because responses are built in this process.
#: Real services accept no larger ones by default, except Swift (``max_file_size``: 5 GiB) and
#: Glance, whose uploads are buffered in a file.
MAX_BODY = {
    "metadata": 64 << 10,
    "keystone": KEYSTONE_BODY,
    "cfn": 2 * JSON_BODY,
    "heat": 2 * JSON_BODY,
    "zaqar": JSON_BODY,
    "swift": 16 << 20,
    "nova": JSON_BODY,
    "neutron": JSON_BODY,
    "glance": 4 << 30,
    "proxy": 16 << 20,
}

#: The same for every service when the limits are lifted.
MAX_BODY_LIFTED = 64 << 20

#: Bytes that a project may store in Swift, and in Zaqar: objects, messages, names, metadata,
#: headers and their rows (:meth:`~hotplate.cloud.database.store.Store.stored`); more is answered
#: with the status of :data:`FULL`.
STORED = 256 << 20

#: The status by which a service reports that a project has no room left: those of Swift's
#: ``account_quotas``, and of Zaqar when its storage is full.
FULL = {"swift": 413, "zaqar": 503}

#: Divisor of :data:`STORED`: a guest must have written that part itself, when no room is left, to
#: be reported as a flood, because the servers of a stack share one project.
SHARE = 16

#: The services of Heat, and the bytes that a guest may send to them: Heat's database keeps every
#: signal.  More is answered with 413.
HEAT = frozenset({"heat", "cfn"})
SIGNALLED = 256 << 20

#: Bytes of images that may be uploaded in a session; more is answered with 413.
IMAGES_STORED = 8 << 30

#: Maximum size of an image download, because the response is built in memory.
IMAGE_DOWNLOAD = 256 << 20

#: Maximum number of open connections of a guest; further ones wait.
CONNECTIONS = 64

#: Idle time after which a guest's connection is closed.
IDLE_SECONDS = 120

#: Maximum number of open websockets of a guest; further ones are closed.
WEBSOCKETS = 32

#: Maximum number of subscriptions of a websocket.
SUBSCRIPTIONS = 16

#: Requests that a guest may make at once, and additional ones per second; further ones are answered
#: with 429 and reported as a flood.
REQUESTS = 10_000
REQUESTS_PER_SECOND = 50.0

#: Number of requests of a guest that are answered at once.
THREADS = 4

#: Number of the host's requests to Heat that are answered at once.
HEAT_THREADS = 16

#: Number of open files that this process may need for its guests.
DESCRIPTORS = 16_384
