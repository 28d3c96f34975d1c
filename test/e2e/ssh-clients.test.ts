import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { runCommand, tryCommand } from '../../src/lib/run-command.ts'
import { mustCall } from '../support/api.ts'
import { freePort } from '../support/free-port.ts'
import { storeTool } from '../support/guest-tools.ts'
import { whyMissing, whyNoOpenSsh } from '../support/openssh.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { makeSshClient, type SshClient } from '../support/ssh-client.ts'
import { waitUntil } from '../support/wait.ts'

// The programs that people use over SSH, and what an editor does first, with a real sandbox.

const LIMIT_MS = 30_000
const MIB = 1024 * 1024
/**
 * A server for a port of loopback: it answers requests of HTTP, and else sends back the first line. The perl of the sandbox's
 * toolbox runs it.
 */
const SERVER = `
  BEGIN { @INC = "/.msb/tools/perl5"; $| = 1 } use Socket;
  socket(L, AF_INET, SOCK_STREAM, 0); setsockopt(L, SOL_SOCKET, SO_REUSEADDR, 1);
  bind(L, pack_sockaddr_in($ARGV[0], INADDR_LOOPBACK)) or die $!; listen(L, 128); print "listeningOn==$ARGV[0]==\\n";
  $SIG{CHLD} = "IGNORE";
  while (1) { accept(S, L) or next; if (fork) { close S; next } $line = <S>;
    if ($line =~ /^GET/) { 1 while defined($h = <S>) && $h ne "\\r\\n"; $line = "HTTP/1.0 200 OK\\r\\n\\r\\nfrom the sandbox\\n" }
    syswrite(S, $line); exit }`
const PERL = '/.msb/tools/loader --library-path /.msb/tools/lib /.msb/tools/perl'
/** Finds the programs that `storeTool` stored. */
const TOOLS = 'LD_LIBRARY_PATH=/tools GIT_EXEC_PATH=/tools PATH=/tools:$PATH'

