"""The contract of the control node and the hosts; both packages carry it. Standard library only."""

RELEASE = "0.1.0"  # of both packages, and of the collection (galaxy.yml); a tag v0.1.0 marks it

try:  # a build writes the module, see hatch_version.py
    from ftcluster_common._version import __version__ as __version__
except ImportError:  # a checkout
    __version__ = f"{RELEASE}.dev0"
