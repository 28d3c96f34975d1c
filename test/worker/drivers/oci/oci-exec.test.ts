import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { TestContext } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeForkServers } from '../../../../src/worker/drivers/oci/exec/fork-servers.ts'
import type { Guest } from '../../../../src/worker/channel/guest.ts'
import { makeGuest } from '../../../support/container-guest.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { loadPtyBinding } from '../../../../src/worker/drivers/oci/exec/pty-binding.ts'
import { connectAgent } from '../../../support/agent-client.ts'
import type { AgentClient, ExecOptions, Finished } from '../../../support/agent-client.ts'
import { startTestContainer, UNLIMITED_SESSIONS, whyNoContainer } from '../../../support/container.ts'
import type { TestContainer } from '../../../support/container.ts'
import { testRuntime } from '../../../support/oci-driver.ts'
import { isAlive } from '../../../support/local-guest.ts'
import { waitUntil } from '../../../support/wait.ts'

const isGvisor = testRuntime() === 'runsc'
const missing = whyNoContainer()
const skip = missing === null ? false : `no real container here: ${missing}`
const log = makeLog('silent')
const launcher = makeLauncher(log)
const forkServers = makeForkServers({ launcher, clock: systemClock, log })
const MIB = 1024 * 1024
/** The test runner's own limit. How long a large output takes is up to the machine. */
const RUNNER_LIMIT_MS = 45 * 60_000

let box: TestContainer
let guest: Guest
before(async () => {
  if (missing !== null) return
  box = await startTestContainer({
    spec: {
      env: [
        { key: 'FROM_SPEC', value: 'spec' },
        { key: 'BOTH', value: 'spec' },
      ],
    },
  })
  guest = makeGuest(box.container, {
    log,
    sessions: UNLIMITED_SESSIONS,
    launcher,
    forkServers,
    pty: loadPtyBinding(),
  })
})
after(() => {
  if (missing === null) box.remove()
})

/** Opens a client of the shared container's channel, and disconnects it after the test. */
function connect(t: TestContext, options: Parameters<typeof connectAgent>[1] = {}): AgentClient {
  const client = connectAgent(guest, options)
  t.after(() => client.hangUp())
  return client
}

function sh(script: string, more: Partial<ExecOptions> = {}): ExecOptions {
  return { cmd: 'sh', args: ['-c', script], ...more }
}

async function runToEnd(t: TestContext, request: ExecOptions): Promise<Finished> {
  const client = connect(t)
  return await client.finish(client.exec(request))
}

async function failureOf(t: TestContext, request: ExecOptions): Promise<readonly unknown[]> {
  const { last } = await runToEnd(t, request)
  assert.equal(last.type, 'core.exec.failed', JSON.stringify(last))
  return [last.payload['kind'], last.payload['errno_name']]
}

/** Host ids of the processes whose command line holds a marker. */
function hostPids(marker: string): readonly number[] {
  if (isGvisor) return gvisorPids(marker)
  const folder = `/sys/fs/cgroup/pids/sandyard-test/${box.container.id}`
  const inV1 = readOrNull(join(folder, 'cgroup.procs'))
  const all = inV1 ?? readOrNull(`/sys/fs/cgroup/sandyard-test/${box.container.id}/cgroup.procs`) ?? ''
  const pids = all
    .split('\n')
    .filter((line) => line !== '')
    .map(Number)
  return pids.filter((pid) => readOrNull(`/proc/${String(pid)}/cmdline`)?.includes(marker) === true)
}

/** gVisor's own ids of such processes, which the host doesn't see. */
function gvisorPids(marker: string): readonly number[] {
  const [file = '', ...args] = [...box.container.runtime, 'exec', box.container.id, 'ps', '-eo', 'pid,args']
  const lines = spawnSync(file, args, { encoding: 'utf8', timeout: 20_000 }).stdout.split('\n')
  return lines.filter((line) => line.includes(marker)).map((line) => parseInt(line, 10))
}

function readOrNull(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}

