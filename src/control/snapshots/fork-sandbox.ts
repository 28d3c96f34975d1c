import type { Caller } from '../../domain/orgs/caller.ts'
import type { SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { forkNames, restoring } from '../../domain/snapshots/fork.ts'
import type { Snapshot } from '../../domain/snapshots/snapshot.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import * as snapshotSources from '../../store/snapshots/snapshot-sources.ts'
import * as snapshots from '../../store/snapshots/snapshots.ts'
import type { BaseDeps } from '../deps.ts'
import { createSandbox } from '../sandboxes/create-sandbox.ts'
import type { Conditions } from '../sandboxes/if-match.ts'
import { getSummary, type SandboxReader } from '../sandboxes/read-sandboxes.ts'
import { parseSpec } from '../sandboxes/parse-spec.ts'
import { renderSpec } from '../sandboxes/render-spec.ts'
import { deleteSandbox } from '../sandboxes/delete-sandbox.ts'
import { openInterceptKey, openSecretValues } from '../sandboxes/seal-secrets.ts'
import { SNAPSHOTS_TOPIC, snapshotTopic } from '../topics.ts'
import { createSnapshot, hasNoDisk, type CreateSnapshotDeps } from './create-snapshot.ts'

type ForkDeps = CreateSnapshotDeps &
  Pick<BaseDeps, 'seal' | 'log'> &
  SandboxReader &
  Parameters<typeof createSandbox>[0] &
  Parameters<typeof deleteSandbox>[0]

export type ForkCommand = Pick<Conditions, 'beforeSpec'> & {
  readonly sandbox_id: SandboxId
  readonly count: number
  /** The name of the copies. Null: names are generated. */
  readonly name: string | null
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal
}

/**
 * The most bytes that the specifications of all copies may have together. Each copy has one of its own in the database and in the reply. 24
 * copies of a specification of 4 MiB took 0.5 GB of memory (2026-11).
 */
const SPECS_MAX_BYTES = 16 * 1024 * 1024

const AUTO = { mode: 'auto' } as const
/** How long the disk of the sandbox may take. */
const SNAPSHOT_LIMIT_MS = 300_000
/** How often the snapshot is looked at if no notification comes. */
const POLL_MS = 1_000

/**
 * Creates copies of a sandbox, each with a copy of its disk of this moment. They start if the sandbox runs. Makes all of them or
 * none. Throws the errors of `createSnapshot` and of `createSandbox`.
 */
export async function forkSandbox(deps: ForkDeps, caller: Caller, input: ForkCommand): Promise<readonly Sandbox[]> {
  const { org_id } = caller
  const { spec_bytes } = await getSummary(deps, caller, { id: input.sandbox_id })
  requireSpecs(spec_bytes ?? 0, input)
  const source = await deps.db.asOrg(org_id, (q) => snapshotSources.findForkSource(q, org_id, input.sandbox_id))
  if (source === null) throw new Problem('sandbox_not_found')
  if (source.registry.mode === 'inline') refuseInlineRegistry()
  const secretValues = openSecretValues(deps.seal, input.sandbox_id, source.secrets_sealed)
  const sealedKey = source.tls_key_sealed
  const interceptKey = sealedKey === null ? null : openInterceptKey(deps.seal, input.sandbox_id, sealedKey)
  const snapshot = await madeSnapshot(deps, caller, input)
  try {
    const start = source.status === 'running'
    const restored = restoring(await parseSpec(source.spec_json), snapshot)
    const texts = await renderSpec(restored.spec)
    const common = { ...restored, texts, secretValues, interceptKey, start, registry: AUTO } as const
    return await createAll(
      deps,
      caller,
      forkNames(input.name, input.count).map((name) => ({ ...common, name, slug: null, waitMs: null, signal: null })),
    )
  } finally {
    await deps.db.asOrg(org_id, (q) => snapshots.releaseUnnamed(q, snapshot.id, deps.clock.now()))
    deps.notifications.publish([SNAPSHOTS_TOPIC])
  }
}

function requireSpecs(bytes: number, { count, beforeSpec }: ForkCommand): void {
  if (bytes * count > SPECS_MAX_BYTES) {
    throw refusalProblem({
      code: 'invalid_request',
      field: 'count',
      seen: String(count),
      accepted: `at most ${String(Math.floor(SPECS_MAX_BYTES / bytes))} copies of a specification of ${String(bytes)} bytes`,
    })
  }
  beforeSpec?.(bytes * count)
}

/** The copies get the layers of the snapshot's image, and pull nothing. */
function refuseInlineRegistry(): never {
  throw refusalProblem({
    code: 'invalid_sandbox_config',
    field: 'registry.mode',
    seen: 'inline',
    accepted: 'a fork of a sandbox whose registry credential is not in its own create request',
  })
}

type Copy = Parameters<typeof createSandbox>[2]

async function createAll(deps: ForkDeps, caller: Caller, copies: readonly Copy[]): Promise<readonly Sandbox[]> {
  const created = await Promise.allSettled(copies.map((copy) => createSandbox(deps, caller, copy)))
  const failed = created.find(({ status }) => status === 'rejected')
  const made = created.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
  if (failed?.status !== 'rejected') return made
  for (const { id } of made) await deleteSandbox(deps, caller, { id })
  throw failed.reason
}

/** Makes a snapshot without a name. Rejects with a problem if there is none in the end. */
async function madeSnapshot(deps: ForkDeps, caller: Caller, { sandbox_id, signal }: ForkCommand): Promise<Snapshot> {
  const how = { name: null, labels: {}, replaces: false, records_integrity: false }
  const { id, operation_id } = await createSnapshot(deps, caller, { ...how, sandbox_id })
  let sleeper = new AbortController()
  const unsubscribe = deps.notifications.subscribe(snapshotTopic(id), () => {
    sleeper.abort(NOTIFIED)
  })
  const untilMs = deps.clock.monotonicMs() + SNAPSHOT_LIMIT_MS
  try {
    for (;;) {
      const { aborted } = signal
      const found = await deps.db.asOrg(caller.org_id, (q) => snapshots.findByOperation(q, caller.org_id, operation_id))
      if (found?.status === 'succeeded') return found
      if (found === null || found.status === 'failed') throw notCopied(found?.error ?? null)
      if (aborted || deps.clock.monotonicMs() > untilMs)
        throw notCopied({ code: 'timeout', message: 'its worker takes too long' })
      if (!sleeper.signal.aborted) await interruptibleSleep(deps.clock, POLL_MS, sleeper.signal, signal)
      sleeper = new AbortController()
    }
  } finally {
    unsubscribe()
  }
}

/** The problem for a disk that was not copied, by why its snapshot failed. */
function notCopied(error: Snapshot['error']): Problem {
  if (error?.code === 'no_disk') return hasNoDisk('never started')
  const message = `the disk of the sandbox could not be copied: ${error?.message ?? 'the copy is gone'}`
  if (error?.code === 'quota_exceeded') return new Problem('quota_exceeded', { message })
  return error?.code === 'unsupported'
    ? new Problem('invalid_sandbox_config', { message: `invalid sandbox config: ${message}` })
    : new Problem('unavailable', { message, retryAfterSeconds: 5 })
}
