import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import { call, mustCall } from '../support/api.ts'
import { waitForRecovery } from '../support/fault-invariants.ts'
import { findContainers } from '../support/leftovers.ts'
import { runMsb } from '../support/msb.ts'
import { freezeTree, sendSignal } from '../support/process-tree.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { readPostmasterPid, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Real sandboxes don't depend on PostgreSQL: they continue while PostgreSQL is frozen and after it dies.

const SANDBOXES = 2
/** How long PostgreSQL is frozen: longer than the lease of a worker. */
const FREEZE_MS = WORKER_LEASE_MS + 5_000
const COMMAND_SECS = FREEZE_MS / 1000 + 5

describe('sandboxes that run while PostgreSQL does not', { skip: whyNoServer() }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer({ SANDYARD_STOP_GRACE_MS: '500' })
  })
  after(() => server.close())

  test(`PostgreSQL is frozen for ${String(FREEZE_MS / 1000)} s and is killed: sandboxes, their files, processes and commands are unaffected`, async () => {
    const names = Array.from({ length: SANDBOXES }, (_, index) => `steady-${String(index)}`)
    for (const name of names) {
      const body = { name, image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
      await mustCall(server, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
      await inside(server, name, 'echo here > /root/file; setsid sleep 98765 > /dev/null 2>&1 < /dev/null &')
    }
    const before = await Promise.all(names.map((name) => look(server, name)))
    const containers = findContainers(server.dataDir).toSorted()
    const count = `: > /root/begun; for i in $(seq ${String(COMMAND_SECS)}); do echo $i; sleep 1; done`
    const commands = names.map((name) => inside(server, name, count))

    for (const name of names)
      await waitUntil(async () => (await inside(server, name, 'test -e /root/begun')).code === 0, 60_000)
    await freezeTree(readPostmasterPid(server.dataDir) ?? 0, FREEZE_MS)
    const frozen = await waitForRecovery(server)
    const dead = readPostmasterPid(server.dataDir) ?? 0
    sendSignal(dead, 'SIGKILL')
    await waitUntil(() => ![0, dead].includes(readPostmasterPid(server.dataDir) ?? 0), 60_000)
    const killed = await waitForRecovery(server)

    const ended = await Promise.all(commands)
    for (const { code, stdout, stderr } of ended) {
      assert.equal(code, 0, stderr)
      assert.equal(stdout.trim().split('\n').length, COMMAND_SECS)
    }
    assert.deepEqual(await Promise.all(names.map((name) => look(server, name))), before)
    assert.deepEqual(containers.filter((id) => !findContainers(server.dataDir).includes(id)), []) // prettier-ignore
    noteFault({
      area: 'postgresql',
      fault: 'PostgreSQL is stopped for longer than a lease, then kill -9, under real sandboxes',
      injected: 2,
      checked:
        'sandboxes, their files and processes are the same; a command that ran meanwhile misses no line of output',
      found:
        `${String(SANDBOXES)} of ${String(SANDBOXES)} the same; a new sandbox runs after ` +
        `${String(frozen.runningMs)} and ${String(killed.runningMs)} ms`,
    })
  })
})

/**
 * A sandbox's status, start times, file and process as one text, which would differ if the sandbox had been restarted.
 */
async function look(server: RealServer, name: string): Promise<string> {
  const answer = await call(server, 'get_sandbox_by_name', { params: { name } })
  assert.ok(!answer.isRefusal, answer.text)
  const seen = await inside(
    server,
    name,
    'cat /root/file; pgrep -f "^sleep 98765"; stat -c %Z /proc/1; cut -d" " -f22 /proc/1/stat',
  )
  return `${answer.body.status} ${String(answer.body.started_at)} ${seen.stdout}`
}

function inside(server: RealServer, name: string, script: string): ReturnType<typeof runMsb> {
  return runMsb(server, ['exec', name, '--', 'sh', '-c', script])
}
