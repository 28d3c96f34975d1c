/** The replies that are stored for an `Idempotency-Key`, in the form in which they are sealed. */
import type { Seal } from '../../lib/seal.ts'
import { LargeValue } from '../../store/postgres/large-values.ts'

/** A reply in the form in which it is stored and replayed. */
export type StoredReply = {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

/** A stored reply whose body is large: JSON text in UTF-8, in pieces. */
export type LargeStoredReply = Omit<StoredReply, 'body'> & { readonly pieces: readonly Buffer[] }

/**
 * Seals a reply. A large one has its body after a line with the rest. In JSON, its text would be escaped once more, in one
 * turn of the event loop.
 */
export async function sealReply(
  seal: Seal,
  { reply, encodedBody }: { readonly reply: StoredReply; readonly encodedBody?: readonly Buffer[] | undefined },
  context: string,
): Promise<Buffer | LargeValue> {
  if (encodedBody === undefined) return seal.seal(JSON.stringify(reply), context)
  const { body: _, ...rest } = reply
  return new LargeValue(await seal.sealInTurns([Buffer.from(`${JSON.stringify(rest)}\n`), ...encodedBody], context))
}

/** Parses what `sealReply` sealed. JSON has no line end outside of its first line. */
export function parseReply(text: string): StoredReply {
  const end = text.indexOf('\n')
  if (end === -1) return JSON.parse(text) as StoredReply // this program sealed it, and nobody else has the key
  const rest = JSON.parse(text.slice(0, end)) as Omit<StoredReply, 'body'> // so it did
  return { ...rest, body: text.slice(end + 1) }
}

/** The same in pieces. The first line is in the first of them. */
export function parseLargeReply(pieces: readonly Buffer[]): StoredReply | LargeStoredReply {
  const [first = Buffer.alloc(0), ...others] = pieces
  const end = first.indexOf('\n')
  if (end === -1) return parseReply(Buffer.concat(pieces).toString())
  const rest = JSON.parse(first.toString('utf8', 0, end)) as Omit<StoredReply, 'body'> // as above
  return { ...rest, pieces: [first.subarray(end + 1), ...others] }
}
