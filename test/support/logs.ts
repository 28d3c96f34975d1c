import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { LOG_SOURCES, type LogEntry, type LogQuery } from '../../src/contract/streams/log-protocol.ts'
import type { SandboxId } from '../../src/domain/ids.ts'
import { systemClock, type Clock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { openSandboxLogs, type LogLimits } from '../../src/worker/logs/log-store.ts'
import type { SandboxLogs } from '../../src/worker/logs/logs.ts'

/** A query for all entries that a log has now. */
export const EVERYTHING: LogQuery = {
  sources: LOG_SOURCES,
  after: null,
  since: null,
  until: null,
  tail: null,
  follows: false,
}

export const LOG_LIMITS: LogLimits = { sandboxBytes: 16 * 1024 * 1024, retentionMs: 360_000_000 }

/** Opens a log store in a new folder or a given one. `remove` deletes the folder. */
export async function makeTestLogs(
  options: { readonly dir?: string; readonly limits?: Partial<LogLimits>; readonly clock?: Clock } = {},
): Promise<{ readonly logs: SandboxLogs; readonly dir: string; readonly remove: () => Promise<void> }> {
  const dir = options.dir ?? mkdtempSync(join(tmpdir(), 'sandyard-logs-'))
  const limits = { ...LOG_LIMITS, ...options.limits }
  const logs = await openSandboxLogs({ dir, limits, clock: options.clock ?? systemClock, log: makeLog('silent') })
  return {
    logs,
    dir,
    async remove() {
      await logs.close()
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** Reads all entries of a log that match a query. */
export async function readAll(
  logs: Pick<SandboxLogs, 'read'>,
  sandbox: SandboxId,
  query: Partial<LogQuery> = {},
): Promise<readonly LogEntry[]> {
  return await Array.fromAsync(logs.read(sandbox, { ...EVERYTHING, ...query }, AbortSignal.timeout(60_000)))
}

/** The text of entries, joined. */
export function textOf(entries: readonly LogEntry[]): string {
  return entries.map(({ text }) => text).join('')
}
