"""What test/e2e/sdk*.test.ts do with the npm SDK, done with the Python SDK. One line is printed for each step."""

import asyncio
import os
import sys
import traceback

import microsandbox as m
from microsandbox import Network, NetworkPolicy, Patch, Rlimit, Sandbox, Snapshot, Stdin, Volume

IMAGE = "localhost/demo"
steps = []


def step(name):
    def register(function):
        steps.append((name, function))
        return function

    return register


async def expect(error, awaitable, *words):
    try:
        await awaitable
    except error as seen:
        for word in words:
            assert word in str(seen), f"{seen!r} lacks {word!r}"
        return seen
    raise AssertionError(f"nothing was raised instead of {error.__name__}")


@step("output, error output and exit code arrive separately and complete")
async def _(box):
    output = await box.exec("sh", ["-c", "echo out; echo err >&2; exit 3"])
    assert (output.stdout_text, output.stderr_text, output.exit_code) == ("out\n", "err\n", 3)
    assert (await box.exec("true")).success


@step("four megabytes of every byte value come back unchanged")
async def _(box):
    output = await box.shell("head -c 4194304 /dev/urandom > /tmp/r; sha256sum < /tmp/r >&2; cat /tmp/r")
    import hashlib

    assert len(output.stdout_bytes) == 4194304
    assert hashlib.sha256(output.stdout_bytes).hexdigest() == output.stderr_text.split(" ")[0]


@step("bytes of standard input arrive unchanged, followed by the end of input")
async def _(box):
    data = bytes([0, 255, 10, 13, 0, 128])
    assert (await box.exec("cat", stdin=data)).stdout_bytes == data
    assert (await box.exec("wc", ["-c"])).stdout_text.strip() == "0"


@step("a stream of standard input is answered while it is still open")
async def _(box):
    handle = await box.exec_stream("cat", stdin=Stdin.pipe())
    sink = handle.take_stdin()
    await sink.write(b"first")
    assert await next_output(handle) == b"first"
    await sink.write(b"second")
    assert await next_output(handle) == b"second"
    await sink.close()
    assert (await handle.wait())[0] == 0


