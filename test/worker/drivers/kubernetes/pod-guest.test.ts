import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Duplex } from 'node:stream'
import { buffer, text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { toolCommand } from '../../../../src/contract/workers/guest-tools.ts'
import { asId, type OrgId, type SandboxId } from '../../../../src/domain/ids.ts'
import { makePiecePacer } from '../../../../src/lib/turns/piece-pacer.ts'
import { ExecFailure, type Guest, type GuestExec, type GuestProcess } from '../../../../src/worker/channel/guest.ts'
import { makeSessionPermits } from '../../../../src/worker/channel/session-permits.ts'
import {
  AgentRefusal,
  openAgentLink,
  type AgentLink,
} from '../../../../src/worker/drivers/kubernetes/link/agent-link.ts'
import { makePodGuest } from '../../../../src/worker/drivers/kubernetes/link/pod-guest.ts'
import { makeToolbox } from '../../../../src/worker/drivers/oci/rootfs/toolbox.ts'
import { collectGarbage } from '../../../support/collect-garbage.ts'
import { countPerTurn } from '../../../support/most-per-turn.ts'
import { waitUntil } from '../../../support/wait.ts'

// The agent runs as a process of this machine, over pipes. In a Pod it runs over one command of the API.

const PLAIN: GuestExec = { cmd: 'true', args: [], env: [], cwd: '/', user: null, tty: null, rlimits: [] }
let folder = ''
let tools = ''
let link: AgentLink
let guest: Guest

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sandyard-agent-'))
  tools = await makeToolbox(folder)
  link = await openLink(startAgent().stream)
  guest = guestOf(link)
})
after(async () => {
  link.close()
  await rm(folder, { recursive: true })
})

function startAgent(limits?: string): { readonly stream: Duplex; readonly ended: Promise<unknown> } {
  const [program = '', ...args] = toolCommand('agent.pl', [process.arch], tools)
  const child = spawn(program, args, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: {
      PATH: process.env['PATH'],
      KUBERNETES_PORT: 'tcp://10.0.0.1:443',
      FROM_IMAGE: 'yes',
      ...(limits === undefined ? {} : { SANDYARD_RLIMITS: `${process.arch} ${limits}` }),
    },
  })
  return { stream: Duplex.from({ writable: child.stdin, readable: child.stdout }), ended: once(child, 'exit') }
}

function openLink(stream: Duplex): Promise<AgentLink> {
  return openAgentLink(stream, makePiecePacer().paceOf('org'))
}

/** The connection of an agent that says nothing by itself. */
function silentStream(): Duplex {
  return new Duplex({
    read: () => undefined,
    write: (_data, _encoding, done) => {
      done()
    },
  })
}

function guestOf(one: AgentLink): Guest {
  const sessions = makeSessionPermits({ perSandbox: 64, perOrg: 64, total: 64 })
  const ids = { sandbox: asId<SandboxId>('box'), org: asId<OrgId>('org') }
  return makePodGuest({ ...ids, sessions, link: () => Promise.resolve(one), tools })
}

async function run(script: string, more: Partial<GuestExec> = {}): Promise<{ out: string; err: string; code: number }> {
  const process = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', script], ...more })
  process.stdin.end()
  const [out, err, code] = await Promise.all([
    text(process.stdout),
    process.stderr === null ? '' : text(process.stderr),
    process.exited,
  ])
  return { out, err, code }
}

test('a command has its output, error output and exit code', async () => {
  assert.deepEqual(await run('echo a; echo b >&2; exit 7'), { out: 'a\n', err: 'b\n', code: 7 })
  assert.equal((await run('kill -9 $$')).code, -1)
})

test('a command sees the variables of the container without those of Kubernetes, and its own', async () => {
  const { out } = await run('echo "$FROM_IMAGE $MORE ${KUBERNETES_PORT-none} $PATH"', { env: ['MORE=a=b'] })
  assert.match(out, /^yes a=b none \/\.msb\/scripts:/)
})

test('a command starts in its folder', async () => {
  assert.equal((await run('pwd', { cwd: folder })).out, `${folder}\n`)
})

