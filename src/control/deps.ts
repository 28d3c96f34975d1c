import type { Duplex } from 'node:stream'
import type { WebSocket } from 'ws'
import type { StreamPurpose } from '../contract/workers/worker-protocol.ts'
import type { Caller } from '../domain/orgs/caller.ts'
import type { ApiKeyId, OrgId, SandboxId, WorkerId } from '../domain/ids.ts'
import type { PlacementPolicy } from '../domain/workers/placement.ts'
import type { Sandbox } from '../domain/sandboxes/sandbox.ts'
import type { Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Random } from '../lib/random.ts'
import type { Seal } from '../lib/seal.ts'
import type { Semaphore } from '../lib/semaphore.ts'
import type { Uuids } from '../lib/uuid.ts'
import type { Admission } from '../store/sandboxes/admissions.ts'
import type { Database } from '../store/postgres/database.ts'
import type { Notifications } from '../store/postgres/notifications.ts'
import type { AdmissionResult } from './sandboxes/admit-batch.ts'
import type { IdempotencyClaims } from './requests/idempotency-claims.ts'
import type { Deletion, DeletionResult } from './sandboxes/delete-batch.ts'
import type { ExplainWaiting } from './sandboxes/explain-waiting.ts'
import type { ConcurrencyLimit } from './streams/concurrency-limit.ts'
import type { BatchedTransition, Transition } from './sandboxes/transition.ts'
import type { WaitHub } from './sandboxes/wait-hub.ts'
import type { RecordReportInBatch } from './workers/take-plain.ts'
import type { CallerWatch, WatchOptions } from './streams/watch-caller.ts'

/** What the use cases stand on. Each asks for the part of it that it needs. */
export type ControlDeps = {
  readonly db: Database
  readonly clock: Clock
  readonly random: Random
  readonly uuids: Uuids
  readonly log: Log
  readonly seal: Seal
  readonly notifications: Notifications
  /** How many requests may wait for a sandbox at once. */
  readonly waits: Semaphore
  /** Where they wait. */
  readonly waitHub: WaitHub
  /** The Idempotency-Keys whose requests this process serves. */
  readonly claims: IdempotencyClaims
  /** Places for the log streams of this process. */
  readonly logPlaces: ConcurrencyLimit<Pick<SandboxKey, 'org_id'>>
  /** Reads one sandbox by id, together with others that are asked for at the same time. */
  readonly readSandbox: (wanted: SandboxKey) => Promise<Sandbox | null>
  /** Commits a new sandbox, together with others that arrive at the same time. */
  readonly admit: (admission: Admission) => Promise<AdmissionResult>
  /** Moves a sandbox, together with others that are asked for at the same time. */
  readonly together: (request: Transition) => Promise<BatchedTransition>
  /** Deletes a sandbox, likewise. */
  readonly remove: (removal: Deletion) => Promise<DeletionResult>
  /** Asks a worker for a stream and resolves when the worker has dialled in; null when too many wait already. */
  readonly openStream: (target: StreamTarget, signal: AbortSignal) => Promise<Duplex | null>
  /** The same for a command channel: its WebSocket, paused, so that what comes meanwhile is not lost. */
  readonly dialChannel: (target: StreamTarget, signal: AbortSignal) => Promise<WebSocket | null>
  /** Places for the command channels of this process. */
  readonly channelPlaces: ConcurrencyLimit<SandboxKey>
  /** What the drivers of the workers offer, one list for each; `isFresh` asks anew, otherwise a moment's age is fine. */
  readonly offers: (how: { readonly isFresh: boolean }) => Promise<readonly (readonly string[])[]>
  /** Takes a worker's report in, together with others that arrive at the same time. */
  readonly takePlain: RecordReportInBatch
  /** Who a worker's credential belongs to, looked up together with others; null: nobody, or a worker that was removed. */
  readonly findWorker: (credentialSha256: Buffer) => Promise<WorkerId | null>
  /** Why a sandbox waits for a worker with room. */
  readonly explainWaiting: ExplainWaiting
  /** Keys that were just looked up. */
  readonly keyCache: KeyCache
  /** Who is watched while what it asked for goes on. */
  readonly callerWatches: CallerWatcher
  /** Has the last use of a key written down soon; the caller goes on at once. */
  readonly noteKeyUse: (use: KeyUse) => void
  readonly settings: ControlSettings
}

export type SandboxKey = { readonly org_id: OrgId; readonly id: SandboxId }
export type StreamTarget = { readonly worker_id: WorkerId; readonly asked: StreamPurpose }

export type ControlSettings = {
  /** From SIGTERM to SIGKILL when a sandbox is stopped, in milliseconds. */
  readonly stopGraceMs: number
  /** The registry that an image reference without a host means. */
  readonly defaultRegistry: string
  readonly placement: PlacementPolicy
}

/** A key that is not revoked, with whom it stands for until its expiry, by the wall clock. */
export type CachedKey = { readonly caller: Caller; readonly expires_at: Date | null }
export type KeyUse = { readonly id: ApiKeyId; readonly at: Date }

/** Watches the keys that are in use by something that lasts; `keys` counts them. See `watch-caller.ts`. */
export type CallerWatcher = { watch(caller: Caller, options?: WatchOptions): CallerWatch; readonly keys: number }

export type KeyLookup = (about: { readonly wasKnown: boolean }) => Promise<CachedKey | null>

/** Remembers keys for a moment, by the hash of their secret in base64. */
export type KeyCache = {
  /**
   * The key that is remembered, or else what `lookUp` says; who asks for the same key meanwhile gets the same answer.
   * `wasKnown`: the key was found before, not too long ago.
   */
  find(hash: string, nowMs: number, lookUp: KeyLookup): Promise<CachedKey | null>
  /** Has the next `find` look the key up. */
  forget(hash: string): void
}
