"""Privileged Linux plumbing: network namespaces, nftables, cgroups and mounts."""
