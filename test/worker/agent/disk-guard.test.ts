import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { RunId, SandboxId } from '../../../src/domain/ids.ts'
import type { DiskPressure } from '../../../src/domain/workers/disk-pressure.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { RunDisk } from '../../../src/worker/drivers/driver.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

// A worker whose disk fills up, from its measurements to what clients see. The disk and the sizes of files are pretended.

const MIB = 1024 * 1024
let world: WorkerWorld
let pressure: DiskPressure = 'none'
/** What each measurement adds to the disk of a sandbox. */
const growth = new Map<SandboxId, number>()

before(async () => {
  world = await makeWorkerWorld()
  const driver = makeSimulatedDriver({ clock: systemClock })
  const sizes = new Map<RunId, number>()
  const measureDisks = async (): Promise<readonly RunDisk[]> =>
    (await driver.list()).flatMap(({ run_id, sandbox_id, phase }) => {
      const takenBytes = (sizes.get(run_id) ?? 100 * MIB) + (growth.get(sandbox_id) ?? 0)
      sizes.set(run_id, takenBytes)
      return phase === 'running' ? [{ run_id, takenBytes }] : []
    })
  const diskReserve = {
    measure: () => Promise.resolve({ total_mib: 10_000, free_mib: 333, reserve_mib: 500, pressure }),
  }
  world.runWorker({ ...driver, measureDisks }, { diskReserve })
})
after(() => world.close())

test('a worker whose disk is critical stops the sandbox that grows most, and no other', async () => {
  const [idle, slow, fast] = [await world.create(), await world.create(), await world.create()]
  const status = async (id: SandboxId): Promise<string> => (await world.statusOf(id)).status
  await waitUntil(async () => (await Promise.all([idle, slow, fast].map(({ id }) => status(id)))).every((one) => one === 'running')) // prettier-ignore
  growth.set(slow.id, 2 * MIB)
  growth.set(fast.id, 20 * MIB)
  pressure = 'low'
  await waitUntil(async () => (await reportedPressure()) === 'low')
  assert.deepEqual(await pressureEvents(), [])
  pressure = 'critical'
  await waitUntil(async () => (await status(fast.id)) === 'failed')
  growth.clear()
  assert.equal(
    (await world.statusOf(fast.id)).last_failure_message,
    "the machine's disk is full: the sandbox was stopped because its files grew most; its disk and volumes are kept",
  )
  const told = { worker: 'w1', free_mib: 332, reserve_mib: 500 }
  await waitUntil(async () => (await pressureEvents()).length === 1)
  assert.deepEqual(await pressureEvents(), [{ event_type: 'worker_disk_short', payload: told }])
  pressure = 'none'
  await waitUntil(async () => (await pressureEvents()).length === 2)
  assert.equal((await pressureEvents())[1]?.event_type, 'worker_disk_freed')
  assert.equal(await reportedPressure(), 'none')
  assert.equal(await status(idle.id), 'running')
})

async function reportedPressure(): Promise<string | undefined> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ pressure: string }>({ text: `SELECT disk ->> 'pressure' AS pressure FROM workers` }),
  )
  return rows[0]?.pressure
}

async function pressureEvents(): Promise<readonly { readonly event_type: string; readonly payload: unknown }[]> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ event_type: string; payload: unknown }>({
      text: `SELECT event_type, payload FROM events WHERE event_type LIKE 'worker_disk%' ORDER BY id`,
    }),
  )
  return rows
}
