import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type AddressInfo, type Server } from 'node:net'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { mustCall } from '../support/api.ts'
import { freePort } from '../support/free-port.ts'
import { storeTool } from '../support/guest-tools.ts'
import { whyMissing, whyNoOpenSsh } from '../support/openssh.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { makeSshClient, type SshClient } from '../support/ssh-client.ts'
import { waitUntil } from '../support/wait.ts'

// What listens in a sandbox for an SSH client: remote forwarding (-R) and the agent of the client (-A).

const LIMIT_MS = 20_000
const USER = 'box.default'
const PERL = '/.msb/tools/loader --library-path /.msb/tools/lib /.msb/tools/perl'
const LISTENERS_MAX = 16

describe('listeners of SSH clients in a sandbox', { skip: whyNoServer() || whyNoOpenSsh() }, () => {
  let server: RealServer
  let sshPort: number
  let ssh: SshClient
  /** Answers what it got, in full, after its client has ended. */
  let echo: Server
  let echoPort: number

  before(async () => {
    sshPort = await freePort()
    server = await startServer({ SANDYARD_SSH_PORT: String(sshPort) })
    ssh = await makeSshClient(sshPort)
    await mustCall(server, 'add_ssh_key', { body: { name: 'laptop', public_key: ssh.publicKey } })
    const tool = await storeTool(server, 'ssh-add')
    for (const [name, labels] of [['box', { 'sandyard.ssh-agent': 'true' }], ['plain', {}]] as const)
      await mustCall(server, 'create_sandbox', {
        query: { start: 'true', wait_for: 'running' },
        body: { name, image: DEMO_IMAGE, labels, mounts: name === 'box' ? [tool] : [] },
      }) // prettier-ignore
    echo = createServer({ allowHalfOpen: true }, (socket) => {
      socket.on('error', () => undefined)
      void buffer(socket).then(
        (bytes) => socket.end(bytes),
        () => undefined,
      )
    })
    echo.listen(0, '127.0.0.1')
    await once(echo, 'listening')
    echoPort = (echo.address() as AddressInfo).port
  })
  after(async () => {
    echo.close()
    ssh.remove()
    await server.close()
  })

  /** Starts a connection that others share, and resolves with its options and its end. */
  async function startMaster(name: string, options: readonly string[] = []) {
    const shared = ['-S', join(ssh.dir, name)]
    const child = ssh.start(['-M', ...shared, '-N', ...options, `${USER}@sandyard`])
    await waitUntil(async () => (await ssh.run('ssh', [...shared, '-O', 'check', 'sandyard'])).code === 0, LIMIT_MS)
    const ask = (what: string, forward: string) => ssh.run('ssh', [...shared, '-O', what, '-R', forward, 'sandyard'])
    const end = async (): Promise<void> => {
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      await ended
    }
    return { ask, end }
  }
  /** Connects to a port of the sandbox from outside, sends bytes and their end, and resolves with what comes back. */
  async function through(port: number | string, bytes: Buffer): Promise<Buffer> {
    const child = ssh.start(['-W', `127.0.0.1:${String(port)}`, `${USER}@sandyard`])
    assert.ok(child.stdin !== null && child.stdout !== null)
    child.stdin.on('error', () => undefined)
    child.stdin.end(bytes)
    return await buffer(child.stdout)
  }
  const listens = async (port: number | string): Promise<boolean> => {
    const hex = Number(port).toString(16).toUpperCase().padStart(4, '0')
    return (await ssh.ssh(USER, [`grep -c ":${hex} 00000000:0000 0A" /proc/net/tcp`])).stdout.trim() !== '0'
  }

  test('a port of the sandbox leads to the client (-R), for many connections and in both directions', async () => {
    const { ask, end } = await startMaster('ports')
    const two = ['-R', `0:127.0.0.1:${String(echoPort)}`, '-R', `0:127.0.0.1:${String(echoPort)}`]
    assert.equal((await ssh.ssh(USER, ['true'], { options: two })).code, 0)
    const chosen = await ask('forward', `0:127.0.0.1:${String(echoPort)}`)
    assert.equal(chosen.code, 0, chosen.stderr)
    const port = chosen.stdout.trim()
    const sent = Array.from({ length: 8 }, (_, n) => randomBytes(500_000 + n))
    const got = await Promise.all(sent.map((bytes) => through(port, bytes)))
    assert.deepEqual(got.map((bytes, n) => sent[n]?.equals(bytes)), sent.map(() => true)) // prettier-ignore
    assert.equal((await ask('cancel', `0:127.0.0.1:${String(echoPort)}`)).code, 0)
    await waitUntil(async () => !(await listens(port)), LIMIT_MS)
    await end()
  })

  test('a listener ends with its connection, and a port that is taken is refused', async () => {
    const options = ['-R', `7100:127.0.0.1:${String(echoPort)}`]
    const { end } = await startMaster('fixed', options)
    await waitUntil(() => listens(7100), LIMIT_MS)
    assert.equal(String(await through(7100, Buffer.from('hello'))), 'hello')
    const taken = await ssh.ssh(USER, ['true'], { options })
    assert.notEqual(taken.code, 0)
    assert.match(taken.stderr, /remote port forwarding failed/i)
    await end()
    await waitUntil(async () => !(await listens(7100)), LIMIT_MS)
    const inside = `socket(S, AF_INET, SOCK_STREAM, 0); connect(S, pack_sockaddr_in(7100, INADDR_LOOPBACK)) or die; syswrite S, "at once"; shutdown S, 1; print <S>`
    const command = `${PERL} -e 'BEGIN { @INC = "/.msb/tools/perl5" } use Socket; ${inside}'`
    assert.equal((await ssh.ssh(USER, [command], { options })).stdout, 'at once', 'a command may rely on the forward')
  })

  test('a port that nobody serves on the client’s side closes the connection, and the listener stays', async () => {
    const nobody = await freePort()
    const { end } = await startMaster('nobody', ['-R', `7101:127.0.0.1:${String(nobody)}`])
    await waitUntil(() => listens(7101), LIMIT_MS)
    for (const _ of [1, 2]) assert.equal((await through(7101, Buffer.from('hello'))).length, 0)
    await end()
  })

  test('a Unix socket of the sandbox leads to the client, and only its user may use it', async () => {
    const { end } = await startMaster('unix', ['-R', `/tmp/up.sock:127.0.0.1:${String(echoPort)}`])
    const stat = await waitUntil(
      async () => (await ssh.ssh(USER, ['stat -c "%F %a" /tmp/up.sock'])).stdout || false,
      LIMIT_MS,
    )
    assert.equal(stat, 'socket 600\n')
    const talk = `socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un("/tmp/up.sock")) or die; syswrite S, "up"; shutdown S, 1; print <S>`
    const said = await ssh.ssh(USER, [`${PERL} -e 'BEGIN { @INC = "/.msb/tools/perl5" } use Socket; ${talk}'`])
    assert.equal(said.stdout, 'up')
    await end()
    await waitUntil(async () => (await ssh.ssh(USER, ['ls /tmp/up.sock'])).code !== 0, LIMIT_MS)
  })

  test('one connection has a bounded number of listeners', async () => {
    const { ask, end } = await startMaster('many')
    const asked: (number | null)[] = []
    for (let n = 0; n < LISTENERS_MAX + 1; n++)
      asked.push((await ask('forward', `${String(7200 + n)}:127.0.0.1:1`)).code)
    assert.deepEqual(asked.map((code) => code === 0), [...Array.from({ length: LISTENERS_MAX }, () => true), false]) // prettier-ignore
    await end()
  })

  test('a client jumps through a sandbox (-J) to a server that the sandbox reaches', async () => {
    const { end } = await startMaster('jump', ['-R', `7102:127.0.0.1:${String(sshPort)}`])
    await waitUntil(() => listens(7102), LIMIT_MS)
    const options = [
      '-o',
      `ProxyJump=none`,
      '-o',
      `ProxyCommand=ssh -F ${ssh.config} -W 127.0.0.1:7102 ${USER}@sandyard`,
    ]
    const byCommand = await ssh.ssh('plain.default', ['hostname'], { options })
    assert.equal(byCommand.code, 0, byCommand.stderr)
    await runCommand('sh', ['-c', `printf 'Host inner\n  Port 7102\n  HostKeyAlias inner\n' > both && cat config >> both`], { timeoutMs: LIMIT_MS, cwd: ssh.dir }) // prettier-ignore
    const jump = await ssh.run('ssh', ['-F', join(ssh.dir, 'both'), '-J', `${USER}@sandyard`, 'plain.default@inner', 'hostname']) // prettier-ignore
    assert.equal(jump.code, 0, jump.stderr)
    assert.equal(jump.stdout, byCommand.stdout)
    await end()
  })

  describe('the agent of the client (-A)', { skip: whyMissing('ssh-agent', 'ssh-add') }, () => {
    const socket = (): string => join(ssh.dir, 'agent.sock')
    let agent: ReturnType<typeof spawn>

    before(async () => {
      agent = spawn('ssh-agent', ['-D', '-a', socket()], { stdio: 'ignore' })
      const add = (): Promise<unknown> =>
        runCommand('ssh-add', ['-q', join(ssh.dir, 'key')], { timeoutMs: LIMIT_MS, env: { ...process.env, SSH_AUTH_SOCK: socket() } }) // prettier-ignore
      await waitUntil(() => add().then(() => true, () => false), LIMIT_MS) // prettier-ignore
    })
    after(async () => {
      agent.kill('SIGTERM')
      await once(agent, 'exit')
    })
    const forwarding = () => ({ options: ['-A'], env: { SSH_AUTH_SOCK: socket() } })

    test('a sandbox whose label allows it uses the keys, in all sessions, until the connection ends', async () => {
      const list = `chmod +x /tools/ssh-add; LD_LIBRARY_PATH=/tools /tools/ssh-add -L; echo $SSH_AUTH_SOCK; ls -ld $(dirname $SSH_AUTH_SOCK)`
      const { code, stdout, stderr } = await ssh.ssh(USER, [list], forwarding())
      const [key, path = '', folder = ''] = stdout.split('\n')
      assert.equal(code, 0, stderr)
      assert.equal(stderr, '')
      assert.equal(key?.split(' ').slice(0, 2).join(' '), ssh.publicKey.split(' ').slice(0, 2).join(' '))
      assert.match(path, /^\/tmp\/ssh-[0-9a-f]{16}\/agent\.\d+$/)
      assert.match(folder, /^drwx------ /)
      await waitUntil(async () => (await ssh.ssh(USER, [`ls ${path}`])).code !== 0, LIMIT_MS)
    })

    test('a sandbox without the label gets no agent, and neither does a session that asks for none', async () => {
      const plain = await ssh.ssh('plain.default', ['echo "agent=$SSH_AUTH_SOCK"'], forwarding())
      assert.deepEqual([plain.code, plain.stdout], [0, 'agent=\n'])
      assert.equal((await ssh.ssh(USER, ['echo "agent=$SSH_AUTH_SOCK"'])).stdout, 'agent=\n')
    })
  })
})
