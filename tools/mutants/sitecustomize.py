"""Processes that tests start import the copy of the tree, not the one that is installed for editing."""

import sys

sys.meta_path[:] = [it for it in sys.meta_path if "pellucid" not in type(it).__module__]
