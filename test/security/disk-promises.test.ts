import assert from 'node:assert/strict'
import { deleteSandbox } from '../../src/control/sandboxes/delete-sandbox.ts'
import { getSandbox } from '../../src/control/sandboxes/read-sandboxes.ts'
import { startSandbox } from '../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../src/control/sandboxes/stop-sandbox.ts'
import { explainWaiting, makeReadFleet } from '../../src/control/workers/explain-waiting.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import type { SandboxId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeSimulatedDriver } from '../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld } from '../../src/worker/drivers/simulated-world.ts'
import { addOrg } from '../support/orgs.ts'
import { createTestSandbox } from '../support/quota-world.ts'
import { attack } from '../support/security-attack.ts'
import { waitUntil } from '../support/wait.ts'
import { makeWorkerWorld } from '../support/worker-world.ts'

const CAPACITY = { vcpus: 1_000, memory_mib: 1_000_000, disk_mib: 100_000 }
const LARGE_MIB = 30_000
const TRIES = 12

attack(
  "promises a worker's whole disk away, by large disks of sandboxes that are stopped or deleted",
  { target: 'neighbours', attacker: "a tenant's key", finding: 3 },
  async (t) => {
    const world = await makeWorkerWorld()
    t.after(() => world.close())
    const { deps, caller: attacker } = world.control
    const machine = makeSimulatedWorld()
    const driver = makeSimulatedDriver({
      clock: systemClock,
      world: machine,
      capacity: CAPACITY,
      defaultDiskMib: 1_000,
      behaviourOf: () => ({ ...PATIENT, stopDelayMs: 300 }),
    })
    t.after(() => driver.close())
    const stopWorker = world.runWorker(driver)
    t.after(stopWorker)
    const statusOf = async (caller: Caller, id: SandboxId) => (await getSandbox(deps, caller, { id })).status
    const until = (caller: Caller, id: SandboxId, status: string): Promise<unknown> =>
      waitUntil(async () => (await statusOf(caller, id)) === status)

    const neighbour = await addOrg(deps, 'neighbour')
    const [running, restarted] = [await createTestSandbox(deps, neighbour), await createTestSandbox(deps, neighbour)]
    for (const { id } of [running, restarted]) await until(neighbour, id, 'running')

    const sizes = new Map<string, number>([running, restarted].map(({ id }) => [id, 1_000]))
    const deleted = new Set<SandboxId>()
    let mostMib = 0
    /** Adds up the disks of sandboxes that exist or run. A worker deletes all others before it makes new ones. */
    const look = (): void => {
      const live = [...machine.runs.values()].filter(({ observed }) => observed.phase !== 'ended')
      const kept = [...machine.stored].filter((id) => !deleted.has(id))
      const disks = new Set([...kept, ...live.map(({ desired }) => desired.sandbox_id)])
      const mib = [...disks].reduce((sum, id) => sum + (sizes.get(id) ?? LARGE_MIB), 0)
      mostMib = Math.max(mostMib, mib)
    }
    machine.onChange.add(look)

    const waiting: SandboxId[] = []
    for (let index = 0; index < TRIES; index++) {
      const { id } = await createTestSandbox(deps, attacker, { disk_size_mib: LARGE_MIB })
      await waitUntil(async () => {
        const { status, status_reason } = await getSandbox(deps, attacker, { id })
        return status === 'running' || status_reason === 'insufficient_capacity'
      })
      if ((await statusOf(attacker, id)) !== 'running') waiting.push(id)
      // It gives its vCPUs and memory back, and keeps or drops the disk while the worker still has it.
      else if (index % 2 === 0) await stopSandbox(deps, attacker, { id })
      else {
        deleted.add(id)
        await deleteSandbox(deps, attacker, { id })
      }
    }
    look()
    assert.ok(mostMib <= CAPACITY.disk_mib, `the worker had disks of ${String(mostMib)} MiB`)
    // The disks of deleted sandboxes go to some of those that wait. More than three disks are never deleted, so at least
    // one waits for good.
    const isToldWhy = async (id: SandboxId): Promise<boolean> => {
      const details = await explainWaiting({ ...deps, readFleet: makeReadFleet(deps) }, id)
      return (
        JSON.stringify(details?.missing.map(({ name, requested }) => [name, requested])) ===
        `[["disk_mib",${String(LARGE_MIB)}]]`
      )
    }
    await waitUntil(
      async () => (await Promise.all(waiting.map(isToldWhy))).some(Boolean),
      10_000,
      () => `none of ${String(waiting.length)} waiting sandboxes is told that disk is missing`,
    )

    await stopSandbox(deps, neighbour, { id: restarted.id })
    await until(neighbour, restarted.id, 'stopped')
    await startSandbox(deps, neighbour, { id: restarted.id }, { waitMs: null, signal: null })
    await until(neighbour, restarted.id, 'running')
    assert.equal(await statusOf(neighbour, running.id), 'running')
    const { id: fresh } = await createTestSandbox(deps, neighbour)
    await until(neighbour, fresh, 'running')
    return {
      tries: TRIES,
      outcome: `at most ${String(mostMib)} of ${String(CAPACITY.disk_mib)} MiB were promised; a start beyond them waits and names \`disk_mib\`; the neighbour's sandboxes run, restart and start`,
    }
  },
)

const PATIENT = {
  startDelayMs: 0,
  startFailure: null,
  ignoresTerm: false,
  endsAfterMs: null,
  outcome: { kind: 'exited', code: 0 },
  memoryKills: 0,
} as const
