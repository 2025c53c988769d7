"""Message queues, over HTTP and over a websocket.

Knows Keystone's tokens and signed URLs, and no other service.
"""
