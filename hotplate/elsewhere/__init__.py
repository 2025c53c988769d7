"""A run in a remote cloud: the same template, events and verdict; all is removed there.

The cloud is queried over its APIs, by openstacksdk and python-heatclient; its answers become
events (:mod:`hotplate.events.kinds`), from which the verdict is computed as for machines of this
host.
"""