test('stdout and stderr are separate, and the exit code is exact', { skip }, async (t) => {
  const { code, stdout, stderr } = await runToEnd(t, sh('echo out; echo err >&2; exit 42'))
  assert.deepEqual([code, stdout, stderr], [42, 'out\n', 'err\n'])
})

test('a program can reopen its standard streams, as root and as another user', { skip }, async (t) => {
  for (const user of ['root', 'alice']) {
    const { stdout, stderr } = await runToEnd(
      t,
      sh('echo x > /dev/fd/1 2>/dev/null || echo y > /proc/self/fd/1; echo z > /proc/self/fd/2', { user }),
    )
    assert.deepEqual([/[xy]\n/.test(stdout), stderr], [true, 'z\n'])
  }
  assert.equal((await runToEnd(t, sh('echo x > /dev/stdout'))).stdout, 'x\n')
})

test(
  'the request’s environment overrides the sandbox’s, which overrides the image’s, and the scripts come first on PATH',
  { skip },
  async (t) => {
    const { stdout } = await runToEnd(
      t,
      sh('echo $FROM_IMAGE $FROM_SPEC $BOTH $MINE $HOME; echo $PATH', { env: ['BOTH=request', 'MINE=1'] }),
    )
    assert.equal(stdout, 'image spec request 1 /root\n/.msb/scripts:/usr/local/bin:/usr/bin:/bin\n')
  },
)

test('a sandbox’s scripts are found by name', { skip }, async (t) => {
  const path = join(box.rootfs, '.msb/scripts/greet')
  writeFileSync(path, '#!/bin/sh\necho hello $1\n')
  chmodSync(path, 0o755)
  assert.equal((await runToEnd(t, { cmd: 'greet', args: ['you'] })).stdout, 'hello you\n')
})

test('a user is resolved by name or number, with group, home and supplementary groups', { skip }, async (t) => {
  const idOf = async (user: string): Promise<string> =>
    (await runToEnd(t, sh('echo $(id -u):$(id -g) $(id -G) $HOME', { user }))).stdout.trim()
  assert.match(await idOf('alice'), /^1000:1000 1000 (10 50|50 10) \/home\/alice$/)
  assert.match(await idOf('1000'), /^1000:1000 1000 (10 50|50 10) \/home\/alice$/)
  assert.equal(await idOf('alice:staff'), '1000:50 50 /home/alice')
  assert.equal(await idOf('4242:77'), '4242:77 77 /')
  assert.match(await idOf('root'), /^0:0 0 10 \/root$/)
  assert.deepEqual(await failureOf(t, { cmd: 'true', user: 'nobody-here' }), ['user_setup_failed', 'EINVAL'])
  assert.deepEqual(await failureOf(t, { cmd: 'true', user: '70000' }), ['user_setup_failed', 'EINVAL'])
})

test('a request without user and folder gets the sandbox’s, or else the image’s', { skip }, async (t) => {
  const runtime = { ...box.container.spec.runtime, user: 'alice', workdir: '/home/alice' }
  const fromSpec = makeGuest(
    { ...box.container, spec: { ...box.container.spec, runtime } },
    { log, sessions: UNLIMITED_SESSIONS, launcher, pty: null },
  )
  const fromImage = makeGuest(
    { ...box.container, image: { ...box.container.image, user: '1000', workdir: '/tmp' } },
    { log, sessions: UNLIMITED_SESSIONS, launcher, pty: null },
  )
  for (const [one, expected] of [
    [fromSpec, '1000 /home/alice\n'],
    [fromImage, '1000 /tmp\n'],
    [guest, '0 /\n'],
  ] as const) {
    const client = connectAgent(one)
    t.after(() => client.hangUp())
    assert.equal((await client.finish(client.exec(sh('echo $(id -u) $PWD', { cwd: null })))).stdout, expected)
  }
})

