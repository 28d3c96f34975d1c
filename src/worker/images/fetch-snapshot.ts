import { createWriteStream } from 'node:fs'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { createWebSocketStream, type WebSocket } from 'ws'
import type { SnapshotId } from '../../domain/ids.ts'
import type { Log } from '../../lib/log.ts'
import { makeSingleFlight } from '../../lib/turns/single-flight.ts'
import { StartError } from '../start-error.ts'
import type { Image } from './image.ts'
import type { ImageStore } from './image-store.ts'
import { openTempFolders } from './temp-folders.ts'

/** Opens a WebSocket that carries the files of a snapshot of another worker. */
export type OpenSnapshotFiles = (snapshot: SnapshotId, signal: AbortSignal) => Promise<WebSocket>

type FetchInput = {
  readonly images: Pick<ImageStore, 'load' | 'remove'>
  /** The folder for archives while they arrive. */
  readonly dir: string
  /** Null while the worker has no control plane. */
  readonly openFiles: () => OpenSnapshotFiles | null
  readonly log: Log
}

/**
 * Makes the function that gets the files of another worker's snapshot, as an image without a reference. Its layers stay if a disk is made
 * over them within minutes. Starts from the same snapshot share a transfer. Rejects with `StartError`.
 */
export async function makeSnapshotFetcher({
  images,
  dir,
  openFiles,
  log,
}: FetchInput): Promise<(snapshot: SnapshotId, signal: AbortSignal) => Promise<Image>> {
  const temp = await openTempFolders(dir, log)
  const flights = makeSingleFlight<Image>()

  const fetch = async (snapshot: SnapshotId, signal: AbortSignal): Promise<Image> => {
    const open = openFiles()
    if (open === null) throw new StartError('disk', 'the snapshot is not on this worker')
    return await temp.use(async (folder) => {
      const archive = join(folder, 'snapshot.tar')
      await pipeline(createWebSocketStream(await open(snapshot, signal)), createWriteStream(archive, { mode: 0o600 }), {
        signal,
      })
      const reference = `localhost/fetched-snapshot:${snapshot}`
      try {
        return await images.load(archive, reference, signal)
      } finally {
        await images.remove(reference)
      }
    })
  }
  return async (snapshot, signal) => {
    try {
      return await flights.join(snapshot, (shared) => fetch(snapshot, shared), signal).result
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof StartError) throw error
      throw new StartError('disk', 'the snapshot could not be fetched from the worker that has it; try again', error)
    }
  }
}
