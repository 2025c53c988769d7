"""Neutron's part: networks, subnets, ports, routers, floating addresses, security groups.

What is asked for is checked and kept as Neutron keeps it, with its words for what is wrong; no
packet passes here.
"""
