"""The files of ``deploy/`` pass the linters of their kinds, and their commands start real nodes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from bedrockish import connect
from bedrockish.config.config import Config, build
from tests.test_tidy import ROOT
from tools.cluster import clean_environment, free_ports

DEPLOY = ROOT / "deploy"
PROGRAM = [sys.executable, "-m", "bedrockish.cli.main"]


def run(*command: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(name: str) -> str:
    """Return a linter that is installed next to this Python."""
    return str(Path(sys.executable).parent / name)


def comment(file: str) -> list[str]:
    """Return the commands in the comment at the beginning of a file, those that go on in the next line in one."""
    head = re.match(r"(#.*\n)+", (DEPLOY / file).read_text())
    assert head is not None
    text = re.sub(r"^# ?", "", head[0], flags=re.MULTILINE).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith("  ")]


def variables(env: Any) -> dict[str, str]:
    return dict(env) if isinstance(env, dict) else {one["name"]: one["value"] for one in env}


def stateful_set() -> Any:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return next(one for one in documents if one["kind"] == "StatefulSet")


def shim(place: Path) -> dict[str, str]:
    """Return an environment in which ``bedrockish`` is this checkout's."""
    file = place / "bin" / "bedrockish"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    file.chmod(0o755)
    environment = clean_environment()
    return {**environment, "PATH": f"{file.parent}:{environment.get('PATH', os.defpath)}"}


def test_dockerfile_passes_hadolint() -> None:
    run(script("hadolint"), DEPLOY / "Dockerfile")


def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    """The page has the configuration with its rules; promtool reads it, if it is installed."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "deploying.md").read_text(), re.DOTALL)
    (job,) = yaml.safe_load(text)["scrape_configs"]
    (rules,) = yaml.safe_load(text)["rule_files"]
    assert "bedrockish" in job["job_name"]
    assert 'job=~".*bedrockish.*"' in (ROOT / "docs" / rules).read_text()
    for name in (job["authorization"]["credentials_file"], job["tls_config"]["ca_file"]):
        (tmp_path / name).write_text("x")
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copy(ROOT / "docs" / rules, tmp_path)
    if promtool := shutil.which("promtool"):
        assert "SUCCESS" in run(promtool, "check", "config", tmp_path / "prometheus.yml")


def test_image_gets_exactly_the_files_of_the_wheel() -> None:
    """The image gets nothing else of the checkout: no private environment, no history, no secrets."""
    taken = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert taken == {"bedrockish", "journal", "net", "LICENSE", "README.md", "pyproject.toml"}
    assert all((ROOT / name).exists() for name in taken)


def test_compose_file_fits_its_schema() -> None:
    run(script("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_manifests_pass_kubernetes_validation() -> None:
    run(script("kubernetes-validate"), "--strict", DEPLOY / "kubernetes.yaml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_unit_passes_systemd_verification(tmp_path: Path) -> None:
    shim(tmp_path)
    unit = tmp_path / "bedrockish@.service"
    text = (DEPLOY / unit.name).read_text()
    assert "ExecStart=/usr/local/bin/bedrockish serve --config %i.toml\n" in text
    unit.write_text(text.replace("/usr/local/bin/bedrockish", str(tmp_path / "bin" / "bedrockish")))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    assert not [line for line in said.stderr.splitlines() if "bedrockish@" in line]
    assert said.returncode == 0, said.stderr


def test_each_service_of_the_compose_file_is_a_node_of_init(tmp_path: Path) -> None:
    """The mounted folder has the configuration that the variable names, and peers have the services' names."""
    line = next(line for line in comment("compose.yaml") if line.startswith("bedrockish init"))
    _, command, place, *rest = line.split()
    run(*PROGRAM, command, tmp_path / place, *rest)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service, told in services.items():
        folder, inside = told["volumes"][0].split(":")
        assert inside == "/node"
        file = tmp_path / folder / variables(told["environment"])["BEDROCKISH_CONFIG"]
        built = build(text=file.read_text(), file=str(file), environment={}, flags={})
        assert sorted(str(address) for address in built.peers.values()) == sorted(f"{name}:7373" for name in services)
        assert str(built.peers[built.node]) == f"{service}:7373"
        assert (str(built.listen), str(built.http)) == ("0.0.0.0:7373", "0.0.0.0:8080")


def pod_config(number: int) -> Config:
    [container] = stateful_set()["spec"]["template"]["spec"]["containers"]
    flags = {"node": f"N{number}", "database": f"/node/N{number}.db"}
    return build(text=None, file="", environment=variables(container["env"]), flags=flags)


def test_kubernetes_pods_run_as_a_cluster_of_three(tmp_path: Path) -> None:
    """Each pod runs its command, with the certificates of ``init``; only addresses and folders are this machine's."""
    init = next(line for line in comment("kubernetes.yaml") if line.startswith("bedrockish init"))
    _, command, place, *nodes = init.split()
    run(*PROGRAM, command, tmp_path / place, *nodes)
    certs = tmp_path / "certs"
    certs.mkdir()
    for file in (tmp_path / place).glob("N?/certs/*"):
        shutil.copy(file, certs)
    spec = stateful_set()["spec"]
    assert spec["replicas"] == 3
    for number in range(3):
        built = pod_config(number)
        assert built.security.tls == "/certs"
        assert str(built.peers[f"N{number}"]) == f"bedrockish-{number}.{spec['serviceName']}:7373"
    [container] = spec["template"]["spec"]["containers"]
    ports = free_ports(3)
    peers = ",".join(f"N{number}=127.0.0.1:{port}" for number, port in enumerate(ports))
    environment = {**shim(tmp_path), **variables(container["env"])}
    environment |= {"BEDROCKISH_PEERS": peers, "BEDROCKISH_TLS": str(certs)}
    started = []
    try:
        for number, port in enumerate(ports):
            own = {"HOSTNAME": f"bedrockish-{number}", "BEDROCKISH_LISTEN": f"127.0.0.1:{port}"}
            words = [word.replace("/node/", f"{tmp_path}/") for word in container["command"]]
            with (tmp_path / f"{number}.log").open("wb") as log:
                started.append(subprocess.Popen(words, env={**environment, **own}, stdout=log, stderr=log))
        client = tmp_path / place / "client"
        files = "&".join(
            f"{key}={client / file}" for key, file in {"ca": "ca.pem", "cert": "app.pem", "key": "app-key.pem"}.items()
        )
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        with connect(f"bedrockish://{hosts}/?connect_timeout=30&{files}") as db:
            db.execute("CREATE TABLE t(x)")
            db.execute("INSERT INTO t VALUES (1)", timeout=30)
    finally:
        for one in started:
            one.terminate()
        for one in started:
            one.wait(30)
    assert [one.returncode for one in started] == [0, 0, 0], (tmp_path / "0.log").read_text()
