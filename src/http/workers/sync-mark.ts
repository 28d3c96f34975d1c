import { hash } from 'node:crypto'
import { WORKER_PROTOCOL_VERSION } from '../../contract/workers/worker-protocol.ts'
import type { ReportMark } from '../../control/workers/still-syncs.ts'

/** How every sync of this program's own workers begins: its place in its life stands apart from all that it tells. */
const HEAD = new RegExp(
  `^\\{"protocol":${String(WORKER_PROTOCOL_VERSION)},"worker_id":"([0-9a-f-]{36})","life":"([0-9a-f-]{36})","seq":(\\d{1,15}),`,
)
const HEAD_MAX_BYTES = 200

/** What a sync can be compared by without reading it; null for one that is spelled otherwise, which must be read. */
export function markOf(body: Buffer): ReportMark | null {
  const head = HEAD.exec(body.toString('latin1', 0, HEAD_MAX_BYTES))
  const [text, worker_id, life, seq] = head ?? []
  if (text === undefined || worker_id === undefined || life === undefined || seq === undefined) return null
  // The head is compared as it is; a digest that nobody can forge stands for the rest.
  const digest = hash('sha256', body.subarray(text.length), 'base64')
  return { worker_id, life, seq: Number(seq), digest }
}
