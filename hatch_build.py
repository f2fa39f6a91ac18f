"""Build hook of the control package: carries the node package along as a wheel.

The control node has to hand `ftcluster_train` to the cluster's hosts as an ordinary wheel, and it
must be of the same sources; building both in one step leaves no way for them to differ.
"""

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

INSTALLED_AT = "ansible_collections/ftcluster/cluster/roles/node_agent/files"


class NodeWheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds train/, and puts its wheel and the version's module into the control package."""

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
