"""Build hook of the control package: adds the hosts' package as a wheel, and the version.

The control node installs `ftcluster_train` on the hosts as an ordinary wheel, which must have the
same sources. One step builds both, so they cannot differ.
"""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

COLLECTION = "ansible_collections/ftcluster/cluster"
INSTALLED_AT = f"{COLLECTION}/roles/node_agent/files"


class NodeWheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds train/, and puts its wheel and the files with the version into the control package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the control wheel is put together."""
        if version == "editable":
            raise SystemExit(
                "ftcluster cannot be installed in editable mode: it carries the node package as a "
                "built wheel. Run scripts/environment again after a change instead."
            )
        self._out = tempfile.TemporaryDirectory(prefix="ftcluster-node-wheel-")
        builder = WheelBuilder(str(Path(self.root) / "train"))
        for wheel in builder.build(directory=self._out.name, versions=["standard"]):
            build_data["force_include"][wheel] = f"{INSTALLED_AT}/{Path(wheel).name}"
        module = Path(self._out.name) / "_version.py"
        module.write_text(f'__version__ = "{self.metadata.version}"\n', encoding="utf-8")
        build_data["force_include"][str(module)] = "ftcluster_common/_version.py"
        stamped = runpy.run_path(str(Path(self.root) / "hatch_version.py"))["stamped"]
        text = (Path(self.root) / "galaxy.yml").read_text(encoding="utf-8")
        galaxy = Path(self._out.name) / "galaxy.yml"
        galaxy.write_text(stamped(text, self.metadata.version), encoding="utf-8")
        build_data["force_include"][str(galaxy)] = f"{COLLECTION}/galaxy.yml"
