"""Code shared by the packages of the control node and of the hosts. Standard library only."""

RELEASE = "0.1.0"  # version of both packages and of galaxy.yml; tag v0.1.0

try:  # the build writes this module, see hatch_version.py
    from ftcluster_common._version import __version__ as __version__
except ImportError:  # not built: this is a checkout
    __version__ = f"{RELEASE}.dev0"
