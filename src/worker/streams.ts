import { pipeline } from 'node:stream/promises'
import type { RunId } from '../domain/ids.ts'
import type { ControlPlane } from './control-plane.ts'
import type { Driver } from './drivers/driver.ts'

/** Dials in with a ticket and joins the stream to the run's command channel; resolves when either side has ended. */
export async function serveStream(
  deps: { readonly controlPlane: ControlPlane; readonly driver: Driver },
  stream: { readonly ticket: string; readonly run_id: RunId },
  signal: AbortSignal,
): Promise<void> {
  // Both at once: neither needs the other, and a client waits for the sum otherwise.
  const [client, channel] = await bothOrNone(
    deps.controlPlane.dial(stream.ticket, signal),
    deps.driver.openChannel(stream.run_id),
  )
  try {
    await Promise.race([pipeline(client, channel, { signal }), pipeline(channel, client, { signal })])
  } catch (error) {
    if (!isHangUp(error)) throw error
  } finally {
    client.destroy()
    channel.destroy()
  }
}

type Destroyable = { destroy(): void }

async function bothOrNone<A extends Destroyable, B extends Destroyable>(a: Promise<A>, b: Promise<B>): Promise<[A, B]> {
  const [first, second] = await Promise.allSettled([a, b])
  if (first.status === 'fulfilled' && second.status === 'fulfilled') return [first.value, second.value]
  if (first.status === 'fulfilled') first.value.destroy()
  if (second.status === 'fulfilled') second.value.destroy()
  throw new Error('a stream could not be joined', {
    cause: first.status === 'rejected' ? first.reason : second.status === 'rejected' ? second.reason : undefined,
  })
}

/** A client that is done drops the connection; that is how every channel ends (agent protocol, section 1). */
function isHangUp(error: unknown): boolean {
  if (!(error instanceof Error) || !('code' in error)) return false
  return error.code === 'ERR_STREAM_PREMATURE_CLOSE' || error.code === 'ABORT_ERR' || error.code === 'ECONNRESET'
}