test('a program that can’t be started is refused with the reason', { skip }, async (t) => {
  writeFileSync(join(box.rootfs, 'tmp/text'), 'echo hi\n')
  chmodSync(join(box.rootfs, 'tmp/text'), 0o755)
  writeFileSync(join(box.rootfs, 'tmp/lost'), '#!/no/such/interpreter\n')
  chmodSync(join(box.rootfs, 'tmp/lost'), 0o755)
  assert.deepEqual(await failureOf(t, { cmd: 'nosuch' }), ['not_found', 'ENOENT'])
  assert.deepEqual(await failureOf(t, { cmd: '/no/such' }), ['not_found', 'ENOENT'])
  assert.deepEqual(await failureOf(t, { cmd: '' }), ['not_found', 'ENOENT'])
  assert.deepEqual(await failureOf(t, { cmd: '/tmp/lost' }), ['not_found', 'ENOENT'])
  assert.deepEqual(await failureOf(t, { cmd: '/etc/passwd' }), ['permission_denied', 'EACCES'])
  assert.deepEqual(await failureOf(t, { cmd: '/etc' }), ['permission_denied', 'EACCES'])
  assert.deepEqual(await failureOf(t, { cmd: '/tmp/text' }), ['not_executable', 'ENOEXEC'])
  assert.deepEqual(await failureOf(t, { cmd: './text', cwd: '/tmp' }), ['not_executable', 'ENOEXEC'])
  assert.deepEqual(await failureOf(t, { cmd: 'true', cwd: '/no/such' }), ['bad_cwd', 'ENOENT'])
  assert.deepEqual(await failureOf(t, { cmd: 'true', cwd: '/etc/passwd' }), ['bad_cwd', 'ENOTDIR'])
  assert.deepEqual(await failureOf(t, { cmd: 'true', cwd: '/root/locked', user: 'alice' }), ['bad_cwd', 'ENOENT'])
})

test('a program is looked up as the container sees it: symlinks don’t lead outside', { skip }, async (t) => {
  const linked = await runToEnd(t, sh('ln -sf /usr/bin/echo /tmp/say; ln -sf /../../../../bin/crun /tmp/out'))
  assert.equal(linked.code, 0)
  assert.equal((await runToEnd(t, { cmd: '/tmp/say', args: ['hi'] })).stdout, 'hi\n')
  assert.deepEqual(await failureOf(t, { cmd: '/tmp/out' }), ['not_found', 'ENOENT'])
})

test('limits of a request hold for its process, and one that can’t be set fails the start', { skip }, async (t) => {
  const rlimits = [
    { resource: 'nofile', soft: 64, hard: 128 },
    { resource: 'unheard-of', soft: 1, hard: 1 },
  ]
  if (isGvisor) {
    // Its command ignores limits, so a request for one is refused.
    assert.deepEqual(await failureOf(t, { cmd: 'true', rlimits }), ['resource_limit', 'ENOSYS'])
    return
  }
  assert.equal((await runToEnd(t, sh('ulimit -Sn; ulimit -Hn', { rlimits }))).stdout, '64\n128\n')
  assert.deepEqual(await failureOf(t, { cmd: 'true', rlimits: [{ resource: 'nofile', soft: 1, hard: 10 ** 9 }] }), [
    'resource_limit',
    'EPERM',
  ])
  assert.deepEqual(await failureOf(t, { cmd: 'true', rlimits: [{ resource: 'nofile', soft: 9, hard: 8 }] }), [
    'resource_limit',
    'EINVAL',
  ])
})

test('a process has the capabilities of the container’s first process, and gains none', { skip }, async (t) => {
  const { stdout } = await runToEnd(
    t,
    sh('grep -E "Cap(Eff|Bnd)|NoNewPrivs" /proc/self/status; grep -E "Cap(Eff|Bnd)|NoNewPrivs" /proc/1/status'),
  )
  const lines = stdout.trim().split('\n')
  const half = isGvisor ? 2 : 3 // gVisor doesn't tell of NoNewPrivs
  assert.deepEqual(lines.slice(0, half), lines.slice(half))
  if (!isGvisor) assert.ok(lines.includes('NoNewPrivs:\t1'))
})

