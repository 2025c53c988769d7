"""A run in somebody else's cloud: the same template, events and verdict, and nothing left there.

The cloud is asked over its APIs, by openstacksdk and python-heatclient; what it shows becomes
events (:mod:`hotplate.events.kinds`), from which the verdict is computed as for machines of this
host.
"""
