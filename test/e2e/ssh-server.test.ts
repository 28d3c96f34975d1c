import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import type { Sandbox } from 'microsandbox'
import { mustCall } from '../support/api.ts'
import { sshFingerprint } from '../../src/domain/orgs/ssh-key.ts'
import { runProgram } from '../support/program.ts'
import { freePort } from '../support/free-port.ts'
import { whyNoOpenSsh } from '../support/openssh.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { makeSshClient, type SshClient } from '../support/ssh-client.ts'
import { startTcpServer } from '../support/tcp-server.ts'
import { waitUntil } from '../support/wait.ts'

// The SSH server of the control plane, with OpenSSH's own programs and a real sandbox.

const MIB = 1024 * 1024
const LIMIT_MS = 15_000

/** A TCP server that echoes its input, and then sends how much that was. The perl of the sandbox's toolbox runs it. */
const SERVER = `
  BEGIN { @INC = "/.msb/tools/perl5"; $| = 1 } use Socket;
  socket(L, AF_INET, SOCK_STREAM, 0); setsockopt(L, SOL_SOCKET, SO_REUSEADDR, 1);
  bind(L, pack_sockaddr_in(7007, INADDR_LOOPBACK)) or die $!; listen(L, 128); print "listening on 7007\\n";
  $SIG{CHLD} = "IGNORE";
  while (1) { accept(S, L) or next; if (fork) { close S; next } $n = 0;
    while (sysread(S, $b, 65536)) { $n += length $b; for ($o = 0; $o < length $b;) { $o += syswrite(S, $b, length($b) - $o, $o) } }
    syswrite(S, "<$n>"); exit }`
const PERL = '/.msb/tools/loader --library-path /.msb/tools/lib /.msb/tools/perl'

