import { readFileSyncOrNull } from '../../lib/files.ts'

/** The column of the sent bytes in `/proc/net/dev`, after eight columns about received packets. */
const SENT_BYTES = 8

/**
 * Reads what the interfaces in the network namespace of a process received and sent, without the loopback interface. Null: there is
 * no such process.
 */
export function readInterfaceCounters(pid: number | null): {
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
} {
  const text = pid === null ? null : readFileSyncOrNull(`/proc/${String(pid)}/net/dev`)
  if (text === null) return { receivedBytes: null, sentBytes: null }
  let [receivedBytes, sentBytes] = [0, 0]
  for (const [, name, counters = ''] of text.matchAll(/^ *([^:\n]+): *(.*)$/gm)) {
    if (name === 'lo') continue
    const values = counters.split(/ +/).map(Number)
    receivedBytes += values[0] ?? 0
    sentBytes += values[SENT_BYTES] ?? 0
  }
  return { receivedBytes, sentBytes }
}
