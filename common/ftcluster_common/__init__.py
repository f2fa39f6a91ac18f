"""Code shared by the packages of the control node and of the hosts. Standard library only."""

NEXT_RELEASE = "0.2.0"  # until its tag; hatch_version.py counts on from the newest tag

try:  # the build writes this module, see hatch_version.py
    from ftcluster_common._version import __version__ as __version__
except ImportError:  # not built: this is a checkout
    __version__ = f"{NEXT_RELEASE}.dev0"

# the release of this code; for a development version, the next release
RELEASE = ".".join(__version__.split(".")[:3])