describe('the SSH server', { skip: whyNoServer() || whyNoOpenSsh() }, () => {
  let server: RealServer
  let port: number
  let sdk: Sdk
  let box: Sandbox
  let slug: string
  let ssh: SshClient
  let keyId: string

  before(async () => {
    port = await freePort()
    server = await startServer({ SANDYARD_SSH_PORT: String(port) })
    sdk = await loadSdk(server)
    box = await sdk.Sandbox.builder('my.box').image(DEMO_IMAGE).create()
    slug = (await mustCall(server, 'get_sandbox_by_name', { params: { name: 'my.box' } })).slug
    await box.fs().write('/tmp/server.pl', SERVER)
    ssh = await makeSshClient(port)
    keyId = (await mustCall(server, 'add_ssh_key', { body: { name: 'laptop', public_key: ssh.publicKey } })).id
  })
  after(async () => {
    ssh.remove()
    await server.close()
  })

  test('a command gets its input, and its outputs and exit code come back apart, by the slug and by the name', async () => {
    for (const user of [slug, 'my.box.default']) {
      const { code, stdout, stderr } = await ssh.ssh(user, ['cat; echo err >&2; exit 9'], { input: 'through ssh' })
      assert.deepEqual([code, stdout, stderr], [9, 'through ssh', 'err\n'], user)
    }
  })

  test('the start, `ssh-key host` and `doctor` show the fingerprint that clients see', async () => {
    const known = readFileSync(join(ssh.dir, 'known'), 'utf8').split(' ')[2] ?? ''
    const fingerprint = sshFingerprint(Buffer.from(known, 'base64'))
    assert.ok(server.output().includes(`SSH on port ${String(port)}; the host key is ${fingerprint}\n`))
    const settings = { SANDYARD_DATA_DIR: server.dataDir, SANDYARD_SSH_PORT: String(port) }
    assert.match((await runProgram(['doctor'], settings)).output, new RegExp(`ok +ssh +port ${String(port)}; the host key is ${fingerprint.replace(/[+]/g, '[+]')}\n`)) // prettier-ignore
    assert.equal((await runProgram(['ssh-key', 'host'], settings)).output.trim(), fingerprint)
    assert.match((await runProgram(['doctor'], { ...settings, SANDYARD_SSH_PORT: 'off' })).output, /ok +ssh +off/)
  })

  test('channels of SSH connections are counted', async () => {
    const count = async (): Promise<number> =>
      Number(/^sandyard_channels_opened_total (\d+)$/m.exec(await (await fetch(`${server.url}/metrics`)).text())?.[1])
    const before = await count()
    await ssh.ssh(slug, ['true'])
    assert.equal((await count()) - before, 1)
  })

  test('an event names the key of each connection', async () => {
    const { data } = await mustCall(server, 'list_events', { query: { event_type: 'sandbox_channel_opened' } })
    const actors = data.map(({ actor }) => actor).filter(({ kind }) => kind === 'ssh_key')
    assert.ok(actors.length > 0)
    for (const actor of actors) assert.deepEqual({ ...actor, fingerprint: '' }, { kind: 'ssh_key', key_id: keyId, fingerprint: '', label: 'laptop' }) // prettier-ignore
  })

  test('a shell in a terminal has its type and size, and its exit code', async () => {
    const { code, stdout } = await ssh.ssh(slug, [], {
      options: ['-tt'],
      input: 'stty size; echo term=$TERM home=$PWD; exit 5\n',
    })
    assert.equal(code, 5)
    assert.match(stdout, /\d+ \d+\r\n/)
    assert.match(stdout, /term=\S+ home=\/root\r\n/)
  })

  test('a command that a signal ends, and one that does not exist, fail as with any SSH server', async () => {
    assert.equal((await ssh.ssh(slug, ['kill -9 $$'])).code, 255)
    assert.equal((await ssh.ssh(slug, ['no-such-program'])).code, 127)
  })

  test('variables of the language pass, and others do not', async () => {
    const options = ['-o', 'SetEnv=LC_TEST=here SECRET_TEST=hidden']
    const { stdout } = await ssh.ssh(slug, ['echo "$LC_TEST|$SECRET_TEST|$SSH_CONNECTION"'], { options })
    assert.match(stdout, /^here\|\|127\.0\.0\.1 \d+ 127\.0\.0\.1 \d+\n$/)
  })

  test('16 MiB pass in both directions unchanged', async () => {
    const data = randomBytes(16 * MIB)
    const child = ssh.start([`${slug}@sandyard`, 'cat'])
    assert.ok(child.stdin !== null && child.stdout !== null)
    child.stdin.end(data)
    const pieces: Buffer[] = []
    for await (const piece of child.stdout) if (piece instanceof Buffer) pieces.push(piece)
    assert.ok(Buffer.concat(pieces).equals(data))
  })

  test('sftp and scp move, list, change and remove files', async () => {
    const bytes = randomBytes(3 * MIB + 17)
    writeFileSync(join(ssh.dir, 'there.bin'), bytes)
    const commands = ['mkdir own', 'put there.bin own/a', 'chmod 640 own/a', 'rename own/a own/b', 'symlink /root/own/b own/link', 'ls -1 own', 'get own/link back.bin'] // prettier-ignore
    const done = await ssh.run('sftp', ['-b', '-', `${slug}@sandyard`], `${commands.join('\n')}\n`)
    assert.equal(done.code, 0, done.stderr)
    assert.match(done.stdout, /own\/b\n/)
    assert.ok(readFileSync(join(ssh.dir, 'back.bin')).equals(bytes))
    const seen = await box.shell('stat -c "%a %s" /root/own/b; readlink /root/own/link')
    assert.equal(seen.stdout(), `640 ${String(bytes.length)}\n/root/own/b\n`)
    const up = await ssh.run('scp', ['-q', 'there.bin', `${slug}@sandyard:own/c`])
    assert.equal(up.code, 0, up.stderr)
    const down = await ssh.run('scp', ['-q', `${slug}@sandyard:own/c`, 'again.bin'])
    assert.equal(down.code, 0, down.stderr)
    assert.ok(readFileSync(join(ssh.dir, 'again.bin')).equals(bytes))
    const gone = await ssh.run('sftp', ['-b', '-', `${slug}@sandyard`], 'rm own/*\nrmdir own\n-get never\n')
    assert.equal(gone.code, 0, gone.stderr)
    assert.match(gone.stderr + gone.stdout, /not found|No such file/i)
  })

  test('what VS Code does first: a shell script on standard input, a server that it starts, and a forward to its port', async () => {
    const probe = await ssh.ssh(slug, ['sh'], { input: 'echo "id: $$"; uname -s; echo done\n', options: ['-T'] })
    assert.match(probe.stdout, /^id: \d+\nLinux\ndone\n$/)
    const local = await freePort()
    const child = ssh.start(['-T', '-L', `127.0.0.1:${String(local)}:127.0.0.1:7007`, `${slug}@sandyard`, `${PERL} /tmp/server.pl`]) // prettier-ignore
    assert.ok(child.stdout !== null)
    assert.match(String((await once(child.stdout, 'data'))[0]), /listening on 7007/)
    const replies = await Promise.all(
      Array.from({ length: 16 }, async (_, at) => {
        const bytes = Buffer.alloc(100_000 + at, 'x')
        const socket = connect({ host: '127.0.0.1', port: local, allowHalfOpen: true })
        socket.end(bytes)
        return (await text(socket)) === `${bytes.toString()}<${String(bytes.length)}>`
      }),
    )
    assert.deepEqual([...new Set(replies)], [true])
    child.kill('SIGTERM')
    await once(child, 'exit')
    await waitUntil(async () => (await box.shell('pgrep -f /tmp/server.p[l] | wc -l')).stdout() === '0\n', LIMIT_MS)
  })

  test('a closed port and a port of the host are refused', async () => {
    const host = await startTcpServer()
    for (const port of [7008, host.port]) {
      const { code, stderr } = await ssh.ssh(slug, [], { options: ['-W', `127.0.0.1:${String(port)}`] })
      assert.notEqual(code, 0)
      assert.match(stderr, /prohibited|refused|failed/i)
    }
    assert.equal(host.sockets.length, 0)
    await host.close()
  })

  test('twenty sessions at a time share one connection', async () => {
    const control = join(ssh.dir, 'control')
    const master = ssh.start(['-M', '-S', control, '-N', `${slug}@sandyard`])
    await waitUntil(async () => (await ssh.run('ssh', ['-S', control, '-O', 'check', 'sandyard'])).code === 0, LIMIT_MS)
    const outputs = await Promise.all(
      Array.from({ length: 20 }, (_, at) => ssh.ssh(slug, [`echo ${String(at)}`], { options: ['-S', control] })),
    )
    assert.deepEqual(outputs.map(({ stdout }) => stdout), Array.from({ length: 20 }, (_, at) => `${String(at)}\n`)) // prettier-ignore
    master.kill('SIGTERM')
    await once(master, 'exit')
  })

  test('an unknown user, an unknown key, a password and another organization’s slug are refused alike', async () => {
    const stranger = await makeSshClient(Number(/Port (\d+)/.exec(readFileSync(ssh.config, 'utf8'))?.[1]))
    const refusals = await Promise.all([
      ssh.ssh('no-such-sandbox', ['true']),
      stranger.ssh(slug, ['true']),
      ssh.ssh(slug, ['true'], { options: ['-o', 'PubkeyAuthentication=no'] }),
    ])
    for (const { code, stderr } of refusals) {
      assert.equal(code, 255)
      assert.match(stderr, /Permission denied \(publickey\)/)
    }
    stranger.remove()
  })

  test('refused keys of an address are bounded', async () => {
    await server.stop()
    await server.start({ SANDYARD_REFUSED_KEY_BURST: '2', SANDYARD_REFUSED_KEYS_PER_SEC: '1' })
    await mustCall(server, 'start_sandbox_by_name', { params: { name: 'my.box' }, query: { wait_for: 'running' } })
    await Promise.all(Array.from({ length: 4 }, () => ssh.ssh('no-such-sandbox', ['true'])))
    assert.match((await ssh.ssh(slug, ['true'])).stderr, /Permission denied/, 'a good key after too many bad ones')
    await waitUntil(async () => (await ssh.ssh(slug, ['true'])).code === 0, LIMIT_MS)
  })

  test('a stopped sandbox says so, and starts on connect if its label asks for it', async () => {
    const lazy = await sdk.Sandbox.builder('lazy').image(DEMO_IMAGE).label('sandyard.ssh-start', 'true').create()
    await lazy.stop()
    const started = await ssh.ssh('lazy.default', ['echo up'])
    assert.deepEqual([started.code, started.stdout], [0, 'up\n'], started.stderr)
    const still = await sdk.Sandbox.builder('still').image(DEMO_IMAGE).create()
    await still.stop()
    const refused = await ssh.ssh('still.default', ['echo up'])
    assert.equal(refused.code, 255)
    assert.match(
      refused.stderr,
      /^sandyard: the sandbox still is stopped; start it, or set its label sandyard\.ssh-start/,
    )
  })

  test('the host key stays the same after a restart, and a removed key ends its connections', async () => {
    await server.stop()
    await server.start()
    await mustCall(server, 'start_sandbox_by_name', { params: { name: 'my.box' }, query: { wait_for: 'running' } })
    const child = ssh.start(['-T', `${slug}@sandyard`, 'echo up; sleep 60'])
    assert.ok(child.stdout !== null && child.stderr !== null)
    const said = text(child.stderr)
    await once(child.stdout, 'data') // OpenSSH would refuse another host key than before
    const ended = once(child, 'exit')
    await mustCall(server, 'remove_ssh_key', { params: { ssh_key_id: keyId } })
    assert.deepEqual((await ended)[0], 255)
    assert.match(await said, /the SSH key was removed|closed by remote host/)
    const refused = await ssh.ssh(slug, ['true'])
    assert.match(refused.stderr, /Permission denied \(publickey\)/)
  })
})
