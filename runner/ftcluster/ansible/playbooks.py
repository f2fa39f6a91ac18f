"""The contract with the collection's playbooks: their variables and their answers.

Each field of a class is named after a variable that the playbook reads.
`tests/unit/ansible/test_playbooks.py` compares variables and answers with the YAML files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from ftcluster.ansible import answers
from ftcluster.ansible.answers import Answer

COLLECTION = "ftcluster.cluster"
FOLLOW = f"{COLLECTION}.follow"  # module that transfers a run's events
SETUP_LOCK = f"{COLLECTION}.setup_lock"
CHECK_KEY, ASK_KEY = "Check the key", "Ask for the key"  # tasks whose failure is an expected result


@dataclass(frozen=True)
class Variables:
    """The variables of a playbook; None means that the inventory or the default sets a variable."""

    def variables(self) -> dict[str, Any]:
        """Return all variables by name, including the variables of nested parts."""
        values: dict[str, Any] = {}
        for variable in fields(self):
            value = getattr(self, variable.name)
            if isinstance(value, Variables):
                values |= value.variables()
            elif value is not None:
                values[variable.name] = value
        return values


@dataclass(frozen=True)
class Playbook(Variables):
    """A playbook with its variables.

    Attributes:
        name: name of the playbook's file, also used in messages.
        answers: answers that its tasks may return.
    """

    name: ClassVar[str]
    answers: ClassVar[tuple[Answer[Any], ...]] = ()

    @property
    def qualified(self) -> str:
        """The playbook's name for ansible-playbook."""
        return f"{COLLECTION}.{self.name}"


# --- stages


@dataclass(frozen=True)
class ClusterVariables(Variables):
    """The facts about a cluster that the control node saved and the inventory lacks.

    Attributes:
        ftcluster_hosts: pattern that selects the cluster's hosts in the inventory.
        cluster_known_stack: name of the head's stack, needed if --limit excludes the head.
        cluster_known_addresses: address of each host that --limit excludes, by host name.
    """

    ftcluster_hosts: str | None = None
    cluster_known_stack: str | None = None
    cluster_known_addresses: dict[str, str] | None = None


@dataclass(frozen=True)
class Stages(Playbook):
    """A playbook of stages; `ClusterVariables` selects its hosts."""

    answers: ClassVar[tuple[Answer[Any], ...]] = (answers.HOSTS, answers.FACTS)


@dataclass(frozen=True)
class Facts(Stages):
    """The playbook that gathers the facts of the hosts."""

    name = "facts"


@dataclass(frozen=True)
class Preflight(Stages):
    """The playbook that gathers facts and refuses hosts that cannot train."""

    name = "preflight"
    answers = (*Stages.answers, answers.PROBLEMS, answers.NOTICES, answers.CHOICE)


@dataclass(frozen=True)
class Setup(Stages):
    """The playbook that sets a cluster up.

    Attributes:
        torch_stack_name: name of a stack, or "auto".
        torch_stack_bundle: file on the control node with the stack's wheels.
        torch_stack_allow_yanked: True to accept a stack with withdrawn releases.
        torch_stack_allow_unverified: True to accept a stack that lacks hashes of some packages.
        node_agent_downgrade: True if an older node package may replace a newer one.
        ftcluster_prune: True if unused stacks are removed.
    """

    torch_stack_name: str | None = None
    torch_stack_bundle: str | None = None
    torch_stack_allow_yanked: bool | None = None
    torch_stack_allow_unverified: bool | None = None
    node_agent_downgrade: bool | None = None
    ftcluster_prune: bool | None = None

    name = "setup"
    answers = (
        *Preflight.answers, answers.REPORT, answers.TABLE, answers.CURRENT, answers.MEASURED,
        answers.LACKS,
    )  # fmt: skip


@dataclass(frozen=True)
class Mesh(Stages):
    """The playbook that lets a head log in to the other hosts.

    Attributes:
        mesh_head: name of a run's head; None for the cluster's head.
    """

    mesh_head: str | None = None

    name = "mesh"


@dataclass(frozen=True)
class Rollback(Stages):
    """The playbook that switches back to the previous stack."""

    name = "rollback"
    answers = (*Stages.answers, answers.PREVIOUS)


@dataclass(frozen=True)
class Teardown(Stages):
    """The playbook that removes a cluster."""

    name = "teardown"
    answers = (*Stages.answers, answers.ORPHANS)


