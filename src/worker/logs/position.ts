import type { LogPosition } from '../../contract/streams/log-protocol.ts'

/** Less than 0 when the first lies before the second. */
export function comparePositions(a: LogPosition, b: LogPosition): number {
  return a.generation === b.generation ? a.offset - b.offset : a.generation - b.generation
}

/** Before everything. */
export const LOG_START: LogPosition = { generation: 0, offset: 0 }