test('what can not be started is refused with its reason', async () => {
  const refused = async (more: Partial<GuestExec>, kind: ExecFailure['kind']): Promise<void> => {
    await assert.rejects(
      guest.exec({ ...PLAIN, ...more }),
      (error) => error instanceof ExecFailure && error.kind === kind,
    )
  }
  await writeFile(join(folder, 'plain'), 'no program', { mode: 0o600 })
  await refused({ cmd: '/no/such/program' }, 'not_found')
  await refused({ cmd: 'no-such-program' }, 'not_found')
  await refused({ cmd: join(folder, 'plain') }, 'permission_denied')
  await refused({ cwd: '/no/such/folder' }, 'bad_cwd')
  await refused({ user: 'no-such-user' }, 'user_setup_failed')
  await refused({ user: '4321' }, 'user_setup_failed')
  await refused({ rlimits: [{ resource: 'nofile', soft: 2, hard: 1 }] }, 'resource_limit')
})

test('a user that is the own one is accepted', async () => {
  assert.equal((await run('true', { user: String(process.getuid?.() ?? 0) })).code, 0)
})

test('input reaches the command, and its end ends it', async () => {
  const cat = await guest.exec({ ...PLAIN, cmd: 'cat' })
  cat.stdin.write('one\n')
  cat.stdin.end('two\n')
  assert.equal(await text(cat.stdout), 'one\ntwo\n')
  assert.equal(await cat.exited, 0)
})

test('a signal reaches the whole group', async () => {
  const process = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', 'sleep 1000 & sleep 1000'] })
  process.signal(15)
  assert.equal(await process.exited, -1)
  assert.equal(await text(process.stdout), '')
})

test('a terminal has its size, follows changes of it, and echoes', async () => {
  const process = await guest.exec({
    ...PLAIN,
    cmd: 'sh',
    args: ['-c', 'stty size; read x; stty size; echo "got $x"; tty'],
    tty: { rows: 30, cols: 100 },
  })
  let seen = ''
  process.stdout.on('data', (data: Buffer) => {
    seen += data.toString('utf8')
  })
  await waitUntil(() => seen.includes('30 100'))
  process.resize(40, 120)
  process.stdin.write('hello\n')
  assert.equal(await process.exited, 0)
  await waitUntil(() => /hello\r\n40 120\r\ngot hello\r\n\/dev\/pts/.test(seen))
  assert.equal(process.stderr, null)
})

test('a reader that stops stops the command, and other commands go on', async () => {
  const process = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', 'head -c 20000000 /dev/zero; echo done >&2'] })
  let isDone = false
  process.stderr?.on('data', () => {
    isDone = true
  })
  for (let n = 0; n < 20; n += 1) assert.equal((await run('echo fine')).out, 'fine\n')
  assert.equal(isDone, false)
  assert.equal((await buffer(process.stdout)).length, 20_000_000)
  assert.equal(await process.exited, 0)
})

test('a command that does not read stops the writer', async () => {
  const process = await guest.exec({ ...PLAIN, cmd: 'sleep', args: ['1000'] })
  let taken = 0
  const piece = Buffer.alloc(65_536)
  const write = (): void => {
    process.stdin.write(piece, () => {
      taken += piece.length
      write()
    })
  }
  write()
  process.stdin.on('error', () => undefined)
  await waitUntil(() => taken > 500_000)
  assert.equal((await run('echo fine')).out, 'fine\n')
  assert.ok(taken < 4_000_000)
  process.signal(9)
  await process.exited
})

test('20 MB go in and out unchanged', async () => {
  const bytes = Buffer.alloc(20_000_000, 'abcdefg')
  const cat = await guest.exec({ ...PLAIN, cmd: 'cat' })
  cat.stdin.end(bytes)
  assert.ok((await buffer(cat.stdout)).equals(bytes))
})

test('files are served', async () => {
  const files = await guest.openFiles()
  const path = join(folder, 'written')
  const options = {
    read: false,
    write: true,
    append: false,
    create: true,
    truncate: true,
    createNew: false,
    mode: null,
  }
  await files.openFile(1, path, { ...options, user: null })
  await files.write(1, 0, Buffer.from('content'))
  await files.closeSlot(1)
  assert.equal(await readFile(path, 'utf8'), 'content')
  await files.close()
})

