import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { createVolume } from '../../src/control/volumes/create-volume.ts'
import { stopSandbox } from '../../src/control/sandboxes/stop-sandbox.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import { makeAnswer, type AnswerBody } from '../../src/control/workers/sync-answer.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import type { StoredVolume } from '../../src/contract/workers/worker-protocol.ts'
import type { Ability } from '../../src/domain/abilities.ts'
import type { VolumeId, WorkerId } from '../../src/domain/ids.ts'
import type { Sandbox } from '../../src/domain/sandboxes/sandbox.ts'
import type { Mount } from '../../src/domain/spec/spec.ts'
import type { Volume } from '../../src/domain/volumes/volume.ts'
import type { Clock } from '../../src/lib/clock.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeReapVolumesLoop } from '../../src/loops/reap-volumes.ts'
import { makeTestControl, type TestControl } from './control.ts'
import { reportOf } from './report.ts'
import { PLAIN_SPEC } from './spec.ts'

export const never = new AbortController().signal

/** A worker's report about its storage and volumes. `volumes: null` means no change since the last report. */
export type Said = {
  readonly volumes?: readonly StoredVolume[] | null
  readonly is_shared?: boolean
  readonly enforces_caps?: boolean
  readonly serves_files?: boolean
  readonly abilities?: readonly Ability[]
  readonly memory_mib?: number
  readonly known?: string | null
}

/** A control plane without HTTP. The test acts as its workers. */
export type VolumeWorld = TestControl & {
  addWorker(name: string): Promise<WorkerId>
  /** Sends one sync of a worker: records its report and resolves with the answer. */
  sync(worker: WorkerId, said?: Said): Promise<AnswerBody>
  addVolume(name: string, capacity_gib?: number): Promise<Volume>
  create(names: readonly string[], start?: boolean): Promise<Sandbox>
  stop(sandbox: Sandbox): Promise<void>
  /** Runs one pass of the loop `place-pending`. */
  place(): Promise<void>
  reap(): Promise<void>
  homeOf(id: VolumeId): Promise<{ readonly home_worker_id: WorkerId | null; readonly is_shared: boolean } | null>
}

/** A mount of a volume by its name. */
export function named(name: string): Mount {
  const options = { readonly: false, noexec: false, nosuid: false, nodev: false }
  const share = { stat_virtualization: 'strict', host_permissions: 'private' } as const
  return { type: 'named', name, guest: `/mnt/${name}`, options, ...share }
}

/** Makes a world with a worker `w1` that has reported that it can mount volumes. */
export async function makeVolumeWorld(options: { readonly clock?: Clock } = {}): Promise<VolumeWorld> {
  const control = await makeTestControl(options)
  const { deps, caller } = control
  const tickets = { openTickets: () => [] }
  let seq = 0
  return {
    ...control,
    addWorker: (name) => registerWorker(deps, { name, credential: `the credential of ${name}` }),
    async sync(worker, said = {}) {
      const { volumes = null, is_shared = false, enforces_caps = true, serves_files = true, known = null } = said
      const { abilities = ['named_mounts', 'bind_mounts'], memory_mib = 65_536 } = said
      const report = reportOf(worker, {
        seq: ++seq,
        capacity: { vcpus: 64, memory_mib, disk_mib: 65_536 },
        driver: {
          name: 'played',
          isolation: 'none',
          abilities,
          images: [],
          default_disk_mib: 1,
        },
        storage: { is_shared, enforces_caps, serves_files, how: 'as the test says' },
        volumes,
        known_volumes_version: known,
      })
      const recorded = await recordReport(deps, report)
      return { ...(await makeAnswer({ ...deps, tickets }, report)), ...recorded?.notice }
    },
    addVolume: (name, capacity_gib) =>
      createVolume(deps, caller, { name, labels: {}, capacity_gib: capacity_gib ?? null }),
    create: (names, start = true) =>
      createSandbox(deps, caller, {
        spec: { ...PLAIN_SPEC, mounts: names.map(named) },
        name: null,
        slug: null,
        registry: { mode: 'auto' },
        start,
        waitMs: null,
        signal: never,
      }),
    async stop(sandbox) {
      await stopSandbox(deps, caller, { id: sandbox.id })
    },
    async place() {
      await makePlacePendingLoop(deps).run(never)
    },
    async reap() {
      await makeReapVolumesLoop(deps).run(never)
    },
    async homeOf(id) {
      const { rows } = await deps.db.asSystem((q) =>
        q.query<{ readonly home_worker_id: WorkerId | null; readonly is_shared: boolean }>({
          text: 'SELECT home_worker_id, is_shared FROM volumes WHERE id = $1',
          values: [id],
        }),
      )
      return rows[0] ?? null
    },
  }
}