@dataclass(frozen=True)
class Unlock(Stages):
    """The playbook that releases the lock of a setup."""

    name = "unlock"


@dataclass(frozen=True)
class Check(Stages):
    """The playbook that measures a cluster without changing anything."""

    name = "check"
    answers = (*Preflight.answers, answers.REPORT, answers.TABLE)


@dataclass(frozen=True)
class SystemReport(Stages):
    """The playbook that collects facts about each host's system. The hosts need no Python."""

    name = "system_report"
    answers = (answers.SYSTEM,)


@dataclass(frozen=True)
class Record(Stages):
    """The playbook that changes the cluster's record on the head.

    Attributes:
        record_changes: changes, see the module `cluster_record`.
        ftcluster_prefix: folder of the cluster.
        ftcluster_root: "false" for a cluster of the login user.
    """

    record_changes: dict[str, Any]
    ftcluster_prefix: str
    ftcluster_root: str | None = None

    name = "record"
    answers = (*Stages.answers, answers.RECORDED)


# --- runs


@dataclass(frozen=True)
class RunFolder(Variables):
    """The location of runs on the hosts.

    Attributes:
        train_head: name of the head in the inventory.
        train_rank_user: account that runs the ranks; empty for the login user.
        train_stack: link to the stack in use.
        train_runs: folder of all runs.
        train_run: id of a run, or its beginning; empty for all runs.
        train_run_dir: folder of the run.
    """

    train_head: str
    train_rank_user: str
    train_stack: str
    train_runs: str
    train_run: str
    train_run_dir: str


@dataclass(frozen=True)
class Runs(Playbook):
    """The playbook that lists a page of the runs on each host.

    Attributes:
        runs_beginnings: beginnings of the ids of the runs to list; empty for all runs.
        runs_skip: number of runs on earlier pages.
        runs_most: maximum number of runs on a page; 0 for as many as fit into an answer.
    """

    at: RunFolder
    runs_beginnings: list[str]
    runs_skip: int
    runs_most: int

    name = "runs"
    answers = (answers.RUNS_LISTED,)


@dataclass(frozen=True)
class Jobs(Playbook):
    """The playbook that finds runs by the beginning of their ids on each host that responds."""

    at: RunFolder

    name = "jobs"
    answers = (answers.JOBS_FOUND,)


@dataclass(frozen=True)
class Clean(Playbook):
    """The playbook that removes the folders of ended runs.

    Attributes:
        clean_runs: ids of the runs.
    """

    at: RunFolder
    clean_runs: list[str]

    name = "clean"
    answers = (answers.clean_removed(()),)


@dataclass(frozen=True)
class Caches(Playbook):
    """The playbook that reports the size of the hosts' caches.

    Attributes:
        caches_clear: True to remove files that no run uses.
        caches_running: ids of further runs whose cached files are in use; each host adds its own
            runs.
    """

    at: RunFolder
    caches_clear: bool
    caches_running: list[str]

    name = "caches"
    answers = (answers.CACHES_FOUND,)


@dataclass(frozen=True)
class Logs(Playbook):
    """The playbook that copies logs of a run.

    Attributes:
        logs_copies: file on the control node for each log, by the log's name in the run's folder.
        logs_follow: True to follow a log while it grows; only possible with a single log.
    """

    at: RunFolder
    logs_copies: Mapping[str, str]
    logs_follow: bool

    name = "logs"


@dataclass(frozen=True)
class Fetch(Playbook):
    """The playbook that copies the model of a run, or the files that its script wrote.

    Attributes:
        fetch_path: folder on the head.
        fetch_destination: folder on the control node.
        fetch_newer: file on the head; only files newer than this file are copied. Empty to copy
            all files.
    """

    at: RunFolder
    fetch_path: str
    fetch_destination: str
    fetch_newer: str = ""

    name = "fetch"


@dataclass(frozen=True)
class Ask(Playbook):
    """The playbook that asks the hosts for facts that `ftcluster run` needs before a launch.

    Attributes:
        run_script: dictionary whose field `look` is the path of a script, or -m and a module's
            name.
        ask_stack: True to make each host describe its stack.
    """

    at: RunFolder
    run_script: dict[str, list[str]]
    ask_stack: bool

    name = "ask"
    answers = (answers.SCRIPT_FOUND, answers.STACK_DESCRIBED)