test('the started message has the process id that the sandbox sees', { skip }, async (t) => {
  const client = connect(t)
  const id = client.exec(sh('echo $$; cat'))
  const pid = Number(await waitUntil(() => client.text(id) !== '' && client.text(id)))
  const started = await client.next((message) => message.type === 'core.exec.started')
  assert.equal(started.payload['pid'], pid)
})

test('a signal reaches the whole group, and a process that dies of it exits with -1', { skip }, async (t) => {
  const client = connect(t)
  const id = client.exec(sh('sleep 4711 & sleep 4711 & echo up; wait'))
  await waitUntil(() => client.text(id) === 'up\n')
  client.send(id, 'core.exec.signal', { signal: 15 })
  assert.equal((await client.finish(id)).code, -1)
  assert.deepEqual(hostPids('4711'), [])
})

test('a process that handles a signal exits with its own code', { skip }, async (t) => {
  const client = connect(t)
  const id = client.exec(sh('trap "echo got; exit 9" USR1; echo up; while :; do sleep 0.05; done'))
  await waitUntil(() => client.text(id) === 'up\n')
  client.send(id, 'core.exec.signal', { signal: 10 })
  const { code, stdout } = await client.finish(id)
  assert.deepEqual([code, stdout], [9, 'up\ngot\n'])
})

test('a process that kills itself exits with -1, and one that exits with 130 with 130', { skip }, async (t) => {
  assert.equal((await runToEnd(t, sh('kill -9 $$'))).code, -1)
  if (!isGvisor) assert.equal((await runToEnd(t, sh('exit 137'))).code, 137) // gVisor reports a signal as such a code
  assert.equal((await runToEnd(t, sh('exit 130'))).code, 130)
  assert.equal((await runToEnd(t, sh('exit 255'))).code, 255)
})

test('a background process that holds the output open delays the exit', { skip }, async (t) => {
  const { code, stdout } = await runToEnd(t, sh('{ sleep 0.5; echo late; } & echo early'))
  assert.deepEqual([code, stdout], [0, 'early\nlate\n'])
})

test('a background process that holds the output open can be killed after its parent ended', { skip }, async (t) => {
  const client = connect(t)
  const id = client.exec(sh('sleep 4712 & echo early'))
  await waitUntil(() => client.text(id) === 'early\n' && hostPids('4712').length === 1)
  client.send(id, 'core.exec.signal', { signal: 9 })
  assert.equal((await client.finish(id)).code, 0)
})

test('processes end when their client disconnects, with or without a terminal', { skip }, async () => {
  for (const tty of [false, true]) {
    const client = connectAgent(guest)
    const id = client.exec(sh('sleep 4713 & echo up; sleep 4713', { tty }))
    await waitUntil(() => client.text(id).includes('up') && hostPids('sleep').length >= 2)
    await client.hangUp()
    await waitUntil(() => hostPids('4713').length === 0)
  }
})

test('400 MB of output pass in bounded memory', { skip }, async (t) => {
  const size = 400_000_000
  let bytes = 0
  let peak = 0
  const client = connect(t, {
    onOutput: (data) => {
      bytes += data.length
      peak = Math.max(peak, process.memoryUsage.rss())
    },
  })
  const from = process.memoryUsage.rss()
  const id = client.exec({ cmd: 'head', args: ['-c', String(size), '/dev/zero'] })
  assert.equal((await client.finish(id, RUNNER_LIMIT_MS)).code, 0)
  assert.equal(bytes, size)
  t.diagnostic(`grew by ${String(Math.round((peak - from) / MIB))} MiB at most`)
  assert.ok(peak - from < 160 * MIB) // what the garbage collector leaves lying for a while, twice over
})

test('50 MB of input arrive complete, followed by the end of input', { skip }, async (t) => {
  const client = connect(t)
  const id = client.exec({ cmd: 'md5sum' })
  const chunk = Buffer.alloc(MIB, 'sandyard')
  for (let n = 0; n < 50; n++) client.send(id, 'core.exec.stdin', { data: chunk })
  client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
  client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
  const { createHash } = await import('node:crypto')
  const hash = createHash('md5')
  for (let n = 0; n < 50; n++) hash.update(chunk)
  assert.equal((await client.finish(id)).stdout.split(' ')[0], hash.digest('hex'))
})

