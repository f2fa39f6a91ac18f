"""The files from which a container engine builds the node image with a stack."""

from pathlib import Path

from ftcluster.errors import FtclusterError
from ftcluster.paths import collection
from ftcluster.stacks.catalog import Stack

PYTHON = "3.11"  # Python of Debian 12, the image's base
FILES = Path(__file__).with_name("image")


def why_no_image(stack: Stack) -> str:
    """Explain why a stack cannot be in a node image; "" if it can."""
    if stack.has_ipex:
        return f"stack {stack.name} contains IPEX, which is archived and not part of node images"
    if stack.state == "documented" or not stack.fits_python(PYTHON):
        return f"stack {stack.name} cannot be installed on Debian 12, the node image's base"
    return ""


def files_of_image(stack: Stack) -> dict[str, bytes]:
    """Return the image's files by path, below `image/`.

    Raises:
        FtclusterError: the node package is missing, for example in a source checkout.
    """
    roles = collection() / "roles"
    wheels = sorted((roles / "node_agent" / "files").glob("ftcluster_train-*.whl"))
    if not wheels:
        raise FtclusterError(
            "this ftcluster does not contain the node package, which the node image needs",
            "install ftcluster: a checkout contains only the source of the node package",
        )
    lock = (roles / "torch_stack" / "files" / f"{stack.name}.txt").read_text(encoding="utf-8")
    indexes = "".join(f"--extra-index-url {url}\n" for url in stack.indexes.values())
    files = {path.name: path.read_bytes() for path in sorted(FILES.iterdir())}
    files |= {
        "requirements.txt": f"{indexes}{lock}".encode(),
        wheels[-1].name: wheels[-1].read_bytes(),
    }
    return {f"image/{name}": content for name, content in files.items()}