@dataclass(frozen=True)
class Data(Playbook):
    """The playbook that reports the data and target tokens that a training run would use.

    Attributes:
        train_folders, train_hub_token: see `Train`.
        data_job: content of the training run's job.json.
    """

    at: RunFolder
    train_folders: list[dict[str, str]]
    train_hub_token: str
    data_job: dict[str, Any]

    name = "data"
    answers = (answers.DATA_READ,)


@dataclass(frozen=True)
class RunEvents(Variables):
    """The variables of playbooks that follow a run.

    Attributes:
        train_events: file on the control node that receives the run's events.
        train_output: named pipe on the control node that receives a script's output; "" for none.
    """

    at: RunFolder
    train_events: str
    train_output: str = ""


@dataclass(frozen=True)
class Attach(Playbook):
    """The playbook that follows a launched run, and restarts the run's supervisor if it died."""

    events: RunEvents

    name = "attach"


@dataclass(frozen=True)
class Stop(Playbook):
    """The playbook that stops a run.

    Attributes:
        stop_force: True to stop the run even though its supervisor does not end.
        stop_by: user and host of this command, such as `ops on bastion`.
    """

    events: RunEvents
    stop_force: bool
    stop_by: str = ""

    name = "stop"
    answers = (answers.RUN_STOPPED,)


@dataclass(frozen=True)
class Launched(Variables):
    """The variables common to every launch.

    Attributes:
        train_launch, train_job: contents of launch.json and job.json.
        train_follow: True to follow the run to its end.
        train_guard: secret of the run.
        train_version: version of ftcluster on the control node.
        train_format: format of launch.json and job.json.
        train_later_fields: fields of launch.json and job.json that format 0 does not have.
        train_known: stack, and SHA-256 of the cluster's record, on which the plan is based. They
            are compared with the head's current values; empty to skip the comparison.
        train_secret_env: environment variables of the ranks, see `pack_env`; empty for none.
        train_webhook: address that the head notifies; empty for none.
    """

    train_launch: dict[str, Any]
    train_job: dict[str, Any]
    train_follow: bool
    train_guard: str
    train_version: str
    train_format: int
    train_later_fields: list[str]
    train_known: dict[str, str]
    train_secret_env: str = ""
    train_webhook: str = ""


@dataclass(frozen=True)
class Train(Playbook):
    """The playbook that launches a training run and follows it.

    Attributes:
        train_folders: folders to copy, each with `source` on the control node and `path` on hosts.
        train_hub_token: token for downloads of model and data; empty for none.
        train_prompts: file on the control node to which the user's prompts are added during the
            run; empty for none.
        train_options: content of options.json; empty for none.
    """

    events: RunEvents
    launch: Launched
    train_folders: list[dict[str, str]]
    train_hub_token: str
    train_prompts: str = ""
    train_options: dict[str, Any] = field(default_factory=dict)

    name = "train"
    answers = (answers.CLUSTER_CHANGED,)


@dataclass(frozen=True)
class RunScript(Playbook):
    """The playbook that launches a user's own script and follows it.

    Attributes:
        run_script: `source` (folder on the control node; empty to copy nothing), `files` (names of
            the files in `source`), `folder` (folder of the copy on the hosts), `look` (a path, or
            -m and a module, which must already exist on the hosts).
        run_layer: overlay with the script's own packages: `path` (folder on the hosts; empty for
            no overlay), `stack` (stack that the overlay extends), `lock` and `wheels` (paths on the
            control node).
        run_hub_token: the ranks' token for the Hugging Face Hub; empty for none.
    """

    events: RunEvents
    launch: Launched
    run_script: dict[str, Any]
    run_layer: dict[str, str]
    run_hub_token: str

    name = "run"
    answers = (answers.CLUSTER_CHANGED,)


# --- ssh


@dataclass(frozen=True)
class HostKeys(Playbook):
    """The playbook that asks ssh for the keys of hosts.

    Attributes:
        host_keys_folder: folder on the control node for the keys.
        host_keys_ssh_args: options that Ansible passes to ssh.
    """

    host_keys_hosts: list[str]
    host_keys_folder: str
    host_keys_ssh_args: str

    name = "host_keys"
    answers = (answers.SSH_WAY,)
