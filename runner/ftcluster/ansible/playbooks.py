"""The contract with the collection's playbooks: what each is given, and what it answers.

A field is called like the variable that the playbook reads. `tests/unit/ansible/test_playbooks.py`
compares both with the YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ftcluster.ansible import answers
from ftcluster.ansible.answers import Answer

COLLECTION = "ftcluster.cluster"
FOLLOW = f"{COLLECTION}.follow"  # the module that brings a run's events
SETUP_LOCK = f"{COLLECTION}.setup_lock"
CHECK_KEY, ASK_KEY = "Check the key", "Ask for the key"  # tasks whose failures are the answer


@dataclass(frozen=True)
class Variables:
    """Variables of a playbook; those that are None are left to the inventory and the defaults."""

    def variables(self) -> dict[str, Any]:
        """All of them by name, those of a part like its own."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Variables):
                values |= value.variables()
            elif value is not None:
                values[field.name] = value
        return values


@dataclass(frozen=True)
class Playbook(Variables):
    """A playbook with its variables.

    Attributes:
        name: its file's name, which is also what messages call it.
        answers: what may be taken from its tasks.
    """

    name: ClassVar[str]
    answers: ClassVar[tuple[Answer[Any], ...]] = ()

    @property
    def qualified(self) -> str:
        """What ansible-playbook is given."""
        return f"{COLLECTION}.{self.name}"


# --- stages


@dataclass(frozen=True)
class ClusterVariables(Variables):
    """What the control node knows of a cluster beside its inventory.

    Attributes:
        ftcluster_hosts: a pattern, of several clusters in one inventory.
        cluster_known_stack: the name of the head's stack, where --limit leaves the head out.
        cluster_known_addresses: by name, of hosts that --limit leaves out.
    """

    ftcluster_hosts: str | None = None
    cluster_known_stack: str | None = None
    cluster_known_addresses: dict[str, str] | None = None


@dataclass(frozen=True)
class Stages(Playbook):
    """A playbook of stages; which hosts it concerns, `ClusterVariables` say."""

    answers: ClassVar[tuple[Answer[Any], ...]] = (answers.HOSTS, answers.FACTS)


@dataclass(frozen=True)
class Facts(Stages):
    """Gathers the facts of the hosts."""

    name = "facts"


@dataclass(frozen=True)
class Preflight(Stages):
    """Gathers the facts of the hosts and refuses those that cannot train."""

    name = "preflight"
    answers = (*Stages.answers, answers.PROBLEMS, answers.NOTICES, answers.CHOICE)


@dataclass(frozen=True)
class Setup(Stages):
    """Sets a cluster up.

    Attributes:
        torch_stack_name: a stack's name, or "auto".
        torch_stack_bundle: a file of the control node with the stack's wheels.
        torch_stack_allow_yanked, torch_stack_allow_unverified: whether a withdrawn stack, or one
            without hashes, is taken.
        node_agent_downgrade: whether an older node package may replace a newer one.
        ftcluster_prune: whether unused stacks are removed.
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
    )  # fmt: skip


@dataclass(frozen=True)
class Mesh(Stages):
    """Lets the head log in to the other hosts."""

    name = "mesh"


@dataclass(frozen=True)
class Rollback(Stages):
    """Puts the previous stack back into use."""

    name = "rollback"
    answers = (*Stages.answers, answers.PREVIOUS)


@dataclass(frozen=True)
class Teardown(Stages):
    """Removes a cluster."""

    name = "teardown"


@dataclass(frozen=True)
class Unlock(Stages):
    """Releases the lock of a setup."""

    name = "unlock"


@dataclass(frozen=True)
class Check(Stages):
    """Measures a cluster; changes nothing."""

    name = "check"
    answers = (*Preflight.answers, answers.REPORT, answers.TABLE)


@dataclass(frozen=True)
class SystemReport(Stages):
    """Asks each host what its system is, without Python there."""

    name = "system_report"
    answers = (answers.SYSTEM,)


@dataclass(frozen=True)
class Record(Stages):
    """Changes the cluster's record on the head.

    Attributes:
        record_changes: see the module `cluster_record`.
        ftcluster_prefix: the folder of the cluster.
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
    """Where runs are.

    Attributes:
        train_head: the inventory's name of the head.
        train_rank_user: the account that ranks run as; empty: the login user.
        train_stack: the link to the stack in use.
        train_runs: the folder of all runs.
        train_run: a run's id, or its beginning; empty where all are meant.
        train_run_dir: the run's folder.
    """

    train_head: str
    train_rank_user: str
    train_stack: str
    train_runs: str
    train_run: str
    train_run_dir: str


@dataclass(frozen=True)
class Runs(Playbook):
    """Lists a page of the runs that the head knows of.

    Attributes:
        runs_beginnings: only runs whose ids begin with one of these; none: all.
        runs_skip: how many the pages before had.
        runs_most: how many at most; 0: as many as an answer holds.
    """

    at: RunFolder
    runs_beginnings: list[str]
    runs_skip: int
    runs_most: int

    name = "runs"
    answers = (answers.RUNS_LISTED,)


