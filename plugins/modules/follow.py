#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, where the work is done."""

from __future__ import annotations

DOCUMENTATION = r"""
module: follow
short_description: Follow the events of a training run
description:
  - Appends each new line of a run's C(events.jsonl) to a file on the control node while it is
    written, over the connection that Ansible has, until the run's C(end) event. A command on the
    host waits for them, so that an idle run costs three sessions a minute.
  - Goes on where the local file ends, so that a broken-off follower can be started again.
  - Of events of more than 8 MiB, a first copy has the beginning, the end, and samples between them,
    each at its place; the rest of the file is a hole.
  - Of a log only the last 4 MiB are copied, and then what comes.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  run_dir:
    description: The run's folder on the host.
    type: path
    required: true
  file:
    description: Another file of the run's folder, such as C(ranks.log), instead of the events.
    type: path
    default: events.jsonl
  once:
    description: Whether to copy only what the file has now, and not what comes until the run's end.
    type: bool
    default: false
  destination:
    description: The file on the control node.
    type: path
    required: true
  output:
    description: >-
      A named pipe on the control node for the output of a script, C(output.jsonl), which is copied
      before the events that were written after it. Beside it, in a file with the suffix C(.at), is
      how much of it has been copied.
    type: path
  prompts:
    description: >-
      A file on the control node whose lines are added to the run's C(prompts.jsonl) as they come,
      while the run waits for them. An empty line every 15 s tells that somebody is still there.
    type: path
  poll_seconds:
    description: Pause after what has come; it grows to 2 s while something always has.
    type: float
    default: 0.5
"""

EXAMPLES = r"""
- name: Follow the run
  ftcluster.cluster.follow:
    run_dir: /opt/ftcluster/runs/quickstart-20260131-101500
    destination: runs/events.jsonl
"""

RETURN = r"""
end:
  description: The run's C(end) event.
  returned: success
  type: dict
  sample: {event: end, state: done, exit_code: 0, seconds: 61.2}
"""