test('a connection is made from the sandbox', async () => {
  const server = createServer((socket) => socket.pipe(socket)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const stream = await guest.connect({ host: '127.0.0.1', port }, new AbortController().signal)
  stream.end('over there')
  assert.equal(await text(stream), 'over there')
  server.close()
  await assert.rejects(guest.connect({ host: '127.0.0.1', port }, new AbortController().signal), /refused/)
})

test('the agent kills everything that it started when its connection ends', async () => {
  const agent = startAgent()
  const own = await openLink(agent.stream)
  const process = await guestOf(own).exec({ ...PLAIN, cmd: 'sh', args: ['-c', 'sleep 1000 & echo $!; wait'] })
  const [line] = (await once(process.stdout, 'data')) as [Buffer]
  own.close()
  assert.equal(await process.exited, -1)
  await agent.ended
  const pid = Number(line.toString('utf8'))
  await waitUntil(async () => (await run(`kill -0 ${String(pid)} 2>/dev/null || echo gone`)).out === 'gone\n')
  await assert.rejects(
    own.start({ command: ['true'], env: [], hasOwnEnv: false, cwd: null, user: null, tty: null, rlimits: [] }),
  )
})

test('commands have the limits of their sandbox or their own, and the programs of the toolbox have neither', async () => {
  const own = await openLink(startAgent('nofile=64:128 core=0:0').stream)
  const limited = guestOf(own)
  const read = async (more: Partial<GuestExec> = {}): Promise<string> => {
    const script = 'ulimit -Sn; ulimit -Hn; ulimit -c; env | grep -c SANDYARD || true'
    const process = await limited.exec({ ...PLAIN, cmd: 'sh', args: ['-c', script], ...more })
    return await text(process.stdout)
  }
  assert.equal(await read(), '64\n128\n0\n0\n')
  assert.equal(await read({ rlimits: [{ resource: 'nofile', soft: 32, hard: 96 }] }), '32\n96\n0\n0\n')
  assert.equal(await read(), '64\n128\n0\n0\n')
  const tool = { command: ['sh', '-c', 'ulimit -Hn'], env: [`PATH=${process.env['PATH'] ?? ''}`], hasOwnEnv: true }
  const started = await own.start({ ...tool, cwd: null, user: null, tty: null, rlimits: [] })
  assert.notEqual(await text(started.stdout), '128\n')
  own.close()
})

test('a limit that the sandbox can not have is refused by name before any command', async () => {
  const refused = async (limits: string, pattern: RegExp): Promise<void> => {
    await assert.rejects(
      openLink(startAgent(limits).stream),
      (error) => error instanceof AgentRefusal && pattern.test(error.message),
    )
  }
  await refused(`core=0:0 nofile=1:${String(2 ** 40)}`, /^rlimits: nofile=1:1099511627776: Operation not permitted$/)
  await refused('nofile=-1:-1', /^rlimits: nofile=-1:-1: Invalid argument$/)
})

test('an agent of an earlier version takes no limits, and says so', async () => {
  const stream = silentStream()
  const opening = openLink(stream)
  stream.push(READY)
  const rlimits = [{ resource: 'nofile', soft: 1, hard: 1 }]
  const old = await opening
  assert.equal(old.setsLimits, false)
  await assert.rejects(
    old.start({ command: ['true'], env: [], hasOwnEnv: false, cwd: null, user: null, tty: null, rlimits }),
    (error) => error instanceof ExecFailure && error.kind === 'resource_limit',
  )
  stream.destroy()
})

test('an agent that breaks its protocol is disconnected', async () => {
  const stream = silentStream()
  const opening = openLink(stream)
  stream.push(READY)
  const broken = await opening
  stream.push(Buffer.from([255, 255, 255, 255, 72, 0, 0, 0, 0]))
  await broken.closed
  assert.equal(broken.isClosed, true)
})

const READY = Buffer.from([0, 0, 0, 5, 72, 0, 0, 0, 0])

/** Links with a command each, whose messages the test sends. They share the turns of one organization. */
async function openScripted(count: number): Promise<readonly { stream: Duplex; process: GuestProcess }[]> {
  const pacer = makePiecePacer(0)
  return await Promise.all(
    Array.from({ length: count }, async () => {
      const stream = silentStream()
      stream.push(READY)
      const own = await openAgentLink(stream, pacer.paceOf('org'))
      const plain = { env: [], hasOwnEnv: false, cwd: null, user: null, tty: null, rlimits: [] }
      const starting = own.start({ ...plain, command: ['cat'] })
      stream.push(message('S', Buffer.from([0, 0, 0, 7])))
      return { stream, process: await starting }
    }),
  )
}

/** A message about the first command of a link. */
function message(type: string, fields: Buffer): Buffer {
  const header = Buffer.alloc(9)
  header.writeUInt32BE(5 + fields.length, 0)
  header.write(type, 4, 'latin1')
  header.writeUInt32BE(1, 5)
  return Buffer.concat([header, fields])
}

test('small messages of several agents are handled few in a turn, and each is handled in order', async () => {
  const links = await openScripted(4)
  const perTurn = countPerTurn()
  const outputs = links.map(async ({ stream, process }) => {
    let received = ''
    process.stdout.on('data', (data: Buffer) => {
      received += data.toString('latin1')
      perTurn.count(data.length)
    })
    const letters = Array.from({ length: 3_000 }, (_, n) => String.fromCharCode(97 + (n % 26)))
    const end = [message('O', Buffer.alloc(0)), message('E', Buffer.alloc(0)), message('X', Buffer.alloc(4))]
    stream.push(Buffer.concat([...letters.map((letter) => message('O', Buffer.from(letter))), ...end]))
    assert.equal(await process.exited, 0)
    await waitUntil(() => process.stdout.readableEnded)
    assert.equal(received, letters.join(''))
    stream.destroy()
  })
  await Promise.all(outputs)
  // After 512 messages in a turn, each of the other links has one more handled.
  assert.ok(perTurn.most() <= 512 + 4, `${String(perTurn.most())} messages in a turn`)
})

test('unread output takes about as much memory if it came in single bytes', async () => {
  const [{ stream, process: child } = assert.fail()] = await openScripted(1)
  const usedMib = async (): Promise<number> => {
    await collectGarbage()
    const { heapUsed, external } = process.memoryUsage()
    return (heapUsed + external) / 1024 ** 2
  }
  const beforeMib = await usedMib()
  const bytes = 256 * 1024
  for (let at = 0; at < bytes; at += 1024) {
    const letters = Array.from({ length: 1024 }, (_, n) => message('O', Buffer.of((at / 1024 + n) % 256)))
    stream.push(Buffer.concat(letters))
    if (stream.isPaused()) await once(stream, 'resume')
  }
  stream.push(
    Buffer.concat([message('O', Buffer.alloc(0)), message('E', Buffer.alloc(0)), message('X', Buffer.alloc(4))]),
  )
  assert.equal(await child.exited, 0)
  const grownMib = (await usedMib()) - beforeMib
  assert.ok(grownMib < 16, `${grownMib.toFixed(1)} MiB for ${String(bytes)} bytes`)
  const all = Buffer.from(Uint8Array.from({ length: bytes }, (_, n) => Math.floor(n / 1024) + (n % 1024)))
  assert.ok((await buffer(child.stdout)).equals(all))
  stream.destroy()
})

test('messages that arrive in pieces of any size are the same', async () => {
  for (const size of [1, 4, 8, 9, 10, 4_000]) {
    const [{ stream, process } = assert.fail()] = await openScripted(1)
    const bytes = Buffer.concat([
      message('O', Buffer.alloc(10_000, 'x')),
      message('O', Buffer.from('y')),
      message('O', Buffer.alloc(0)),
      message('E', Buffer.alloc(0)),
      message('X', Buffer.from([0, 0, 0, 3])),
    ])
    for (let at = 0; at < bytes.length; at += size) stream.push(bytes.subarray(at, at + size))
    assert.equal(await text(process.stdout), `${'x'.repeat(10_000)}y`)
    assert.equal(await process.exited, 3)
    stream.destroy()
  }
})

test('sizes and signals wait while the connection takes nothing, the latest size and one of each signal', async () => {
  const sent: Buffer[] = []
  let takes: (() => void) | null = null
  const stream = new Duplex({
    read: () => undefined,
    write: (data: Buffer, _encoding, done) => {
      sent.push(data)
      takes = done
    },
  })
  const opening = openLink(stream)
  stream.push(READY)
  const own = await opening
  const starting = guestOf(own).exec({ ...PLAIN, cmd: 'cat', tty: { rows: 24, cols: 80 } })
  await waitUntil(() => sent.length === 1)
  stream.push(Buffer.from([0, 0, 0, 9, 83, 0, 0, 0, 1, 0, 0, 0, 7]))
  const process = await starting
  process.stdin.write(Buffer.alloc(100_000))
  const before = stream.writableLength
  for (let n = 1; n <= 10_000; n++) {
    process.resize(n, 80)
    process.signal(1 + (n % 2))
    if (n % 100 === 0) await setImmediate()
  }
  assert.ok(stream.writableLength - before < 1024, String(stream.writableLength - before))
  await waitUntil(() => {
    const done = takes
    takes = null
    done?.()
    return sent.length === 7
  })
  const last = sent.slice(-5).map((frame) => [frame.toString('latin1', 4, 5), frame.subarray(9).toString('hex')])
  assert.deepEqual(last, [
    ['R', '00010050'],
    ['K', '00000002'],
    ['R', '27100050'],
    ['K', '00000002'],
    ['K', '00000001'],
  ])
  own.close()
})
