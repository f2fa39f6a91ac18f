"""Events of playbooks that contain an answer."""

from typing import Any

from ftcluster.ansible.answers import SET_FACT, Answer
from ftcluster.ansible.playbook import TaskEvent


def answer_event(answer: Answer[Any], value: Any, host: str = "a", **changes: Any) -> TaskEvent:
    """Return the event of the task that returns the answer."""
    result = {answer.key: value}
    if answer.action == SET_FACT:
        result = {"ansible_facts": result}
    of_task = {"task": answer.task, "host": host, "action": answer.action, "result": result}
    return TaskEvent(**{"kind": "ok", "stage": "a play", **of_task, **changes})
