"""`ftcluster export`: its errors, all reported at once, and the files that it writes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcluster.cli.main import main
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.export import node_image
from ftcluster.stacks.catalog import load_stacks
from tests.unit.clusters import cluster, host
from tests.unit.shell import Said, Shell

TWO = [host(name, cores=16, network_address=name) for name in ("n1", "n2")]


def write_facts(folder: Path, facts: ClusterFacts) -> str:
    path = folder / "facts.json"
    path.write_text(json.dumps(facts.to_dict()))
    return str(path)


@pytest.fixture
def k8s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    facts = write_facts(tmp_path, cluster(*TWO))

    def run(*words: str) -> tuple[int, str, str]:
        given = () if "--facts" in words else ("--facts", facts)
        code = main(["export", "k8s", *given, *words])
        out, err = capsys.readouterr()
        return code, out, err.replace(str(tmp_path), "FOLDER")

    return run


@pytest.mark.parametrize(
    "words",
    [
        "mrpc --image= --name Mrpc_1 --namespace a_b --claim /mnt --token-secret=-x "
        "--node-selector spr --node-selector a=b=c --spares 1 --kind trainjob --min-nodes 2 "
        "--nodes 3",
        f"mrpc --image x --name {'a' * 41}",
        "mrpc --image x training.ddp_backend=impi",
        "mrpc --image x --min-nodes 3",
        "mrpc --image x --node-selector spr",
        "mrpc --image x --node-selector gen=spr --node-selector gen=gnr --claim=",
        f"mrpc --image x --namespace ml.team --claim a..b --token-secret {'s' * 64}",
        f"mrpc --image x --namespace {'n' * 64} --claim {'.'.join(['c' * 60] * 5)}",
        "unknown --image=",
        "mrpc --image x --facts missing.json",
    ],
)
def test_wrong_input(words: str, k8s: Callable[..., tuple[int, str, str]], said: Said) -> None:
    code, out, err = k8s(*words.split())
    assert out == ""
    said(f"{code} {err}")


LABELS = {  # by Kubernetes' own rules
    "spr": False, "=spr": False, "gen=-spr": False, "gen=spr.": False, "a=b=c": False,
    "A.org/gen=spr": False, "org/a/b=c": False, "gen=spr gnr": False, f"{'g' * 64}=spr": False,
    f"gen={'s' * 64}": False, f"{'o' * 254}/gen=spr": False,
    "gen=": True, "gen=spr": True, f"{'g' * 63}={'s' * 63}": True, "intel.com/gen_1=A.b-c": True,
}  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_labels_of_nodes(label: str, k8s: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = k8s("mrpc", "--image", "x", "--node-selector", label)
    assert (code, f"--node-selector: {label!r} is not KEY=VALUE" in err) == (
        (0, False) if LABELS[label] else (2, True)
    )
    key, _, value = label.partition("=")
    assert (f"'{key}': '{value}'" in out) == LABELS[label]


@pytest.mark.parametrize(
    "facts",
    [
        cluster(*(host(name, cores=16, stack="intel-2.8") for name in ("n1", "n2"))),
        cluster(host("n1", cores=16), host("n2", cores=32), host("n3", cores=32)),
    ],
    ids=["ipex", "mixed"],
)
def test_nodes_without_an_image_or_of_several_kinds(
    facts: ClusterFacts,
    tmp_path: Path,
    k8s: Callable[..., tuple[int, str, str]],
    said: Said,
) -> None:
    path = write_facts(tmp_path, facts)
    code, out, err = k8s("quickstart", "ranks_per_host=1", "--image", "x", "--facts", path)
    assert (code, out) == (1, "")
    said(err)


TEMPLATES = {
    "rights": "spec:\n  hostNetwork: true\n  containers: []\nkind: Job\n",
    "types": (
        "metadata:\n  labels: {a: 1}\n  annotations: [x]\n"
        "spec:\n  tolerations: {key: a}\n  priorityClassName: 5\n  imagePullSecrets: [registry]\n"
    ),
    "reserved": (
        "metadata:\n  labels: {app.kubernetes.io/name: x, sidecar.istio.io/inject: 'true', -a: b}\n"
        "spec:\n  nodeSelector: {a: b c}\n"
    ),
    "yaml": "spec: {tolerations: [\n",
    "no mapping": "- spec\n",
    "twice": "spec:\n  tolerations: []\n  tolerations: []\n",
    "sections": "metadata: []\nspec: 1\n",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_pods_with_problems(
    name: str, tmp_path: Path, k8s: Callable[..., tuple[int, str, str]], said: Said
) -> None:
    (tmp_path / "pod.yaml").write_text(TEMPLATES[name])
    code, out, err = k8s("mrpc", "--image", "x", "--pod-template", "pod.yaml")
    assert (code, out) == (2, "")
    said(err)


def test_a_missing_template_of_pods(k8s: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = k8s("mrpc", "--image", "x", "--pod-template", "none.yaml")
    assert (code, out) == (2, "")
    assert "--pod-template: none.yaml cannot be read: No such file or directory" in err


def test_no_facts_at_all(shell: Shell) -> None:
    assert "no cluster has been set up" in shell("export k8s quickstart --image x", 1).err


def test_folders_of_this_machine_are_to_be_copied_to_the_volume(
    tmp_path: Path, k8s: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\na,b\nb,a\n")
    code, out, err = k8s("classify", "--data", str(tmp_path / "reviews.csv"), "--image", "x")
    assert code == 0
    [line] = err.splitlines()
    there = line.removesuffix(" on the volume").rpartition(" to ")[2]
    assert there.startswith("/mnt/ftcluster/data/")
    assert line == f"before the launch, copy FOLDER/reviews.csv to {there} on the volume"
    assert f'"data": "{there}/reviews.csv"' in out


def test_a_folder_with_manifests_and_what_the_image_is_built_from(
    tmp_path: Path, k8s: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text, _ = k8s("mrpc", "--image", "x")
    roles = tmp_path / "roles"
    (roles / "node_agent/files").mkdir(parents=True)
    wheel = roles / "node_agent/files/ftcluster_train-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK\xff")
    (roles / "torch_stack").symlink_to(node_image.collection() / "roles/torch_stack")
    folder = tmp_path / "out"
    assert k8s("mrpc", "--image", "x", "-o", str(folder))[0] == 1  # a checkout has no wheel
    assert not folder.exists()
    monkeypatch.setattr(node_image, "collection", lambda: tmp_path)
    code, out, _ = k8s("mrpc", "--image", "x", "-o", str(folder))
    assert code == 0
    assert out.splitlines() == sorted(out.splitlines(), key=lambda line: "/image/" in line)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    names = ("Dockerfile", "requirements.txt", wheel.name)
    manifests = ("pytorchjob.yaml", "claim.yaml", "copy.yaml")
    assert files == {*manifests, *(f"image/{name}" for name in names)}
    assert (folder / "pytorchjob.yaml").read_text() == text
    assert (folder / "image" / wheel.name).read_bytes() == wheel.read_bytes()
    lock = (folder / "image/requirements.txt").read_text()
    assert lock.startswith("--extra-index-url https://")
    assert "\ntorch==" in lock


def test_stacks_with_and_without_an_image() -> None:
    names = [stack.name for stack in load_stacks().values() if not node_image.why_no_image(stack)]
    assert names == ["native", "native-trackers", "native-2.14"]
