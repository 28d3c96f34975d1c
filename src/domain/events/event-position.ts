/**
 * A place in the stream of events. The events of the transactions from `from` to before `to` are read together, in the
 * order of their ids, and `after` is the last of them that was delivered. `epoch` names what counts the transactions:
 * see `event-windows.ts`.
 */
export type EventPosition = {
  readonly epoch: string
  readonly from: bigint
  readonly to: bigint
  readonly after: string
}

const SHAPE = /^([\d-]{1,60})\.(\d{1,20})\.(\d{1,20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/
const XID_MAX = 2n ** 64n

/** Formats a position as the id of an event in a stream. Clients take it as it is. */
export function formatPosition({ epoch, from, to, after }: EventPosition): string {
  return `${epoch}.${String(from)}.${String(to)}.${after}`
}

/** Parses a position. Null: it is malformed. */
export function parsePosition(text: string): EventPosition | null {
  const [, epoch = '', from = '0', to = '0', after = ''] = SHAPE.exec(text) ?? []
  if (after === '' || BigInt(from) >= BigInt(to) || BigInt(to) >= XID_MAX) return null
  return { epoch, from: BigInt(from), to: BigInt(to), after }
}
