import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setPlan } from '../../../src/control/orgs/plans.ts'
import { setQuota } from '../../../src/control/orgs/quotas.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { renameSandbox } from '../../../src/control/sandboxes/rename-sandbox.ts'
import { deleteVolume } from '../../../src/control/volumes/delete-volume.ts'
import { updateVolume } from '../../../src/control/volumes/update-volume.ts'
import { recordReport } from '../../../src/control/workers/record-report.ts'
import { makeAnswer } from '../../../src/control/workers/sync-answer.ts'
import type { ObservedRun, StoredVolume } from '../../../src/contract/workers/worker-protocol.ts'
import type { RunId, SandboxId, VolumeId, WorkerId } from '../../../src/domain/ids.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { reportOf } from '../../support/report.ts'
import { makeVolumeWorld, type VolumeWorld } from '../../support/volume-world.ts'

// A worker that reports its current generation gets no new answer. Therefore every change that alters its answer must
// raise its generation in the same transaction. Other changes should not raise it, because each raise costs one answer.

let world: VolumeWorld
let worker: WorkerId
let other: WorkerId
let sandbox: Sandbox
let volume: VolumeId
before(async () => {
  world = await makeVolumeWorld()
  worker = await world.addWorker('w1')
  await report()
  other = await world.addWorker('w2')
})
after(() => world.close())

let seq = 0
let phase: ObservedRun['phase'] | null = null
let volumes: readonly StoredVolume[] | null = null

async function rowsOf<Row extends object>(text: string, values: readonly unknown[]): Promise<readonly Row[]> {
  const { rows } = await world.deps.db.asSystem((q) => q.query<Row & Record<string, unknown>>({ text, values }))
  return rows
}

/** A report of the worker: its run is in `phase`, and it stores the disk of the sandbox. */
async function makeReport() {
  const stored = await rowsOf<{ id: SandboxId }>('SELECT id FROM sandboxes', [])
  const runs = await rowsOf<{ run_id: RunId; sandbox_id: SandboxId }>(
    'SELECT id AS run_id, sandbox_id FROM runs WHERE worker_id = $1 AND ended_at IS NULL',
    [worker],
  )
  const observed = (run: { run_id: RunId; sandbox_id: SandboxId }): readonly ObservedRun[] =>
    phase === null ? [] : [{ ...run, phase, ...(phase === 'ended' ? { outcome: { kind: 'stopped' } as const } : {}) }]
  return reportOf(worker, {
    seq: ++seq,
    driver: {
      name: 'played',
      isolation: 'none',
      abilities: ['named_mounts', 'bind_mounts'],
      images: [],
      default_disk_mib: 1,
    },
    storage: { is_shared: false, enforces_caps: true, how: 'as the test says' },
    stored_sandboxes: stored.map(({ id }) => id),
    observed_runs: runs.flatMap(observed),
    volumes,
  })
}

async function report(): Promise<void> {
  await recordReport(world.deps, await makeReport())
  volumes = null
}

async function generationOf(id: WorkerId): Promise<number> {
  const [row] = await rowsOf<{ generation: number }>('SELECT generation FROM worker_generations WHERE worker_id = $1', [
    id,
  ])
  return row?.generation ?? 0
}

async function answer(): Promise<string> {
  const made = await makeAnswer({ ...world.deps, tickets: { openTickets: () => [] } }, await makeReport())
  return JSON.stringify(made)
}

type Case = {
  readonly what: string
  readonly act: () => Promise<unknown>
  /** Whether the next answer contains something new for the worker. */
  readonly isNews: boolean
}

const usedBytes = (used_bytes: number): StoredVolume => ({
  org_id: world.caller.org_id,
  volume_id: volume,
  used_bytes,
})
const endRun = async (): Promise<void> => {
  phase = 'ended'
  await report()
  phase = null
}
const createAndPlace = async (): Promise<void> => {
  sandbox = await world.create(['data'])
  await world.place()
}

