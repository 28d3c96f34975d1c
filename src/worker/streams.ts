import { pipeline } from 'node:stream/promises'
import type { VolumeFiles } from '../contract/volume-protocol.ts'
import type { StreamTicket, WantedVolume } from '../contract/worker-protocol.ts'
import type { Log } from '../lib/log.ts'
import type { ControlPlane } from './control-plane.ts'
import type { Driver } from './drivers/driver.ts'
import { serveVolume } from './volumes/serve-volume.ts'

export type StreamDeps = {
  readonly controlPlane: ControlPlane
  readonly driver: Driver
  readonly log: Log
  readonly openFiles: (volume: WantedVolume) => Promise<VolumeFiles>
  /** Called after each request that may have changed what a volume holds. */
  readonly onFilesChanged: () => void
}

type TicketOf<Kind extends StreamTicket['kind']> = Extract<StreamTicket, { readonly kind: Kind }>

/** Dials in with a ticket and serves what it asks for; resolves when either side has ended. */
export function serveStream(deps: StreamDeps, ticket: StreamTicket, signal: AbortSignal): Promise<void> {
  return ticket.kind === 'agent' ? joinChannel(deps, ticket, signal) : serveFiles(deps, ticket, signal)
}

/** Joins the stream to a run's command channel. */
async function joinChannel(
  deps: StreamDeps,
  { ticket, run_id }: TicketOf<'agent'>,
  signal: AbortSignal,
): Promise<void> {
  // Both at once: neither needs the other, and a client waits for the sum otherwise.
  const [client, channel] = await bothOrNone(deps.controlPlane.dial(ticket, signal), deps.driver.openChannel(run_id))
  try {
    await Promise.race([pipeline(client, channel, { signal }), pipeline(channel, client, { signal })])
  } catch (error) {
    if (!isHangUp(error)) throw error
  } finally {
    client.destroy()
    channel.destroy()
  }
}

/** Answers requests for the files of a volume. */
async function serveFiles(
  deps: StreamDeps,
  { ticket, volume }: TicketOf<'volume'>,
  signal: AbortSignal,
): Promise<void> {
  const opening = deps.openFiles(volume).then((files) => ({ files, destroy: () => undefined }))
  const [client, { files }] = await bothOrNone(deps.controlPlane.dial(ticket, signal), opening)
  const hangUp = (): void => {
    client.destroy()
  }
  signal.addEventListener('abort', hangUp, { once: true })
  if (signal.aborted) hangUp() // while it was being opened
  try {
    await serveVolume(client, files, { log: deps.log, onChanged: deps.onFilesChanged })
  } catch (error) {
    if (!isHangUp(error)) throw error
  } finally {
    signal.removeEventListener('abort', hangUp)
    client.destroy()
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
