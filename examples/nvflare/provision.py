"""Makes the keys and settings of a federation over NVFlare, one directory for each machine.

  python examples/nvflare/provision.py --server=pflego.example.org --sites=north,south \
      --directory=kits

`kits/SERVER`, `kits/SITE` and `kits/admin@example.com` go to whom they are named after, and nobody
else: each has a private key. NVFlare's own provisioning makes them; a job may then name the carrier
alone and bring no code, and logs stay where they are. It needs NVFlare's program on the PATH.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ADMIN = "admin@example.com"
_CARRIER = "tf_pflego_carrier"


def main() -> int:
    """Makes them; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True, help="its name, by which sites reach it")
    parser.add_argument("--port", type=int, default=8002, help="the one that it listens at")
    parser.add_argument("--sites", required=True, help="names of the clients, with commas between")
    parser.add_argument("--directory", type=pathlib.Path, required=True, help="a new one")
    parser.add_argument("--storage", default="/var/tmp/nvflare", help="of NVFlare at each machine")
    options = parser.parse_args()
    options.directory.mkdir(mode=0o700)
    about = options.server, options.port, options.sites.split(",")
    provision(*about, options.directory, options.storage, _run)
    return 0


def provision(server, port, sites, directory, storage, run) -> None:
    """Makes the kits in a directory; `run` starts a command and waits for it."""
    sides = [
        {"name": server, "type": "server", "fed_learn_port": port},
        *({"name": site, "type": "client"} for site in sites),
        {"name": ADMIN, "type": "admin", "role": "project_admin"},
    ]
    names = ("workspace.Workspace", "static_file.StaticFile", "cert.Cert", "signature.Signature")
    builders = [{"path": f"nvflare.lighter.impl.{name}Builder", "args": {}} for name in names]
    builders[0]["args"]["template_file"] = "master_template.yml"
    sides = [{"org": "here", **side} for side in sides]
    project = {"api_version": 3, "name": "here", "participants": sides, "builders": builders}
    file = _written(directory / "project.yml", **project)  # JSON is YAML.
    run("provision", "nvflare", "provision", "-p", file, "-w", directory, "--force")
    made = directory / "here" / "prod_00"
    for kit in (server, *sites):
        local = made / kit / "local"
        text = (local / "resources.json.default").read_text()
        resources = json.loads(text.replace("/tmp/nvflare", str(storage)))
        resources["class_allow_list"] = [f"{_CARRIER}.AtServer", f"{_CARRIER}.AtClient"]
        _written(local / "resources.json", **resources | {"allow_log_streaming": False})
        rights = {"project_admin": {"submit_job": "any"}}
        _written(local / "authorization.json", format_version="1.0", permissions=rights)
    for kit in (server, *sites, ADMIN):
        (made / kit).rename(directory / kit)
    _write_job(directory / ADMIN / "job", sites)


def _write_job(job, sites):
    """Writes the job, which names the carrier at the server and at the clients."""
    server = {"id": "carrier", "path": f"{_CARRIER}.AtServer"}
    client = {"tasks": ["*"], "executor": {"path": f"{_CARRIER}.AtClient"}}
    config = job / "app" / "config"
    config.mkdir(parents=True)
    _written(config / "config_fed_server.json", format_version=2, workflows=[server])
    _written(config / "config_fed_client.json", format_version=2, executors=[client])
    deploy_map = {"app": ["@ALL"]}
    _written(job / "meta.json", name="tf_pflego", deploy_map=deploy_map, min_clients=len(sites))


def _run(_, *command):
    subprocess.run(command, check=True, stdout=sys.stderr)


def _written(path, **content):
    path.write_text(json.dumps(content))
    return path


if __name__ == "__main__":
    sys.exit(main())
