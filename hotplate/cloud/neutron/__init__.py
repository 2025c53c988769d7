"""Neutron: networks, subnets, ports, routers, floating addresses, security groups.

Requests are checked and stored as in Neutron, with its error messages; no packet passes through
this code.
"""
