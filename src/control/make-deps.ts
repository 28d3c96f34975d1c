import { makeEventFeed } from './events/event-feed.ts'
import type { WebSocket } from 'ws'
import type { SandboxKey } from '../domain/sandboxes/sandbox.ts'
import type { BaseDeps, ControlSettings } from './deps.ts'
import { makeKeyUseRecorder } from './orgs/authenticate.ts'
import { makeKeyCache } from './orgs/key-cache.ts'
import { makeIdempotencyClaims } from './requests/idempotency-claims.ts'
import type { SignedIn } from './sign-in/sessions.ts'
import type { TraceDeps } from './requests/trace-work.ts'
import { makeAdmitInBatch } from './sandboxes/placement/admit-in-batch.ts'
import { makeAdmissionPlacer } from './sandboxes/placement/place-admissions.ts'
import { makeDeleteInBatch } from './sandboxes/delete-sandbox.ts'
import { makeReadFleet } from './workers/explain-waiting.ts'
import { makeSandboxReader } from './sandboxes/read-sandboxes.ts'
import { makeWorkerAbilities } from './sandboxes/requirements/require-abilities.ts'
import { makeMoveQueue } from './sandboxes/transitions/transition-batches.ts'
import type { EventObserver, TransitionObserver } from './sandboxes/transitions/transition.ts'
import type { WaitLimit } from './sandboxes/waits/wait-for-sandbox.ts'
import { makeWaitHub } from './sandboxes/waits/wait-hub.ts'
import type { ConcurrencyLimit } from './requests/concurrency-limit.ts'
import type { StreamTarget, WorkerStreams } from './streams/open-worker-stream.ts'
import { makeNearWorkers } from './streams/near-workers.ts'
import { makeCallerWatcher } from './streams/watch-caller.ts'
import { makeReportBatches } from './workers/report-batches.ts'
import { makeSentRuns } from './workers/sent-runs.ts'
import type { WebhookSender } from './webhooks/send-message.ts'
import { makeFindWorker } from './workers/worker-join.ts'

/** The outside dependencies, limits and settings that a program passes to the control plane. */
export type ControlOptions = BaseDeps &
  WaitLimit &
  TransitionObserver &
  TraceDeps &
  EventObserver &
  WorkerStreams & {
    readonly dialChannel: (target: StreamTarget, signal: AbortSignal) => Promise<WebSocket | null>
    readonly logStreamLimit: ConcurrencyLimit<Pick<SandboxKey, 'org_id'>>
    readonly channelLimit: ConcurrencyLimit<SandboxKey>
    readonly webhooks: WebhookSender
    readonly settings: ControlSettings
  }

/** The dependencies of all use cases of a process. Each use case declares the parts that it uses. */
export type ControlDeps = ReturnType<typeof makeControlDeps>

/** Adds the caches, watchers and batches that all requests of a process share. */
export function makeControlDeps(options: ControlOptions) {
  const reader = makeSandboxReader(options)
  const admissionPlacer = makeAdmissionPlacer(options)
  return {
    ...options,
    ...reader,
    waitHub: makeWaitHub({ ...options, ...reader }),
    idempotencyClaims: makeIdempotencyClaims(options),
    admissionPlacer,
    admitInBatch: makeAdmitInBatch({ ...options, admissionPlacer }),
    moveQueued: makeMoveQueue(options),
    deleteInBatch: makeDeleteInBatch(options),
    workerAbilities: makeWorkerAbilities(options),
    readFleet: makeReadFleet(options),
    reportBatches: makeReportBatches(options),
    sentRuns: makeSentRuns(),
    findWorker: makeFindWorker(options),
    keyCache: makeKeyCache(),
    knownSessions: makeKeyCache<SignedIn>(0),
    recordKeyUse: makeKeyUseRecorder(options),
    callerWatcher: makeCallerWatcher(options),
    eventFeed: makeEventFeed(options),
    nearWorkers: makeNearWorkers(),
  }
}
