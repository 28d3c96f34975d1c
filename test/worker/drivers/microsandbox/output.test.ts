import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makePiecePacer } from '../../../../src/lib/turns/piece-pacer.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { serveChannel } from '../../../../src/worker/channel/serve-channel.ts'
import { followExecLog, skipExistingOutput } from '../../../../src/worker/drivers/microsandbox/output-captures.ts'
import { WATCHER_MARK, type WorkloadRequest } from '../../../../src/worker/drivers/microsandbox/start-workload.ts'
import type { LogWriter } from '../../../../src/worker/logs/logs.ts'
import { makeLocalGuest } from '../../../support/local-guest.ts'
import { waitUntil } from '../../../support/wait.ts'

let dir: string
let server: Server
before(async () => {
  dir = mkdtempSync(join(tmpdir(), 'sandyard-vm-out-'))
  // Our own agent acts as the runtime's relay. Both speak the same protocol, beginning with the prologue.
  server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => socket.destroy())
    serveChannel(socket, makeLocalGuest(), {
      clock: systemClock,
      log: makeLog('silent'),
      limits: { sessions: 8 },
      pace: makePiecePacer().paceOf('org'),
      agentVersion: 'test',
      onActivity: () => undefined,
      onProcess: () => () => undefined,
      capture: { stream: () => ({ write: () => undefined, end: () => undefined }) },
    }).catch(() => socket.destroy())
  })
  server.listen(join(dir, 'agent.sock'))
  await once(server, 'listening')
})
after(() => {
  server.close()
  rmSync(dir, { recursive: true, force: true })
})

/** Starts the process that runs a workload and records its end, as the driver does. */
function runWorkload(
  name: string,
  command: readonly string[],
): { readonly end: () => unknown; readonly kill: () => void } {
  const order: WorkloadRequest = {
    socket: join(dir, 'agent.sock'),
    end_file: join(dir, `${name}.end`),
    command,
    env: ['A=1'],
    cwd: dir,
    user: null,
  }
  writeFileSync(join(dir, `${name}.json`), JSON.stringify(order))
  const program = join(import.meta.dirname, '../../../../src/worker/drivers/microsandbox/workload.ts')
  const child = spawn(process.execPath, [program, WATCHER_MARK, join(dir, `${name}.json`)], { stdio: 'ignore' })
  return {
    end: () => readOrUndefined(order.end_file),
    kill: () => child.kill('SIGTERM'),
  }
}

function readOrUndefined(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'))
  } catch {
    return undefined
  }
}

test('a workload runs in its folder with its environment, and its exit code is recorded', async () => {
  const { end } = runWorkload('code', ['sh', '-c', 'echo "$A" >here; exit 7'])
  assert.deepEqual(await waitUntil(end), { kind: 'exited', code: 7 })
  assert.equal(readFileSync(join(dir, 'here'), 'utf8'), '1\n')
})

test('SIGTERM to the watcher of a workload is forwarded to the workload', async () => {
  const { end, kill } = runWorkload('term', [
    'sh',
    '-c',
    'trap "exit 9" TERM; echo up >up; while :; do sleep 0.05; done',
  ])
  await waitUntil(() => readText(join(dir, 'up')) === 'up\n')
  kill()
  assert.deepEqual(await waitUntil(end), { kind: 'exited', code: 9 })
})

test('a workload that is killed or does not exist is recorded as such', async () => {
  assert.deepEqual(await waitUntil(runWorkload('killed', ['sh', '-c', 'kill -9 $$']).end), { kind: 'signalled' })
  const failed = await waitUntil(runWorkload('absent', ['/does/not/exist']).end)
  assert.match(JSON.stringify(failed), /"kind":"failed".*not\/exist/)
})

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

type Copied = { readonly writer: LogWriter; readonly text: (source: string) => string }

function makeWriter(): Copied {
  const texts = new Map<string, string>()
  return {
    text: (source) => texts.get(source) ?? '',
    writer: {
      openRun: () => undefined,
      closeRun: () => undefined,
      system: () => undefined,
      stream: (source) => ({
        write: (data) => texts.set(source, `${texts.get(source) ?? ''}${data.toString()}`),
        end: () => undefined,
      }),
    },
  }
}

/** A line as the genuine runtime writes it (exec_log.rs, 0.6.14). */
const line = (s: string, d: string, id = 1): string =>
  `${JSON.stringify({ t: '2026-11-21T12:00:00.000Z', s, d, id })}\n`

test('captured output is copied once and in order, across a restart of the worker and a rotation', async () => {
  const folder = mkdtempSync(join(dir, 'logs-'))
  const [file, positionFile] = [join(folder, 'exec.log'), join(folder, 'position')]
  const { writer, text } = makeWriter()
  const follow = (): ReturnType<typeof followExecLog> =>
    followExecLog({ folder, positionFile, writer, clock: systemClock, log: makeLog('silent') })

  writeFileSync(file, line('stdout', 'of an earlier run\n'))
  await skipExistingOutput(folder, positionFile)
  appendFileSync(file, line('stdout', 'one\n') + line('stderr', 'err\n') + line('system', '--- sandbox started ---\n'))
  const first = follow()
  await waitUntil(() => text('stdout') === 'one\n')
  await first.close()
  appendFileSync(file, line('stdout', 'two\n'))
  renameSync(file, `${file}.2`)
  writeFileSync(`${file}.1`, line('stdout', 'three\n'))
  writeFileSync(file, line('stdout', 'four\n') + line('output', 'of a terminal', 2).slice(0, 20))
  const second = follow()
  await waitUntil(() => text('stdout') === 'one\ntwo\nthree\nfour\n')
  appendFileSync(file, line('output', 'of a terminal', 2).slice(20))
  await waitUntil(() => text('output') === 'of a terminal')
  await second.close()
  assert.deepEqual([text('stdout'), text('stderr')], ['one\ntwo\nthree\nfour\n', 'err\n'])
})

test('output that was rotated before it was read is copied too, and nothing is copied twice when the position can’t be stored', async () => {
  const folder = mkdtempSync(join(dir, 'logs-'))
  const file = join(folder, 'exec.log')
  const { writer, text } = makeWriter()
  writeFileSync(`${file}.1`, line('stdout', 'one\n'))
  writeFileSync(file, line('stdout', 'two\n'))
  const positionFile = join(folder, 'absent', 'position')
  const follower = followExecLog({ folder, positionFile, writer, clock: systemClock, log: makeLog('silent') })
  await waitUntil(() => text('stdout') === 'one\ntwo\n')
  // The file that was read last has been rotated away, so all remaining files are newer.
  writeFileSync(`${file}.2`, line('stdout', 'three\n'))
  writeFileSync(join(folder, 'between'), line('stdout', 'four\n'))
  renameSync(join(folder, 'between'), `${file}.1`)
  writeFileSync(join(folder, 'next'), line('stdout', 'five\n'))
  renameSync(join(folder, 'next'), file)
  await waitUntil(() => text('stdout').endsWith('five\n'))
  await follower.close()
  assert.equal(text('stdout'), 'one\ntwo\nthree\nfour\nfive\n')
})
