import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { ExecHandle, Sandbox } from 'microsandbox'
import { freePort } from '../support/free-port.ts'
import { runMsb, startMsbInTerminal } from '../support/msb.ts'
import { makeOpenSsh, whyNoOpenSsh, type OpenSsh } from '../support/openssh.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { startTcpServer } from '../support/tcp-server.ts'
import { waitUntil } from '../support/wait.ts'

// SSH into a sandbox: with `msb ssh` and the SDK's own SSH client, and with OpenSSH through the SSH server of the SDK.

const MIB = 1024 * 1024
const LIMIT_MS = 60_000

/**
 * Two TCP servers in one Perl script: one echoes, the other answers after the end of input. The perl of the sandbox's
 * toolbox runs them.
 */
const SERVER = `
  BEGIN { @INC = "/.msb/tools/perl5"; $| = 1 } use Socket;
  socket(L, AF_INET, SOCK_STREAM, 0); setsockopt(L, SOL_SOCKET, SO_REUSEADDR, 1);
  bind(L, pack_sockaddr_in(7007, INADDR_LOOPBACK)) or die $!; listen(L, 128); print "ready\\n";
  $SIG{CHLD} = "IGNORE";
  while (1) { accept(S, L) or next; if (fork) { close S; next } $n = 0;
    while (sysread(S, $b, 65536)) { $n += length $b; for ($o = 0; $o < length $b;) { $o += syswrite(S, $b, length($b) - $o, $o) } }
    syswrite(S, "<$n>"); exit }`
const PERL = '/.msb/tools/loader --library-path /.msb/tools/lib /.msb/tools/perl'

