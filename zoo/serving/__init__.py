"""Policies at network addresses: served to robots and other simulators, and evaluated where others serve them."""