@dataclass(frozen=True)
class Jobs(Playbook):
    """Finds runs by the beginning of their ids on each host that answers."""

    at: RunFolder

    name = "jobs"
    answers = (answers.JOBS_FOUND,)


@dataclass(frozen=True)
class Clean(Playbook):
    """Removes the folders of ended runs.

    Attributes:
        clean_runs: their ids.
    """

    at: RunFolder
    clean_runs: list[str]

    name = "clean"
    answers = (answers.clean_removed(()),)


@dataclass(frozen=True)
class Caches(Playbook):
    """Says how large the hosts' caches are.

    Attributes:
        caches_clear: whether what no run uses is removed.
        caches_running: ids of runs that use theirs, besides those that a host knows of.
    """

    at: RunFolder
    caches_clear: bool
    caches_running: list[str]

    name = "caches"
    answers = (answers.CACHES_FOUND,)


@dataclass(frozen=True)
class Logs(Playbook):
    """Copies logs of a run.

    Attributes:
        logs_copies: by their names in the run's folder, the files of the control node.
        logs_follow: whether while it grows, of a single one.
    """

    at: RunFolder
    logs_copies: Mapping[str, str]
    logs_follow: bool

    name = "logs"


@dataclass(frozen=True)
class Fetch(Playbook):
    """Copies the model of a run, or what its script has written.

    Attributes:
        fetch_path: a folder of the head.
        fetch_destination: a folder of the control node.
        fetch_newer: a file of the head, than which the files are newer; empty: all files.
    """

    at: RunFolder
    fetch_path: str
    fetch_destination: str
    fetch_newer: str = ""

    name = "fetch"


@dataclass(frozen=True)
class Ask(Playbook):
    """Asks the hosts what `ftcluster run` has to know before a launch.

    Attributes:
        run_script: `look` has a path, or -m and a module, that shall be on the hosts.
        ask_stack: whether each host tells what its stack has.
    """

    at: RunFolder
    run_script: dict[str, list[str]]
    ask_stack: bool

    name = "ask"
    answers = (answers.SCRIPT_FOUND, answers.STACK_DESCRIBED)


@dataclass(frozen=True)
class Data(Playbook):
    """Tells what a training would read and learn.

    Attributes:
        train_folders, train_hub_token: as of `Train`.
        data_job: the content of job.json.
    """

    at: RunFolder
    train_folders: list[dict[str, str]]
    train_hub_token: str
    data_job: dict[str, Any]

    name = "data"
    answers = (answers.DATA_READ,)


@dataclass(frozen=True)
class RunEvents(Variables):
    """A run that is followed.

    Attributes:
        train_events: the file of the control node that gets its events.
        train_output: a named pipe there that gets a script's output; "" for none.
    """

    at: RunFolder
    train_events: str
    train_output: str = ""


@dataclass(frozen=True)
class Attach(Playbook):
    """Follows a run that was launched before, and starts its supervisor where it is gone."""

    events: RunEvents

    name = "attach"


@dataclass(frozen=True)
class Stop(Playbook):
    """Ends a run.

    Attributes:
        stop_force: whether without its supervisor, which does not end.
    """

    events: RunEvents
    stop_force: bool

    name = "stop"
    answers = (answers.RUN_STOPPED,)


@dataclass(frozen=True)
class Launched(Variables):
    """What every launch is given.

    Attributes:
        train_launch, train_job: the contents of launch.json and job.json.
        train_follow: whether until the run's end.
        train_guard: a secret word of the run.
        train_version: the version of ftcluster on the control node.
        train_format: the format of launch.json and job.json.
        train_later_fields: their fields that hosts of format 0 do not know.
        train_known: the stack and the SHA-256 of the record that the plan was made of; empty where
            they are not compared.
        train_secret_env: variables of the ranks, see `pack_env`; empty: none.
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


@dataclass(frozen=True)
class Train(Playbook):
    """Launches a training and follows it.

    Attributes:
        train_folders: `source` on the control node and `path` on the hosts of what is copied.
        train_hub_token: for downloads of model and data; empty: none.
        train_prompts: a file of the control node that gets prompts meanwhile; empty: none.
    """

    events: RunEvents
    launch: Launched
    train_folders: list[dict[str, str]]
    train_hub_token: str
    train_prompts: str = ""

    name = "train"
    answers = (answers.CLUSTER_CHANGED,)


@dataclass(frozen=True)
class RunScript(Playbook):
    """Launches a user's own script and follows it.

    Attributes:
        run_script: `source` (a folder of the control node; empty: none is copied), `files` (names
            in it), `folder` (of the copy), `look` (a path, or -m and a module, that is on the
            hosts already).
        run_layer: the script's own packages: `path` (a folder of the hosts; empty: none),
            `stack` (that they are for), `lock` and `wheels` (on the control node).
        run_hub_token: the ranks' token for the Hub; empty: none.
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
    """Asks ssh about the keys of hosts.

    Attributes:
        host_keys_folder: the control node's folder for the keys.
        host_keys_ssh_args: options that Ansible gives to ssh.
    """

    host_keys_hosts: list[str]
    host_keys_folder: str
    host_keys_ssh_args: str

    name = "host_keys"
    answers = (answers.SSH_WAY,)
