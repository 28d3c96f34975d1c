import type { Socket } from 'node:net'
import { KEPT, keepWhile } from '../connection-memory.ts'
import type { BodyBudget } from './body-budget.ts'
import type { ServedRequests } from './intercepted-connection.ts'
import { renderDenial, RequestRefused } from '../request-refused.ts'
import { makeRequestStream, type RequestStream } from './request-stream.ts'
import { firstOf, writeAll, type WriteBounds } from './sockets.ts'
import { makeUpgradeReader } from './upgrade-response.ts'

const DENIAL_LIMIT_MS = 2_000
/** How long one side may be silent after the other side ended. */
const HALF_CLOSED_LIMIT_MS = 60_000

type Options = ServedRequests & {
  readonly budget: BodyBudget
  /** Whether the client speaks something else than HTTP. */
  readonly isOpaque: boolean
}

/** Serves the HTTP/1 requests of a connection, or its other bytes, until one side ends. */
export async function serveHttp1({
  guest,
  rules,
  connectServer,
  budget,
  memory,
  turn,
  isOpaque,
  onRefused,
}: Options): Promise<void> {
  const stream = makeRequestStream({ ...rules, budget, isOpaque })
  const bounds = { memory, readAheadBytes: KEPT.readAhead }
  const upgrade = Promise.withResolvers<boolean>()
  let upstream = null as Socket | null
  let response = null as Promise<void> | null
  let hasResponse = false
  let idleTimer: NodeJS.Timeout | undefined
  let releaseHeld = memory.reserve(0)
  guest.on('close', () => upstream?.destroy())
  try {
    for await (const bytes of guest.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      await forward(stream.push(bytes), bytes)
      if (guest.destroyed) break
      if (!stream.awaitsUpgrade()) continue
      const isAccepted = await keepWhile(memory, KEPT.readAhead, () => upgrade.promise)
      await forward(stream.finishUpgrade(isAccepted), bytes)
    }
    upstream?.setTimeout(HALF_CLOSED_LIMIT_MS, () => upstream?.destroy())
    upstream?.end()
    await response
  } catch (error) {
    if (!(error instanceof RequestRefused)) throw error
    upstream?.destroy()
    onRefused(error)
    if (!hasResponse) await deny(guest, stream, error)
  } finally {
    clearTimeout(idleTimer)
    releaseHeld()
    stream.close()
    upstream?.destroy()
  }

  /** Forwards the requests in a piece, in a turn of the sandbox each. */
  async function forward(steps: Iterable<readonly Buffer[]>, piece: Buffer): Promise<void> {
    const keptBytes = (): number => piece.length + guest.readableLength
    const before = stream.requests()
    await turn(keptBytes)
    if (guest.destroyed) return
    for (const output of steps) {
      clearTimeout(idleTimer)
      releaseHeld()
      releaseHeld = memory.reserve(stream.heldBytes())
      if (stream.keepsBody()) idleTimer = setTimeout(() => guest.destroy(), budget.idleLimitMs)
      if (stream.takeContinue() && !hasResponse) guest.write('HTTP/1.1 100 Continue\r\n\r\n')
      if (output.length > 0) await send(output)
      if (guest.destroyed) return
      if (stream.requests() > before + 1) await turn(keptBytes)
    }
  }

  async function send(output: readonly Buffer[]): Promise<void> {
    upstream ??= await connectServer([])
    if (guest.destroyed) return
    response ??= relayResponses(upstream, guest, {
      bounds,
      turn,
      onBegin: noteResponse,
      onUpgrade: upgrade.resolve,
      onRefused,
    })
    await writeAll(upstream, output, bounds)
  }

  function noteResponse(): void {
    hasResponse = true
  }
}

type ResponseOptions = Pick<ServedRequests, 'turn' | 'onRefused'> & {
  readonly bounds: WriteBounds
  readonly onBegin: () => void
  readonly onUpgrade: (isAccepted: boolean) => void
}

/** Copies responses unchanged. */
async function relayResponses(
  upstream: Socket,
  guest: Socket,
  { bounds, turn, onBegin, onUpgrade, onRefused }: ResponseOptions,
): Promise<void> {
  const readUpgrade = makeUpgradeReader()
  let answer: boolean | null = null
  try {
    for await (const bytes of upstream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      await turn(() => bytes.length + upstream.readableLength)
      onBegin()
      if (answer === null) {
        answer = readUpgrade(bytes)
        if (answer !== null) onUpgrade(answer)
      }
      await writeAll(guest, [bytes], bounds)
    }
    guest.setTimeout(HALF_CLOSED_LIMIT_MS, () => guest.destroy())
    guest.end()
  } catch (error) {
    if (error instanceof RequestRefused) onRefused(error)
    guest.destroy()
  } finally {
    onUpgrade(false)
  }
}

/** Only the first request of a connection is answered, because a response to another one may be under way. */
async function deny(guest: Socket, stream: RequestStream, refused: RequestRefused): Promise<void> {
  const { context, violation } = refused
  if (stream.requests() !== 1 || context.method === null || context.method === 'HEAD') return
  if (violation?.action === 'block_and_terminate') return
  guest.end(renderDenial(refused))
  // Closing with unread bytes would reset the connection, and the client would lose the reply.
  guest.resume()
  const timer = setTimeout(() => guest.destroy(), DENIAL_LIMIT_MS)
  await firstOf(guest, ['end', 'close'])
  clearTimeout(timer)
}
