"""Message queues, over HTTP and over a websocket.

It knows Keystone's tokens and signed URLs, but no other service.
"""
