import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { makeLog } from '../../../../src/lib/log.ts'
import type { Container } from '../../../../src/worker/drivers/oci/container.ts'
import { makeGvisorProcessGroup, makeProcessGroup } from '../../../../src/worker/drivers/oci/exec/process-group.ts'
import { waitUntil, waitUntilUnchanged } from '../../../support/wait.ts'

// A client may send a thousand signals at once, and a sandbox may have thousands of processes. The worker serves others meanwhile.

const log = makeLog('silent')
const [SIGTERM, SIGKILL, SIGCONT, SIGSTOP] = [15, 9, 18, 19]
/** A real-time signal: the kernel queues it as often as it is sent. */
const COUNTED = 40
/** A user of these processes alone. The kernel counts queued signals for each user. */
const UID = 54_321
const SIGNALS = 1456

const hierarchy = existsSync('/sys/fs/cgroup/pids') ? '/sys/fs/cgroup/pids' : '/sys/fs/cgroup'
const skip = process.getuid?.() !== 0 || !existsSync(join(hierarchy, 'cgroup.procs')) ? 'no cgroups here' : false

/** A group of stopped processes in a cgroup of their own. Signals wait in the kernel until they go on. */
async function startGroup(
  t: TestContext,
  count: number,
): Promise<{ readonly pid: number; readonly queued: () => number; readonly ended: Promise<unknown> }> {
  const folder = join(hierarchy, `sandyard-test-group-${String(process.pid)}`)
  mkdirSync(folder)
  const script = `read go; i=1; while [ $i -lt ${String(count)} ]; do sleep 600 & i=$((i+1)); done; echo up; wait`
  const leader = spawn('/bin/sh', ['-c', script], { stdio: ['pipe', 'pipe', 'inherit'], detached: true, uid: UID })
  const { pid = 0 } = leader
  const ended = once(leader, 'exit')
  t.after(async () => {
    if (leader.signalCode === null) process.kill(-pid, 'SIGKILL')
    await waitUntil(() => readFileSync(join(folder, 'cgroup.procs'), 'utf8') === '')
    rmdirSync(folder)
  })
  writeFileSync(join(folder, 'cgroup.procs'), String(pid))
  leader.stdin.write('go\n')
  await once(leader.stdout, 'data')
  process.kill(-pid, 'SIGSTOP')
  const statusOf = (one: number | string): string => readFileSync(`/proc/${String(one)}/status`, 'utf8')
  const queued = (): number => Number(/^SigQ:\s*(\d+)/m.exec(statusOf(pid))?.[1])
  const pids = readFileSync(join(folder, 'cgroup.procs'), 'utf8').trim().split('\n')
  assert.equal(pids.length, count)
  await waitUntil(() => pids.every((one) => statusOf(one).includes('State:\tT')))
  await waitUntilUnchanged(queued) // the leader's own signal for those that stop
  return { pid, queued, ended }
}

test(
  'many signals at once reach each process twice at most, and a few processes in each turn of the event loop',
  { skip },
  async (t) => {
    const count = 200
    const { pid, queued, ended } = await startGroup(t, count)
    const before = queued()
    const group = makeProcessGroup(pid, { cli: pid, process: pid }, log)
    for (let n = 0; n < SIGNALS; n++) group.signal(COUNTED)
    await setImmediate()
    assert.ok(queued() - before < count / 2, 'one turn read all processes')
    await waitUntil(() => queued() - before === 2 * count)
    group.signal(SIGKILL)
    await ended
  },
)

/** A process group in gVisor, whose runtime logs its calls and waits in each until `open` is called. */
function makeFakeGvisor(
  t: TestContext,
): ReturnType<typeof makeGvisorProcessGroup> & { open(): void; sent(): readonly number[] } {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-signals-'))
  t.after(() => {
    rmSync(folder, { recursive: true })
  })
  const [runtime, calls, gate] = [join(folder, 'runtime'), join(folder, 'calls'), join(folder, 'gate')]
  writeFileSync(calls, '')
  writeFileSync(runtime, `#!/bin/sh\necho "$@" >> ${calls}\nwhile [ ! -e ${gate} ]; do sleep 0.05; done\n`)
  chmodSync(runtime, 0o755)
  const container = { id: 'box', runtime: [runtime] } as unknown as Container // only these are used
  return {
    ...makeGvisorProcessGroup(container, 7, log),
    open() {
      writeFileSync(gate, '')
    },
    sent: () => Array.from(readFileSync(calls, 'utf8').matchAll(/ kill -(\d+) -7$/gm), ([, signal]) => Number(signal)),
  }
}

test('in gVisor, a signal that waits already is not sent twice, and the latest one comes last', async (t) => {
  const group = makeFakeGvisor(t)
  group.signal(SIGTERM)
  await waitUntil(() => group.sent().length === 1)
  for (let n = 0; n < SIGNALS; n++) group.signal(SIGTERM)
  for (const signal of [SIGSTOP, SIGCONT, SIGSTOP]) group.signal(signal)
  group.open()
  await waitUntil(() => group.sent().includes(SIGSTOP))
  assert.deepEqual(group.sent(), [SIGTERM, SIGTERM, SIGCONT, SIGSTOP])
})

test('in gVisor, a kill does not wait for the signals before it', async (t) => {
  const group = makeFakeGvisor(t)
  group.signal(SIGTERM)
  await waitUntil(() => group.sent().length === 1)
  for (let signal = 10; signal <= 64; signal++) group.signal(signal)
  group.signal(SIGKILL)
  group.open()
  await waitUntil(() => group.sent().length === 2)
  assert.deepEqual(group.sent(), [SIGTERM, SIGKILL])
})