test('20 processes at once each get their own streams and codes', { skip }, async (t) => {
  const client = connect(t)
  const ids = Array.from({ length: 20 }, (_, n) => client.exec(sh(`read x; echo $x; exit ${String(n)}`)))
  ids.forEach((id, n) => {
    client.send(id, 'core.exec.stdin', { data: Buffer.from(`in ${String(n)}\n`) })
  })
  const ends = await Promise.all(ids.map((id) => client.finish(id)))
  assert.deepEqual(
    ends.map((end) => [end.code, end.stdout]),
    ids.map((_, n) => [n, `in ${String(n)}\n`]),
  )
})

test(
  'a terminal without native code is resized by one process at a time, at last to the latest size',
  { skip },
  async (t) => {
    const stty = makeSlowStty(t)
    const path = process.env['PATH'] ?? ''
    process.env['PATH'] = `${stty.folder}:${path}`
    t.after(() => {
      process.env['PATH'] = path
    })
    const client = connectAgent(makeGuest(box.container, { log, sessions: UNLIMITED_SESSIONS, launcher, pty: null }))
    t.after(() => client.hangUp())
    const id = client.exec(sh('echo up; until [ "$(stty size)" = "300 80" ]; do sleep 0.02; done', { tty: true }))
    await waitUntil(() => client.text(id).includes('up'))
    for (let rows = 1; rows <= 300; rows++) client.send(id, 'core.exec.resize', { rows, cols: 80 })
    assert.equal((await client.finish(id)).code, 0)
    assert.deepEqual([...new Set(stty.starts())], ['one'])
  },
)

const terminals = [
  { name: 'native', pty: loadPtyBinding() },
  { name: 'script', pty: null },
] as const

/** A folder with an `stty` that notes each start, and whether another one ran. Then it does the same as the real one. */
function makeSlowStty(t: TestContext): { readonly folder: string; starts(): readonly string[] } {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-stty-'))
  t.after(() => {
    rmSync(folder, { recursive: true, force: true })
  })
  const [script, log] = [join(folder, 'stty'), join(folder, 'log')]
  const lines = ['#!/bin/sh', `mkdir ${folder}/lock && echo one >>${log} || echo more >>${log}`, `PATH=/usr/bin:/bin stty "$@"; rmdir ${folder}/lock`] // prettier-ignore
  writeFileSync(script, `${lines.join('\n')}\n`, { mode: 0o755 })
  return { folder, starts: () => readFileSync(log, 'utf8').split('\n').slice(0, -1) }
}

