"""Creates, lists and deletes by the client that openapi-python-client generated into `generated`."""

import sys

from generated import AuthenticatedClient
from generated.api.sandboxes import create_sandbox, delete_sandbox, get_sandbox, list_sandboxes
from generated.api.volumes import create_volume, delete_volume
from generated.models import (
    CreateSandboxInput,
    CreateVolume,
    MountDiskImage,
    MountBind,
    MountNamed,
    MountTmpfs,
)

url, key = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
volume = create_volume.sync(client=client, body=CreateVolume(name="models"))
body = CreateSandboxInput.from_dict(
    {
        "name": "generated-python",
        "image": {"type": "oci", "reference": "demo"},
        "resources": {"vcpus": 1, "memory_mib": 128},
        "mounts": [
            {"type": "bind", "host": "inputs", "guest": "/inputs"},
            {"type": "named", "name": "models", "guest": "/models", "options": {"readonly": True}},
            {"type": "tmpfs", "guest": "/scratch", "size_mib": 16},
            {"type": "disk_image", "host": "tools.img", "guest": "/tools", "format": "raw"},
        ],
    }
)
created = create_sandbox.sync(client=client, body=body)
page = list_sandboxes.sync(client=client, limit=10)
assert [one.id for one in page.data] == [created.id], page
for mount in page.data[0].spec.mounts:
    assert isinstance(mount, (MountBind, MountNamed, MountTmpfs, MountDiskImage)), mount
    print(type(mount).__name__, mount.guest, mount.options.readonly)
delete_sandbox.sync(client=client, sandbox_id=created.id)
delete_volume.sync(client=client, id=volume.id)
missing = get_sandbox.sync_detailed(client=client, sandbox_id=created.id)
print(int(missing.status_code), missing.parsed.error.code)
