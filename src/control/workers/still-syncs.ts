/**
 * Syncs that say nothing new, which most of them do: a fleet of 10,000 workers makes a thousand of them a second. One costs
 * a comparison here and a row of a statement that many share, in which the database compares all that an answer would be
 * made of. Nothing is believed from memory: what is remembered here only says what to compare with.
 */
import type { SyncRequest } from '../../contract/workers/worker-protocol.ts'
import { hashSecret } from '../../domain/orgs/api-key.ts'
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import { makeBatch } from '../../lib/batch.ts'
import * as stillWorkers from '../../store/workers/still-workers.ts'
import type { BaseDeps } from '../deps.ts'
import { layersWithoutRunOf } from './take-plain.ts'
import type { KnownByWorker, WorkerNotice } from './worker-sync.ts'

/** A report as far as it can be compared without reading it. */
export type ReportMark = {
  readonly worker_id: string
  readonly life: string
  readonly seq: number
  /** Of all of the report but for its place in its life. */
  readonly digest: string
}

/** A sync whose report is the same as the one before, as far as this process saw it. */
export type StillSync = {
  readonly worker: WorkerId
  /** What the report before said that the worker knows, and what the worker was told of itself then. */
  readonly report: KnownByWorker
  readonly told: WorkerNotice
  /**
   * Takes the report in by prolonging the lease, if nothing has changed in the database either. False: it must be taken in
   * as any other.
   */
  renew(): Promise<boolean>
}

export interface StillSyncs {
  /** The sync of a report that says nothing new under this credential; null: it must be read. */
  find(credential: string, mark: ReportMark): StillSync | null
  /** Gets ready to remember a report that was read. */
  note(credential: string, mark: ReportMark, report: SyncRequest): StillNote
}

/** Remembers a report that moved nothing and to which nothing was to be told but `told`; `print`: as it was taken in. */
export type StillNote = (print: string, told: WorkerNotice) => void

type Known = {
  readonly worker: WorkerId
  readonly credentialSha256: Buffer
  readonly mark: ReportMark
  readonly report: KnownByWorker
  readonly told: WorkerNotice
  readonly resting: readonly SandboxId[]
  readonly print: string
}

/** The most workers that are remembered; a fleet beyond it is served, at a higher cost. */
const KNOWN_MAX = 100_000
/** More sandboxes at rest than this are not compared again and again. */
const RESTING_MAX = 1_000
/** One batch at a time, so that what comes meanwhile goes together. */
const BATCH_MAX = 1_000
/** From one batch to the next: a lease of 30 s does not feel it, and the database commits 10 times a second at most. */
const GATHER_MS = 100

/** Remembers nothing yet. */
export function makeStillSyncs({ db, clock }: Pick<BaseDeps, 'db' | 'clock'>): StillSyncs {
  const known = new Map<string, Known>()
  const renew = makeBatch<stillWorkers.StillReport, boolean>({
    run: async (reports) => {
      const now = clock.now()
      const expiresAt = new Date(now.getTime() + WORKER_LEASE_MS)
      const { rows } = await db.commitStatement<{ readonly id: WorkerId }>(
        'system',
        stillWorkers.renewal(reports, { now, expiresAt }),
      )
      const renewed = new Set(rows.map(({ id }) => id))
      return reports.map(({ worker_id }) => renewed.has(worker_id))
    },
    groupOf: () => 'all',
    maxItems: BATCH_MAX,
    maxInFlight: 1,
    pauseAfter: () => clock.sleep(GATHER_MS),
  })

  const isSame = ({ mark, credentialSha256 }: Known, credential: string, { life, seq, digest }: ReportMark): boolean =>
    mark.digest === digest && mark.life === life && mark.seq < seq && credentialSha256.equals(hashSecret(credential))

  return {
    find(credential, mark) {
      const found = known.get(mark.worker_id)
      if (found === undefined || !isSame(found, credential, mark)) return null
      const { worker, report, told, credentialSha256, resting, print } = found
      return {
        worker,
        report,
        told,
        async renew() {
          const { life, seq } = mark
          const last_seq = found.mark.seq
          const isRenewed = await renew({ worker_id: worker, credentialSha256, life, last_seq, seq, resting, print })
          if (!isRenewed) known.delete(mark.worker_id)
          else if (known.get(mark.worker_id) === found) known.set(mark.worker_id, { ...found, mark })
          return isRenewed
        },
      }
    },
    note(credential, mark, report) {
      known.delete(mark.worker_id)
      return (print, told) => {
        const resting = layersWithoutRunOf(report)
        // Volumes that many workers share are no part of what is compared.
        if (report.storage.is_shared || resting.length > RESTING_MAX) return
        if (known.size >= KNOWN_MAX) known.clear()
        const { worker_id: worker, known_version, known_volumes_version, dialled } = report
        const knows = { known_version, known_volumes_version, dialled }
        const credentialSha256 = hashSecret(credential)
        known.set(mark.worker_id, { worker, credentialSha256, mark, report: knows, told, resting, print })
      }
    },
  }
}