@step("a command that outlives its time limit is killed, and a signal reaches a command")
async def _(box):
    await expect(m.ExecTimeoutError, box.exec("sleep", ["61"], timeout=0.3))
    assert (await box.shell("pgrep -cf '^sleep 61'")).stdout_text == "0\n"
    handle = await box.shell_stream("trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    assert await next_output(handle) == b"ready\n"
    await handle.signal(15)
    output = await handle.collect()
    assert (output.stdout_text, output.exit_code) == ("caught\n", 7)


@step("environment, folder, user and limit of one command are its own")
async def _(box):
    script = "echo $A; pwd; id -u; id -g; ulimit -n"
    output = await box.shell(script, env={"A": "b c"}, cwd="/var", user="1234:4321", rlimits=[Rlimit.nofile(77)])
    assert output.stdout_text == "b c\n/var\n1234\n4321\n77\n"


@step("a missing program and a missing folder fail the command")
async def _(box):
    await expect(m.MicrosandboxError, box.exec("no-such-program"), "no-such-program")
    await expect(m.MicrosandboxError, box.exec("true", cwd="/no/such/folder"), "/no/such/folder")


@step("a terminal has the size of the last resize")
async def _(box):
    script = 'test -t 0 && echo tty; trap "stty size; exit 5" WINCH; echo ready; while :; do sleep 0.05; done'
    handle = await box.shell_stream(script, tty=True)
    await output_until(handle, b"ready")
    await handle.resize(33, 121)
    await output_until(handle, b"33 121")
    assert (await handle.wait())[0] == 5


@step("files are written, read, listed, moved and removed, also as streams")
async def _(box):
    fs = box.fs
    data = bytes(range(256)) * 20_000
    await fs.mkdir("/root/d")
    await fs.write("/root/d/a", data)
    assert await fs.read("/root/d/a") == data
    sink = await fs.write_stream("/root/d/b")
    for at in range(0, len(data), 1_000_000):
        await sink.write(data[at : at + 1_000_000])
    await sink.close()
    stream = await fs.read_stream("/root/d/b")
    assert await stream.collect() == data
    assert sorted(entry.path.split("/")[-1] for entry in await fs.list("/root/d")) == ["a", "b"]
    await fs.copy("/root/d/a", "/root/d/c")
    await fs.rename("/root/d/c", "/root/d/e")
    assert (await fs.stat("/root/d/e")).size == len(data)
    await fs.remove("/root/d/e")
    assert not await fs.exists("/root/d/e")
    assert (await box.shell("stat -c %U:%G /root/d /root/d/a")).stdout_text == "root:root\nroot:root\n"
    await fs.remove_dir("/root/d")
    await expect(m.MicrosandboxError, fs.read("/root/d/a"))


@step("many commands at once receive their own output")
async def _(box):
    outputs = await asyncio.gather(*(box.shell(f"sleep 0.1; echo number {n}") for n in range(8)))
    assert [output.stdout_text for output in outputs] == [f"number {n}\n" for n in range(8)]


@step("the log of a workload arrives")
async def _(_box):
    box = await Sandbox.create("python-log", image=IMAGE, cmd=["sh", "-c", "echo one; echo two >&2; sleep 300"])
    seen = []
    async for entry in await box.log_stream(follow=True):
        seen.append(entry.text().strip())
        if {"one", "two"} <= set(seen):
            break
    await box.destroy()


@step("a missing sandbox and a taken name have errors of their own")
async def _(_box):
    await expect(m.SandboxNotFoundError, Sandbox.get("never-made"))
    await expect(m.SandboxNotFoundError, Sandbox.remove("never-made"))
    await expect(m.SandboxAlreadyExistsError, Sandbox.create("python-walk", image=IMAGE))
    await expect(m.MicrosandboxError, Sandbox.create("python-no", image="localhost/not-made"), "localhost/not-made")
    await Sandbox.remove("python-no")


@step("a volume that exists and one that is missing have errors about volumes")
async def _(_box):
    await Volume.create("python-volume")
    error = await expect(m.MicrosandboxError, Volume.create("python-volume"))
    assert not isinstance(error, m.SandboxAlreadyExistsError) and "sandbox" not in str(error).lower(), repr(error)
    await expect(m.VolumeNotFoundError, Volume.get("no-such-volume"))


@step("a volume is shared between its files' routes and a sandbox that mounts it")
async def _(_box):
    volume = await Volume.get("python-volume")
    await volume.fs.write("given", b"from outside")
    box = await Sandbox.create("python-mount", image=IMAGE, volumes={"/data": Volume.named("python-volume")})
    assert (await box.shell("cat /data/given; echo inside > /data/made")).stdout_text == "from outside"
    assert await volume.fs.read_text("made") == "inside\n"
    await box.destroy()
    await Volume.remove("python-volume")


@step("files survive a stop and a start, and a restart")
async def _(_box):
    box = await Sandbox.create("python-kept", image=IMAGE)
    await box.shell("echo kept > /root/file")
    await box.stop()
    assert (await Sandbox.get("python-kept")).status == "stopped"
    again = await Sandbox.start("python-kept")
    assert await again.id == await box.id
    restarted = await again.restart()
    assert (await restarted.shell("cat /root/file")).stdout_text == "kept\n"
    await restarted.destroy()
    await expect(m.SandboxNotFoundError, Sandbox.get("python-kept"))


@step("the stop of an ephemeral sandbox ends well, although the sandbox goes away")
async def _(_box):
    box = await Sandbox.create("python-brief", image=IMAGE, ephemeral=True)
    await box.stop()
    other = await Sandbox.create("python-ends", image=IMAGE, ephemeral=True, cmd=["sh", "-c", "sleep 1"])
    assert (await other.wait_until_stopped()).status == "stopped"


@step("a list can be filtered by labels, page by page")
async def _(_box):
    names = [f"python-label-{n}" for n in range(3)]
    await asyncio.gather(*(Sandbox.create(name, image=IMAGE, labels={"walk": "python"}) for name in names))
    seen, cursor = [], None
    while True:
        page = await Sandbox.list_with(labels={"walk": "python"}, limit=2, cursor=cursor)
        seen += [handle.name for handle in page.sandboxes]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == names
    await asyncio.gather(*(Sandbox.remove(name) for name in names))


@step("settings of a sandbox take effect in it")
async def _(_box):
    box = await Sandbox.create(
        "python-set",
        image=IMAGE,
        env={"A": "from sandbox"},
        user="1000:1000",
        workdir="/var/tmp",
        scripts={"greet": '#!/bin/sh\necho "hello $1"\n'},
        patches=[Patch.text("/etc/text", "text", mode=0o644), Patch.mkdir("/opt/folder", mode=0o711)],
        volumes={"/scratch": Volume.tmpfs(size_mib=16)},
        network=Network(policy=NetworkPolicy.none()),
    )
    connected = await (await Sandbox.get("python-set")).connect()
    output = await connected.shell("echo $A; id -u; greet you; cat /etc/text; stat -c ' %a' /opt/folder")
    assert output.stdout_text == "from sandbox\n1000\nhello you\ntext 711\n", output.stdout_text
    assert (await box.exec("pwd")).stdout_text == "/var/tmp\n"
    await box.destroy()


@step("a snapshot is made, listed, read, replaced, restored and removed")
async def _(box):
    await box.shell("echo kept > /root/kept")
    made = await Snapshot.create("shot", from_sandbox="python-walk", labels={"team": "ml"})
    assert (made.image_ref, made.labels) == (IMAGE, {"team": "ml"}), made
    assert [one.name for one in await Snapshot.list()] == ["shot"]
    assert (await Snapshot.get("shot")).digest == (await Snapshot.open("shot")).digest == made.digest
    await expect(m.MicrosandboxError, Snapshot.create("shot", from_sandbox="python-walk"), "already exists")
    await box.shell("echo later > /root/kept")
    assert (await Snapshot.create("shot", from_sandbox="python-walk", force=True)).digest != made.digest
    copy = await Sandbox.restore("shot", name="python-copy", memory=256)
    assert (await copy.shell("cat /root/kept")).stdout_text == "later\n"
    await Snapshot.remove("shot")
    await expect(FileNotFoundError, Snapshot.get("shot"), "snapshot not found")
    await expect(m.SandboxNotFoundError, Snapshot.create("x", from_sandbox="nobody"), "sandbox not found")
    await expect(m.InvalidConfigError, Snapshot.create("~x", from_sandbox="python-walk"), "name is")
    assert (await copy.shell("cat /root/kept")).stdout_text == "later\n"
    await copy.destroy()


async def next_output(handle):
    while True:
        event = await handle.recv()
        assert event is not None and event.event_type != "exited", "the command ended"
        if event.event_type == "stdout":
            return event.data


async def output_until(handle, wanted):
    seen = b""
    while wanted not in seen:
        seen += await next_output(handle)


async def main():
    only = sys.argv[1:]
    box = await Sandbox.create("python-walk", image=IMAGE)
    failed = 0
    for name, function in steps:
        if only and not any(word in name for word in only):
            continue
        try:
            await asyncio.wait_for(function(box), 60 * float(os.environ.get("SANDYARD_TEST_PACE", "1")))
            print(f"ok - {name}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok - {name}\n{traceback.format_exc()}", flush=True)
    await box.destroy()
    return 1 if failed else 0


sys.exit(asyncio.run(main()))