for (const { name, pty } of terminals) {
  const skipTerminal =
    skip !== false ? skip : name === 'native' && pty === null ? '@lydell/node-pty has no binary here' : false
  const connectTerminal = (t: TestContext): AgentClient => {
    const client = connectAgent(makeGuest(box.container, { log, sessions: UNLIMITED_SESSIONS, launcher, pty }))
    t.after(() => client.hangUp())
    return client
  }

  test(`${name}: a terminal has the size of the request, and follows a resize`, { skip: skipTerminal }, async (t) => {
    const client = connectTerminal(t)
    const awaitSize = (size: string): string => `until [ "$(stty size)" = "${size}" ]; do sleep 0.02; done; stty size`
    const watch = `${awaitSize('30 100')}; ${awaitSize('50 132')}` // the first may come after the start, too
    const id = client.exec(sh(watch, { tty: true, rows: 30, cols: 100 }))
    await waitUntil(() => client.text(id).includes('30 100'))
    client.send(id, 'core.exec.resize', { rows: 50, cols: 132 })
    const { code, stdout } = await client.finish(id)
    assert.deepEqual([code, stdout], [0, '30 100\r\n50 132\r\n'])
  })

  test(
    `${name}: Ctrl-C interrupts, and an empty input message does not end the input`,
    { skip: skipTerminal },
    async (t) => {
      const client = connectTerminal(t)
      const readsAgain = 'while ! read y && [ -n "$got" ]; do got=; done' // the interrupt may come before it reads, too
      const id = client.exec(sh(`trap "got=1; echo got" INT; echo up; ${readsAgain}; echo "y=$y"; exit 6`, { tty: true })) // prettier-ignore
      await waitUntil(() => client.text(id).includes('up'))
      client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
      client.send(id, 'core.exec.stdin', { data: Buffer.from('\x03') })
      await waitUntil(() => client.text(id).includes('got'))
      client.send(id, 'core.exec.stdin', { data: Buffer.from('fine\n') })
      const { code, stdout } = await client.finish(id)
      assert.equal(code, 6)
      assert.match(stdout, /y=fine/)
    },
  )

  test(
    `${name}: all output of a terminal comes before the exit, bytes that are no text included`,
    { skip: skipTerminal },
    async (t) => {
      const client = connectTerminal(t)
      const id = client.exec({ cmd: 'seq', args: ['100000'], tty: true })
      const { code, stdout } = await client.finish(id)
      assert.equal(code, 0)
      assert.equal(stdout.split('\r\n').length, 100_001)
      const raw = client.exec(sh("stty raw; printf '\\377\\376\\001'", { tty: true }))
      await client.finish(raw)
      const bytes = client.received
        .filter((message) => message.id === raw && message.type === 'core.exec.stdout')
        .map((message) => message.payload['data'])
      assert.ok(
        Buffer.concat(bytes.filter((data) => data instanceof Uint8Array)).includes(Buffer.from([0xff, 0xfe, 0x01])),
      )
    },
  )

  test(`${name}: many short processes at once, each on a terminal, lose nothing`, { skip: skipTerminal }, async (t) => {
    const client = connectTerminal(t)
    const ids = Array.from({ length: 40 }, (_, n) => client.exec({ cmd: 'echo', args: [String(n)], tty: true }))
    const ends = await Promise.all(ids.map((id) => client.finish(id)))
    assert.deepEqual(
      ends.map(({ stdout }) => stdout),
      ids.map((_, n) => `${String(n)}\r\n`),
    )
  })

  test(`${name}: a slow reader of a terminal loses nothing`, { skip: skipTerminal }, async (t) => {
    const client = connectTerminal(t)
    await client.next((message) => message.type === 'core.ready')
    client.stream.pause()
    const id = client.exec({ cmd: 'seq', args: ['200000'], tty: true })
    await waitUntil(() => client.stream.readableLength > 0)
    client.stream.resume()
    assert.equal((await client.finish(id)).stdout.split('\r\n').length, 200_001)
  })

  test(`${name}: a missing program fails an exec on a terminal as on pipes`, { skip: skipTerminal }, async (t) => {
    const client = connectTerminal(t)
    const { last } = await client.finish(client.exec({ cmd: 'nosuch', tty: true }))
    assert.equal(last.payload['kind'], 'not_found')
  })
}

test('a process whose sandbox dies ends with -1, and nothing can be started afterwards', { skip }, async (t) => {
  const other = await startTestContainer()
  t.after(() => {
    other.remove()
  })
  const client = connectAgent(
    makeGuest(other.container, { log, sessions: UNLIMITED_SESSIONS, launcher, pty: loadPtyBinding() }),
  )
  t.after(() => client.hangUp())
  const ids = [client.exec(sh('echo up; sleep 1000')), client.exec(sh('echo up; sleep 1000', { tty: true }))]
  await waitUntil(() => ids.every((id) => client.text(id).includes('up')))
  process.kill(other.container.initPid, 'SIGKILL')
  for (const id of ids) assert.equal((await client.finish(id)).code, -1)
  await waitUntil(() => !isAlive(other.container.initPid))
  assert.equal((await client.finish(client.exec({ cmd: 'true' }))).last.type, 'core.exec.failed')
})
