"""A small netlink client: just the messages that slots and their packet filter need, many in one system call.

Why not a library: making one slot takes 9 ms with pyroute2 0.9 and 3 ms here, most
of it in the kernel; changing one set element through libnftables took 40 ms beside 1000 slots and takes 0.1 ms
here. Numbers and how they were taken: docs/adr/0005-netlink-of-our-own.md.
"""
