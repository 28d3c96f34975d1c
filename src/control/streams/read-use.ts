import type { LatestUse } from '../../contract/streams/metrics-protocol.ts'
import type { OrgId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import * as runningSandboxes from '../../store/sandboxes/running-sandboxes.ts'
import type { BaseDeps } from '../deps.ts'
import { askWorker } from './ask-worker.ts'
import type { WorkerStreams } from './open-worker-stream.ts'

type UseDeps = Pick<BaseDeps, 'db' | 'log'> & WorkerStreams

/** A running sandbox with what it used at last. `use` is null if the worker didn't say, or doesn't sample it. */
export type RunningSandbox = runningSandboxes.RunningSandboxRow & { readonly use: LatestUse['point'] | null }

export type CurrentUse = {
  readonly sandboxes: readonly RunningSandbox[]
  /** The workers that did not answer. */
  readonly silent_workers: readonly string[]
}

/** The most running sandboxes that are read at once, the newest. */
export const RUNNING_MAX = 10_000
/** The longest answer of a worker: for as many sandboxes, of 350 bytes each. */
const ANSWER_LIMIT_BYTES = RUNNING_MAX * 512

/** How long a worker may take to answer. A live one takes milliseconds, and a silent one must not delay the others' answers. */
const ANSWER_WAIT_MS = 2_000

/** What the running sandboxes of the caller's organization use now. */
export function readOrgUse(
  deps: UseDeps,
  { org_id }: Pick<Caller, 'org_id'>,
  signal: AbortSignal,
): Promise<CurrentUse> {
  return readUse(deps, org_id, signal)
}

/** What the running sandboxes of all organizations use now. */
export function readFleetUse(deps: UseDeps, _caller: Caller, signal: AbortSignal): Promise<CurrentUse> {
  return readUse(deps, null, signal)
}

async function readUse(deps: UseDeps, org: OrgId | null, signal: AbortSignal): Promise<CurrentUse> {
  const rows = await deps.db.asSystem((q) => runningSandboxes.list(q, org, RUNNING_MAX))
  const workers = new Map<WorkerId, string>(rows.map(({ worker_id, worker }) => [worker_id, worker]))
  const silent: string[] = []
  const latest = new Map<SandboxId, LatestUse['point']>()
  await Promise.all(
    [...workers].map(async ([worker_id, name]) => {
      const query = { get: 'latest', org_id: org } as const
      const target = { worker_id, purpose: { kind: 'metrics', query } } as const
      const limit = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_WAIT_MS)])
      try {
        const answer = await askWorker(deps, target, { signal: limit, limitBytes: ANSWER_LIMIT_BYTES })
        for (const { sandbox_id, point } of answer as readonly LatestUse[]) latest.set(sandbox_id, point)
      } catch (error) {
        deps.log.debug({ error, worker: name }, 'a worker did not say what its sandboxes use')
        silent.push(name)
      }
    }),
  )
  return {
    sandboxes: rows.map((row) => ({ ...row, use: latest.get(row.id) ?? null })),
    silent_workers: silent.toSorted(),
  }
}
