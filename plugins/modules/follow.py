#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: follow
short_description: Follows the events of a training run
description:
  - Appends each new line of a run's C(events.jsonl) to a file on the control node, over Ansible's
    connection, until the run's C(end) event. A command on the host waits for new lines, so
    following an idle run needs only three sessions per minute.
  - Continues at the end of the local file, so an interrupted follower can be restarted.
  - If the file of events is larger than 8 MiB, the first copy contains only its beginning, its end
    and samples in between, each at its original position; the rest of the copy is a hole.
  - Only the last 4 MiB of a log, and the lines that are written later, are copied.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  run_dir:
    description: The run's folder on the host.
    type: path
    required: true
  file:
    description: Another file in the run's folder, such as C(ranks.log), instead of the events.
    type: path
    default: events.jsonl
  once:
    description: True to copy only the current contents, without waiting for the run's end.
    type: bool
    default: false
  destination:
    description: The file on the control node.
    type: path
    required: true
  output:
    description: >-
      A named pipe on the control node for the output of a script, C(output.jsonl), which is copied
      before the events that were written after it. A file beside it with the suffix C(.at) stores
      the copied length.
    type: path
  prompts:
    description: >-
      A file on the control node whose new lines are added to the run's C(prompts.jsonl) while the
      run waits for them. An empty line every 15 s shows that the user is still
      connected.
    type: path
  poll_seconds:
    description: Pause in seconds after new data. It grows to 2 s while every read returns new data.
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