/** The changes in the order of a sandbox's lifecycle. Each one continues from the state after the previous one. */
const CASES: readonly Case[] = [
  {
    what: 'a volume without a home worker is created',
    act: async () => (volume = (await world.addVolume('data', 1)).id),
    isNews: false,
  },
  { what: 'a run is placed on the worker, which becomes the home of its volume', act: createAndPlace, isNews: true },
  { what: 'a worker reports that the run is starting', act: () => ((phase = 'starting'), report()), isNews: false },
  { what: 'a worker reports that the run is running', act: () => ((phase = 'running'), report()), isNews: false },
  {
    what: 'a sandbox is renamed',
    act: () => renameSandbox(world.deps, world.caller, { id: sandbox.id }, { name: 'other' }),
    isNews: true,
  },
  {
    what: 'the cap of a volume is changed',
    act: () => updateVolume(world.deps, world.caller, volume, { capacity_gib: 2 }),
    isNews: true,
  },
  {
    what: 'the labels of a volume are changed',
    act: () => updateVolume(world.deps, world.caller, volume, { labels: { tier: 'test' } }),
    isNews: false,
  },
  {
    what: 'a worker reports the sizes of its volumes',
    act: () => ((volumes = [usedBytes(100)]), report()),
    isNews: false,
  },
  {
    what: 'the storage limit of an organization is set',
    act: () => setQuota(world.deps, world.caller, { limit: 'max_total_storage_gib', value: 50 }),
    isNews: true,
  },
  {
    what: 'the storage limit of an organization is removed',
    act: () => setQuota(world.deps, world.caller, { limit: 'max_total_storage_gib', value: null }),
    isNews: true,
  },
  {
    what: 'the limits of an organization’s plan change',
    act: async () => {
      await rowsOf(`UPDATE orgs SET quota_overrides = '{}'`, [])
      const from = await generationOf(worker)
      await setPlan(world.deps, 'unlimited', { limits: { max_total_storage_gib: 70 } })
      assert.ok((await generationOf(worker)) > from)
    },
    isNews: true,
  },
  { what: 'a run is asked to stop', act: () => world.stop(sandbox), isNews: true },
  { what: 'a run ends', act: endRun, isNews: true },
  {
    what: 'a stopped sandbox is deleted whose writable layer the worker stores',
    act: () => deleteSandbox(world.deps, world.caller, { id: sandbox.id }),
    isNews: true,
  },
  { what: 'a volume is deleted', act: () => deleteVolume(world.deps, world.caller, volume), isNews: true },
  {
    what: 'a worker reports that a deleted volume is gone',
    act: () => ((volumes = []), report()),
    isNews: true,
  },
  {
    what: 'a volume loses its home worker, as when that worker is removed by force',
    act: async () => {
      const { id } = await world.addVolume('other')
      await rowsOf('UPDATE volumes SET home_worker_id = $2 WHERE id = $1', [id, worker])
      const from = await generationOf(worker)
      await rowsOf('UPDATE volumes SET home_worker_id = NULL WHERE id = $1', [id])
      assert.ok((await generationOf(worker)) > from)
    },
    isNews: false,
  },
]

test('every change that alters a worker’s answer raises its generation, and no other worker’s', async (t) => {
  for (const { what, act, isNews } of CASES) {
    await t.test(what, async () => {
      const before = { answer: await answer(), generation: await generationOf(worker) }
      await act()
      const now = { answer: await answer(), generation: await generationOf(worker) }
      assert.equal(now.answer !== before.answer, isNews, `${before.answer}\n${now.answer}`)
      if (isNews) assert.ok(now.generation > before.generation)
      else if (!/home/.test(what)) assert.equal(now.generation, before.generation)
      assert.equal(await generationOf(other), 0)
    })
  }
})

test('queries of an organization see no generations, and a change that it makes to a volume raises one all the same', async () => {
  const { org_id } = world.caller
  const { id } = await world.addVolume('seen')
  await rowsOf('UPDATE volumes SET home_worker_id = $2 WHERE id = $1', [id, worker])
  const from = await generationOf(worker)
  const { deps } = world
  const seen = await deps.db.transaction(org_id, async (tx) => {
    await tx.query({ text: 'UPDATE volumes SET capacity_gib = 3 WHERE id = $1', values: [id] })
    const { rows } = await tx.query<{ count: number; org: string }>({
      text: `SELECT count(*) AS count, current_setting('sandyard.org') AS org FROM worker_generations`,
    })
    return rows[0]
  })
  assert.deepEqual([seen?.count, seen?.org], [0, org_id])
  assert.equal(await generationOf(worker), from + 1)
})
