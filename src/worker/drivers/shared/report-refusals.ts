import type { RunOutcome } from '../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../domain/ids.ts'
import type { SandboxLogLevel } from '../../../domain/spec/spec.ts'
import type { EgressRefusal } from '../../egress/messages.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../logs/lifecycle-lines.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { SandboxLogs } from '../../logs/logs.ts'
import type { SandboxNetworks } from '../../network/sandbox-network.ts'
import type { Driver } from '../driver.ts'
import { logFieldsOf, type RunRecord } from './run-records.ts'

type RefusalContext = {
  readonly networks: Pick<SandboxNetworks, 'onRefused'>
  readonly records: { readonly read: (run: RunId) => RunRecord<unknown> | null }
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly log: Log
  readonly clock: Clock
}

/** How a run ends whose secret demands it. */
const TERMINATED: RunOutcome = { kind: 'signalled', signal: 'SIGKILL' }

/** The most lines about refusals in a minute of one run. A program that tries again and again would fill the log. */
const LINES_PER_MINUTE = 20
const MINUTE_MS = 60_000

/**
 * Writes to the log of a sandbox why its connections were cut, and to the worker's log which placeholders left where they must
 * not. Stops the run if a secret demands that the sandbox ends.
 */
export function reportRefusals(
  { networks, records, logs, log, clock }: RefusalContext,
  { stop }: Pick<Driver, 'stop'>,
): void {
  const minutes = new Map<RunId, { startedMs: number; lines: number }>()

  function mayWrite(run: RunId): boolean {
    const now = clock.monotonicMs()
    for (const [one, { startedMs }] of minutes) if (now - startedMs >= MINUTE_MS) minutes.delete(one)
    const minute = minutes.get(run) ?? { startedMs: now, lines: 0 }
    minutes.set(run, minute)
    minute.lines += 1
    return minute.lines <= LINES_PER_MINUTE
  }

  networks.onRefused((run, refusal) => {
    const record = records.read(run)
    if (record === null) return
    const action = refusal.violation?.action ?? null
    const level = levelOf(refusal)
    if (level !== null && mayWrite(run)) {
      const text = describeRefusal(refusal)
      writeSystemLine(logs.writerOf(record.sandbox_id), record.log_level, LIFECYCLE_LINES.refused(level, text))
      if (refusal.violation !== null)
        log.warn({ ...logFieldsOf(record), ...refusal }, 'a connection of a sandbox was cut')
    }
    if (action !== 'block_and_terminate') return
    stop(run, 0, TERMINATED).catch((error: unknown) => {
      log.error({ error, ...logFieldsOf(record) }, 'a sandbox whose secret demands its end could not be stopped')
    })
  })
}

function levelOf({ violation }: EgressRefusal): SandboxLogLevel | null {
  if (violation === null) return 'info'
  return { block: null, block_and_log: 'warn' as const, block_and_terminate: 'error' as const }[violation.action]
}

/** Describes a refusal. It has no value of a secret, and no query of a request. */
export function describeRefusal({ reason, violation, destination, sni, request }: EgressRefusal): string {
  const host = request?.host ?? sni
  const to = `${destination.address}:${String(destination.port)}${host === null ? '' : ` (${host})`}`
  const method = request?.method ?? null
  const during = method === null ? '' : ` during ${method} ${request?.path ?? ''}`
  const found =
    violation === null
      ? ''
      : `: ${violation.placeholder} of ${violation.env_var} in the ${violation.location} (${violation.form})`
  return `connection to ${to} refused${during}: ${reason}${found}`
}