describe('programs over the SSH server', { skip: whyNoServer() || whyNoOpenSsh() }, () => {
  let server: RealServer
  let ssh: SshClient
  const user = 'desk.default'

  before(async () => {
    const port = await freePort()
    server = await startServer({ SANDYARD_SSH_PORT: String(port) })
    ssh = await makeSshClient(port)
    await mustCall(server, 'add_ssh_key', { body: { name: 'laptop', public_key: ssh.publicKey } })
  })
  after(async () => {
    ssh.remove()
    await server.close()
  })

  /** Creates a sandbox with programs of this machine in /tools. */
  async function startSandbox(name: string, tools: readonly string[]): Promise<void> {
    const mounts: object[] = []
    for (const tool of tools) mounts.push({ ...(await storeTool(server, tool)), guest: `/stored/${tool}` })
    const body = { name, image: DEMO_IMAGE, mounts }
    await mustCall(server, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
    if (tools.length === 0) return
    const copied = await ssh.ssh(`${name}.default`, ['mkdir /tools; cp /stored/*/* /tools; chmod +x /tools/*'])
    assert.equal(copied.code, 0, copied.stderr)
  }
  const sshCommand = (): string => `ssh -F ${ssh.config}`

  test('a sandbox without any program but a shell has a shell, commands and files', async () => {
    await startSandbox('desk', [])
    assert.equal((await ssh.ssh(user, ['cat > server.pl; echo here'], { input: SERVER })).stdout, 'here\n')
  })

  test('scp -r moves a tree with modes and links in both directions, by the new protocol and the old one', async () => {
    const tree = join(ssh.dir, 'tree')
    mkdirSync(join(tree, 'deep/er'), { recursive: true })
    for (let n = 0; n < 20; n++) writeFileSync(join(tree, `deep/${String(n)}`), randomBytes(n * 1000))
    writeFileSync(join(tree, 'deep/er/run me.sh'), '#!/bin/sh\necho ran\n', { mode: 0o755 })
    const up = await ssh.run('scp', ['-rpq', 'tree', `${user}@sandyard:copied`])
    assert.equal(up.code, 0, up.stderr)
    assert.equal((await ssh.ssh(user, ['"copied/deep/er/run me.sh"; ls copied/deep | wc -l'])).stdout, 'ran\n21\n')
    const down = await ssh.run('scp', ['-rpq', `${user}@sandyard:copied`, 'back'])
    assert.equal(down.code, 0, down.stderr)
    await runCommand('diff', ['-r', tree, join(ssh.dir, 'back')], { timeoutMs: LIMIT_MS })
    const old = await ssh.run('scp', ['-Orpq', 'tree', `${user}@sandyard:old`]) // needs scp in the image
    assert.ok(old.code === 0 || /scp: not found/.test(old.stderr), old.stderr)
  })

  test('a program in a terminal hears of each new size of the window', { skip: whyMissing('script') }, async () => {
    const name = join(ssh.dir, 'tty')
    const loop = `trap "stty size" WINCH; echo ready; while :; do sleep 0.05; done`
    const inside = `stty rows 20 cols 70; tty > ${name}; exec ${sshCommand()} -tt ${user}@sandyard '${loop}'`
    const child = spawn('script', ['-qec', inside, '/dev/null'], { stdio: ['pipe', 'pipe', 'inherit'] })
    let seen = ''
    child.stdout.setEncoding('utf8').on('data', (piece: string) => {
      seen += piece
    })
    await waitUntil(
      () => seen.includes('ready'),
      LIMIT_MS,
      () => seen,
    )
    for (const [rows, cols] of [
      [33, 111],
      [50, 200],
    ] as const) {
      await runCommand('stty', ['-F', readFileSync(name, 'utf8').trim(), 'rows', String(rows), 'cols', String(cols)], { timeoutMs: LIMIT_MS }) // prettier-ignore
      await waitUntil(
        () => seen.includes(`${String(rows)} ${String(cols)}`),
        LIMIT_MS,
        () => seen,
      )
    }
    const exited = once(child, 'exit')
    child.stdin.write('\x03')
    await exited
  })

  test(
    'a SOCKS proxy (-D) leads to the ports of the sandbox, and to no other',
    { skip: whyMissing('curl') },
    async () => {
      const [socks, other] = [await freePort(), await freePort()]
      const child = ssh.start(['-T', '-D', `127.0.0.1:${String(socks)}`, `${user}@sandyard`, `${PERL} server.pl 8088`])
      const curl = (url: string) =>
      tryCommand('curl', ['-sS', '-m', '10', '--socks5-hostname', `127.0.0.1:${String(socks)}`, url], { timeoutMs: LIMIT_MS }) // prettier-ignore
      const page = await waitUntil(async () => {
        const { code, stdout } = await curl('http://localhost:8088/page')
        return code === 0 && stdout
      }, LIMIT_MS)
      assert.equal(page, 'from the sandbox\n')
      const replies = await Promise.all(Array.from({ length: 12 }, () => curl('http://127.0.0.1:8088/page')))
      assert.deepEqual([...new Set(replies.map(({ stdout }) => stdout))], ['from the sandbox\n'])
      assert.notEqual((await curl(`http://127.0.0.1:${String(other)}/`)).code, 0)
      const api = new URL(server.url).port
      assert.notEqual((await curl(`http://127.0.0.1:${api}/livez`)).code, 0, 'the server itself is not the sandbox')
      child.kill('SIGTERM')
      await once(child, 'exit')
    },
  )

  test('commands, terminals, files and forwards share one connection (ControlMaster)', async () => {
    const openedChannels = async () =>
      (await mustCall(server, 'list_events', { query: { event_type: 'sandbox_channel_opened', limit: '100' } })).data
        .length
    const before = await openedChannels()
    const control = join(ssh.dir, 'shared')
    const shared = ['-S', control]
    const master = ssh.start(['-M', ...shared, '-N', `${user}@sandyard`])
    await waitUntil(async () => (await ssh.run('ssh', [...shared, '-O', 'check', 'sandyard'])).code === 0, LIMIT_MS)
    const port = await freePort()
    const through = ['-o', `ControlPath=${control}`]
    const echoServer = ssh.start([...shared, `${user}@sandyard`, `${PERL} server.pl 7010`])
    const asked = await ssh.run('ssh', [...shared, '-O', 'forward', '-L', `127.0.0.1:${String(port)}:127.0.0.1:7010`, 'sandyard']) // prettier-ignore
    assert.equal(asked.code, 0, asked.stderr)
    const bytes = randomBytes(2 * MIB)
    writeFileSync(join(ssh.dir, 'shared.bin'), bytes)
    const echo = async (): Promise<string> => {
      const socket = connect({ host: '127.0.0.1', port, allowHalfOpen: true })
      socket.end('through the forward\n')
      return await text(socket).catch(() => 'not yet') // the server in the sandbox may not listen yet
    }
    const [commands, terminal, copied, echoed] = await Promise.all([
      Promise.all(Array.from({ length: 10 }, (_, n) => ssh.ssh(user, [`sleep 0.2; echo ${String(n)}`], { options: shared }))),
      ssh.ssh(user, ['tty; exit 3'], { options: ['-tt', ...shared] }),
      ssh.run('scp', ['-q', ...through, 'shared.bin', `${user}@sandyard:shared.bin`]),
      waitUntil(async () => (await echo()) === 'through the forward\n', LIMIT_MS),
    ]) // prettier-ignore
    assert.deepEqual(commands.map(({ stdout }) => stdout.trim()), Array.from({ length: 10 }, (_, n) => String(n))) // prettier-ignore
    assert.deepEqual([terminal.code, /\/dev\//.test(terminal.stdout), copied.code, echoed], [3, true, 0, true])
    assert.equal((await ssh.ssh(user, ['wc -c < shared.bin'], { options: shared })).stdout.trim(), String(bytes.length))
    assert.equal((await openedChannels()) - before, 1)
    master.kill('SIGTERM')
    echoServer.kill('SIGTERM')
    await once(master, 'exit')
  })

  test('rsync moves a tree in both directions, and then only what changed', { skip: whyMissing('rsync') }, async () => {
    await startSandbox('sync', ['rsync'])
    const tree = join(ssh.dir, 'rsynced')
    mkdirSync(join(tree, 'a/b'), { recursive: true })
    writeFileSync(join(tree, 'a/large'), randomBytes(4 * MIB))
    for (let n = 0; n < 50; n++) writeFileSync(join(tree, `a/b/${String(n)}`), `file ${String(n)}`)
    symlinkSync('a/large', join(tree, 'link'))
    const rsync = (...args: readonly string[]) =>
      tryCommand('rsync', ['-a', '--delete', '-e', sshCommand(), '--rsync-path', `env ${TOOLS} rsync`, ...args], { timeoutMs: LIMIT_MS, cwd: ssh.dir }) // prettier-ignore
    const there = 'sync.default@sandyard:copy/'
    const up = await rsync('rsynced/', there)
    assert.equal(up.code, 0, up.stderr)
    writeFileSync(join(tree, 'a/b/7'), 'changed')
    const again = await rsync('--itemize-changes', 'rsynced/', there)
    assert.deepEqual(again.stdout.split('\n').filter((line) => line.startsWith('<f')).map((line) => line.split(' ')[1]), ['a/b/7']) // prettier-ignore
    const down = await rsync(there, 'rsync-back/')
    assert.equal(down.code, 0, down.stderr)
    await runCommand('diff', ['-r', tree, join(ssh.dir, 'rsync-back')], { timeoutMs: LIMIT_MS })
    assert.ok(existsSync(join(ssh.dir, 'rsync-back/link')))
  })

  test('git clones, fetches and pushes', { skip: whyMissing('git') }, async () => {
    await startSandbox('forge', ['git'])
    const env = { ...process.env, GIT_SSH_COMMAND: sshCommand(), GIT_CONFIG_GLOBAL: '/dev/null', GIT_CONFIG_NOSYSTEM: '1' } // prettier-ignore
    const pack = (name: string): string => `env ${TOOLS} git ${name}`
    const git = async (cwd: string, ...args: readonly string[]): Promise<string> => {
      const author = ['-c', 'user.name=t', '-c', 'user.email=t@example.com', '-c', 'init.defaultBranch=main']
      const { stdout } = await runCommand('git', [...author, ...args], { timeoutMs: LIMIT_MS, cwd, env })
      return stdout
    }
    const made = await ssh.ssh('forge.default', [`env ${TOOLS} git init -q --bare -b main repo.git`])
    assert.equal(made.code, 0, made.stderr)
    const url = 'ssh://forge.default@sandyard/root/repo.git'
    const first = join(ssh.dir, 'first')
    await git(ssh.dir, 'clone', '-q', '-u', pack('upload-pack'), url, 'first')
    writeFileSync(join(first, 'large'), randomBytes(3 * MIB))
    await git(first, 'add', '.')
    await git(first, 'commit', '-qm', 'one')
    await git(first, 'push', '-q', `--receive-pack=${pack('receive-pack')}`, 'origin', 'HEAD:main')
    await git(ssh.dir, 'clone', '-q', '-u', pack('upload-pack'), url, 'second')
    assert.ok(readFileSync(join(ssh.dir, 'second/large')).equals(readFileSync(join(first, 'large'))))
    assert.match(await git(join(ssh.dir, 'second'), 'log', '--format=%s'), /^one\n$/)
  })

  test(
    'what Remote-SSH does first: a script by standard input finds out, installs, starts a server that stays, and is reached by SOCKS',
    { skip: whyMissing('curl') },
    async () => {
      const socks = await freePort()
      const child = ssh.start([
        '-T',
        '-D',
        `127.0.0.1:${String(socks)}`,
        '-o',
        'ConnectTimeout=15',
        `${user}@sandyard`,
        'sh',
      ])
      assert.ok(child.stdin !== null && child.stdout !== null)
      let seen = ''
      child.stdout.setEncoding('utf8').on('data', (piece: string) => {
        seen += piece
      })
      child.stdin.write(EDITOR_SCRIPT)
      const port = await waitUntil(
        () => /listeningOn==(\d+)==/.exec(seen)?.[1],
        LIMIT_MS,
        () => seen,
      )
      assert.match(seen, /^a1b2c3: running\nplatform==Linux==\narch==\S+==\nlock==taken==\n/)
      await waitUntil(() => seen.includes('SSH_CONNECTION=127.0.0.1 '), LIMIT_MS)
      const ask = () =>
      tryCommand('curl', ['-sS', '-m', '10', '--socks5-hostname', `127.0.0.1:${String(socks)}`, `http://127.0.0.1:${port}/version`], { timeoutMs: LIMIT_MS }) // prettier-ignore
      assert.equal((await ask()).stdout, 'from the sandbox\n')
      // The editor's second step sends its server by a second connection, when the sandbox can't download it.
      const bytes = randomBytes(5 * MIB)
      const sent = await ssh.ssh(user, ['cat > ~/.editor-server/server.tar && wc -c < ~/.editor-server/server.tar'], { input: bytes }) // prettier-ignore
      assert.equal(sent.stdout.trim(), String(bytes.length))
      // The script's shell stays: the editor's other ports go through the same connection.
      child.stdin.write('echo still==here==\n')
      await waitUntil(() => seen.includes('still==here=='), LIMIT_MS)
      assert.equal((await ask()).stdout, 'from the sandbox\n')
      child.stdin.end()
      await once(child, 'exit')
      // A later connection finds the server that the first one started.
      const later = await ssh.ssh(user, ['sh'], { input: 'kill -0 $(cat ~/.editor-server/pid) && echo running\n' })
      assert.equal(later.stdout, 'running\n', later.stderr)
    },
  )
})

/** Does what the script of Remote-SSH does at a first connection, in the same order. */
const EDITOR_SCRIPT = `
echo "a1b2c3: running"
echo "platform==$(uname -s)=="
echo "arch==$(uname -m)=="
umask 077
base="$HOME/.editor-server"
mkdir -p "$base/bin"
[ -w "$base" ] || { echo "exitCode==31=="; exit 0; }
if ln -s "$$" "$base/lock" 2>/dev/null; then echo "lock==taken=="; else echo "lock==held=="; fi
for tool in curl wget; do if command -v "$tool" >/dev/null 2>&1; then download=$tool; fi; done
cp "$HOME/server.pl" "$base/bin/server"
setsid ${PERL} "$base/bin/server" 9123 > "$base/log" 2>&1 < /dev/null &
echo $! > "$base/pid"
tries=0
until grep -q listeningOn "$base/log" || [ $tries = 100 ]; do sleep 0.05; tries=$((tries + 1)); done
kill -0 "$(cat "$base/pid")" && cat "$base/log"
rm -f "$base/lock"
env
echo "a1b2c3: end"
`