describe('SSH', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk
  let box: Sandbox
  let inside: ExecHandle

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
    box = await sdk.Sandbox.builder('ssh').image(DEMO_IMAGE).create()
    await box.fs().write('/tmp/server.pl', SERVER)
    inside = await box.shellStream(`exec ${PERL} /tmp/server.pl`)
    await waitUntil(async () => (await box.shell('cat /proc/net/tcp')).stdout().includes(':1B5F '), LIMIT_MS)
  })
  after(async () => {
    await inside.kill()
    await server.close()
  })

  test('msb ssh runs a command, and returns its output, error output and exit code', async () => {
    const { code, stdout, stderr } = await runMsb(server, ['ssh', 'ssh', '--', 'echo out; echo err >&2; id -u; exit 3'])
    assert.deepEqual([code, stdout, stderr], [3, 'out\n0\n', 'err\n'])
  })

  test('msb ssh in a terminal runs a shell of the size of the terminal, and exits with the code of the shell', async () => {
    const shell = startMsbInTerminal(server, ['ssh', 'ssh'])
    shell.write('stty size; echo $((40+2))\r')
    await shell.shown(/24 80[^]*42/)
    shell.resize(33, 121)
    shell.write('sleep 0.3; stty size\r')
    await shell.shown(/33 121/)
    shell.write('exit 5\r')
    assert.equal(await shell.ended(), 5)
  })

  test("the SDK's own SSH client runs commands and moves files", async () => {
    const client = await box.ssh().openClient()
    const { status, stdout, stderr } = await client.exec('echo out; echo err >&2; exit 7')
    assert.deepEqual([status, stdout.toString(), stderr.toString()], [7, 'out\n', 'err\n'])
    const sftp = await client.sftp()
    const bytes = randomBytes(200_000)
    await sftp.mkdir('/tmp/own')
    await sftp.write('/tmp/own/a', bytes)
    assert.ok((await sftp.read('/tmp/own/a')).equals(bytes))
    await sftp.rename('/tmp/own/a', '/tmp/own/b')
    await sftp.symlink('/tmp/own/b', '/tmp/own/link')
    assert.equal(await sftp.readLink('/tmp/own/link'), '/tmp/own/b')
    assert.equal(await sftp.realPath('/tmp/own/../own/b'), '/tmp/own/b')
    await sftp.removeFile('/tmp/own/link')
    await sftp.removeFile('/tmp/own/b')
    await sftp.removeDir('/tmp/own')
    assert.equal((await box.shell('ls -d /tmp/own')).success, false)
    await sftp.close()
    await client.close()
  })

  describe("OpenSSH through the SDK's server", { skip: whyNoOpenSsh() }, () => {
    let openSsh: OpenSsh

    before(async () => {
      openSsh = await makeOpenSsh(server, 'ssh')
    })
    after(() => {
      openSsh.remove()
    })

    test('a command receives its input, and ssh returns its output, error output and exit code', async () => {
      const { code, stdout, stderr } = await openSsh.ssh([], ['cat; echo err >&2; exit 9'], 'through ssh')
      assert.deepEqual([code, stdout, stderr], [9, 'through ssh', 'err\n'])
    })

    test('sftp uploads, downloads, lists, creates, renames, links and removes files, and changes their modes', async () => {
      const bytes = randomBytes(3 * MIB + 17)
      writeFileSync(join(openSsh.dir, 'there.bin'), bytes)
      const done = await openSsh.sftp([
        'mkdir /tmp/sftp',
        'put there.bin /tmp/sftp/a',
        'chmod 640 /tmp/sftp/a',
        'rename /tmp/sftp/a /tmp/sftp/b',
        'symlink /tmp/sftp/b /tmp/sftp/link',
        'mkdir /tmp/sftp/folder',
        'ls -1 /tmp/sftp',
        'get /tmp/sftp/link back.bin',
      ])
      assert.equal(done.code, 0, done.stderr)
      for (const name of ['b', 'folder', 'link']) assert.match(done.stdout, new RegExp(`/tmp/sftp/${name}\n`))
      assert.ok(readFileSync(join(openSsh.dir, 'back.bin')).equals(bytes))
      const seen = await box.shell('stat -c "%a %s" /tmp/sftp/b; readlink /tmp/sftp/link')
      assert.equal(seen.stdout(), `640 ${String(bytes.length)}\n/tmp/sftp/b\n`)
      const gone = await openSsh.sftp([
        'rm /tmp/sftp/link',
        'rm /tmp/sftp/b',
        'rmdir /tmp/sftp/folder',
        'rmdir /tmp/sftp',
      ])
      assert.equal(gone.code, 0, gone.stderr)
      assert.equal((await box.shell('ls -d /tmp/sftp')).success, false)
      const missing = await openSsh.sftp(['get /tmp/never'])
      assert.notEqual(missing.code, 0)
      assert.match(missing.stderr + missing.stdout, /not found|No such file/i)
    })

    test('-W connects to a server in the sandbox: bytes arrive both ways, also after the end of input', async () => {
      const text = 'abc\n'.repeat(100_000)
      const { code, stdout, stderr } = await openSsh.ssh(['-W', '127.0.0.1:7007'], [], text)
      assert.equal(code, 0, stderr)
      assert.equal(stdout, `${text}<${String(text.length)}>`)
    })

    test('-W to a closed port or to the host is refused', async () => {
      const host = await startTcpServer()
      for (const port of [7008, host.port]) {
        const { code, stderr } = await openSsh.ssh(['-W', `127.0.0.1:${String(port)}`])
        assert.notEqual(code, 0)
        assert.match(stderr, /prohibited|refused|failed/i)
      }
      assert.equal(host.sockets.length, 0)
      await host.close()
    })

    test('-L forwards many connections at once, each with its own bytes and half-close', async () => {
      const local = await freePort()
      const forwarding = openSsh.start(['-N', '-L', `127.0.0.1:${String(local)}:127.0.0.1:7007`])
      try {
        await waitUntil(() => canConnect(local), LIMIT_MS)
        const replies = await Promise.all(
          Array.from({ length: 16 }, async (_, at) => {
            const bytes = Buffer.alloc(100_000 + at, at)
            const socket = connect({ host: '127.0.0.1', port: local, allowHalfOpen: true })
            socket.end(bytes)
            return (await readAll(socket)).equals(Buffer.concat([bytes, Buffer.from(`<${String(bytes.length)}>`)]))
          }),
        )
        assert.deepEqual([...new Set(replies)], [true])
      } finally {
        forwarding.kill('SIGTERM')
        if (forwarding.exitCode === null && forwarding.signalCode === null) await once(forwarding, 'exit')
      }
      await waitUntil(async () => (await carriersIn(box)) === 0, LIMIT_MS)
    })
  })

  test('forwarding can’t reach what the sandbox’s policy denies', { skip: whyNoOpenSsh() }, async () => {
    const closed = await sdk.Sandbox.builder('closed')
      .image(DEMO_IMAGE)
      .network((network) => network.policy(sdk.NetworkPolicy.none()))
      .create()
    const openSsh = await makeOpenSsh(server, 'closed')
    try {
      const { code, stderr } = await openSsh.ssh(['-W', '192.0.2.1:9'])
      assert.notEqual(code, 0)
      assert.match(stderr, /prohibited|refused|failed/i)
    } finally {
      openSsh.remove()
      await closed.stop()
    }
  })
})

/** The number of helper processes in a sandbox. Each carries one connection. */
async function carriersIn(box: Sandbox): Promise<number> {
  return Number((await box.shell('pgrep -f /.msb/tools/[t]cp.pl | wc -l')).stdout())
}

async function canConnect(port: number): Promise<boolean> {
  const socket = connect({ host: '127.0.0.1', port })
  const isOpen = await new Promise<boolean>((resolve) => {
    socket.once('connect', () => {
      resolve(true)
    })
    socket.once('error', () => {
      resolve(false)
    })
  })
  socket.destroy()
  return isOpen
}

async function readAll(socket: Socket): Promise<Buffer> {
  const pieces: Buffer[] = []
  for await (const piece of socket) if (piece instanceof Buffer) pieces.push(piece)
  return Buffer.concat(pieces)
}
