"""The manifests of docs/guides/kubernetes, held against the real command line, the settings and each other."""

from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from palermo.cli import main
from palermo.settings.settings import Settings
from palermo.worker.signals import SHUTDOWN_TIMEOUT
from tests.doc_pages import ROOT
from tests.test_examples import parse

_MANIFESTS = {path.name: path for path in (ROOT / "docs" / "guides" / "kubernetes").glob("*.yml")}
#: Seconds in which jobs clean up after the shutdown timeout.
_CLEAN_UP = 3
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def objects(kind: str = "") -> list[dict[str, Any]]:
    """All objects of a kind in the manifests."""
    found = [each for path in _MANIFESTS.values() for each in yaml.safe_load_all(path.read_text())]
    return [each for each in found if not kind or each["kind"] == kind]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod of the Deployments, with each of its containers."""
    for deployment in objects("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        yield from ((pod, container) for container in pod["containers"])


def pods() -> list[dict[str, str]]:
    """The labels of the pods."""
    return [each["spec"]["template"]["metadata"]["labels"] for each in objects("Deployment")]


def test_every_manifest_is_named_on_the_page() -> None:
    page = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()

    assert len(_MANIFESTS) == 4
    assert [name for name in _MANIFESTS if f"(kubernetes/{name})" not in page] == []


def test_every_object_has_what_kubernetes_needs() -> None:
    for each in objects():
        assert {"apiVersion", "kind", "metadata"} < set(each), each
        assert each["metadata"]["labels"]["app"] == "palermo"


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_kubernetes_would_take_every_object_of_its_own(version: str) -> None:
    """Strictly: a field that Kubernetes does not know is an error. KEDA's objects are not Kubernetes' own."""
    own = [each for each in objects() if not each["apiVersion"].startswith("keda.sh/")]

    for each in own:
        kubernetes_validate.validate(each, version, strict=True)

    assert {each["kind"] for each in own} == {"Secret", "Deployment", "Service", "Ingress", "NetworkPolicy"}


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    (worker, *_) = objects("Deployment")
    worker["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(worker, kubernetes_validate.latest_version(), strict=True)


def test_containers_run_commands_that_exist() -> None:
    commands = [container["args"] for _, container in containers()]

    assert [command[0] for command in sorted(commands)] == ["web", "worker"]
    for command in commands:
        parse(main, command)


def test_probes_run_commands_that_exist_and_ask_the_worker_of_their_own_container() -> None:
    for _, container in containers():
        for probe in (container[name] for name in _PROBES if "exec" in container.get(name, {})):
            program, *arguments = probe["exec"]["command"]
            assert program == "palermo"
            parse(main, arguments)
            pidfile = arguments[arguments.index("--pidfile") + 1]
            assert pidfile == container["args"][container["args"].index("--pidfile") + 1]


def test_a_worker_that_waits_for_its_broker_is_not_killed_within_ten_minutes() -> None:
    (worker,) = [container for _, container in containers() if container["args"][0] == "worker"]

    assert worker["livenessProbe"]["periodSeconds"] * worker["livenessProbe"]["failureThreshold"] > 600


def test_a_worker_gets_longer_to_stop_than_it_takes() -> None:
    (pod,) = [pod for pod, container in containers() if container["args"][0] == "worker"]

    assert pod["terminationGracePeriodSeconds"] > SHUTDOWN_TIMEOUT + _CLEAN_UP


def test_every_variable_is_a_setting() -> None:
    settings = {f"PALERMO_{name.upper()}" for name in Settings.__struct_fields__}
    named = {each["name"] for _, container in containers() for each in container["env"]}
    kept = {key for secret in objects("Secret") for key in secret["stringData"] if key.isupper()}

    assert named | kept <= settings


def test_every_secret_that_a_container_names_is_there() -> None:
    kept = {secret["metadata"]["name"]: set(secret["stringData"]) for secret in objects("Secret")}

    for pod, container in containers():
        assert {each["secretRef"]["name"] for each in container["envFrom"]} <= set(kept)
        for source in (each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each):
            assert source["key"] in kept[source["name"]]
        for volume in (each["secret"] for each in pod["volumes"] if "secret" in each):
            assert {item["key"] for item in volume["items"]} <= kept[volume["secretName"]]


def test_selectors_choose_pods_that_exist() -> None:
    chosen = [each["spec"]["selector"] for each in objects("Service")]
    chosen += [each["spec"]["selector"]["matchLabels"] for each in objects("Deployment")]
    chosen += [each["spec"]["podSelector"]["matchLabels"] for each in objects("NetworkPolicy")]

    assert len(chosen) == 6
    assert [each for each in chosen if not any(each.items() <= labels.items() for labels in pods())] == []


def test_keda_scales_a_deployment_that_serves_the_queue_that_it_counts() -> None:
    (scaled,) = objects("ScaledObject")
    name = scaled["spec"]["scaleTargetRef"]["name"]
    (worker,) = [each for each in objects("Deployment") if each["metadata"]["name"] == name]
    args = worker["spec"]["template"]["spec"]["containers"][0]["args"]
    (trigger,) = scaled["spec"]["triggers"]

    assert trigger["metadata"]["queueName"] == args[args.index("-q") + 1]
    assert scaled["spec"]["minReplicaCount"] >= 1


def test_the_pages_are_reached_at_the_port_and_by_the_name_that_they_allow() -> None:
    (web,) = [container for _, container in containers() if container["args"][0] == "web"]
    (ingress,) = objects("Ingress")
    (policy,) = [each for each in objects("NetworkPolicy") if each["metadata"]["name"] == "palermo-web"]
    port = int(web["args"][web["args"].index("--port") + 1])

    assert [each["containerPort"] for each in web["ports"]] == [port]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": port}]
    assert ingress["spec"]["rules"][0]["host"] == web["args"][web["args"].index("--allow-host") + 1]


@pytest.mark.parametrize("name", ["runAsNonRoot", "runAsUser"])
def test_containers_do_not_run_as_root_and_write_only_to_tmp(name: str) -> None:
    for pod, container in containers():
        assert pod["securityContext"][name]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert "/tmp" in {each["mountPath"] for each in container["volumeMounts"]}
