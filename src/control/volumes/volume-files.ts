import type { Readable } from 'node:stream'
import { VolumeFileError, type VolumeFile } from '../../contract/volumes/volume-protocol.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { TypedEvent } from '../../domain/events/event-types.ts'
import { Problem } from '../../domain/problem.ts'
import { parseVolumePath } from '../../domain/volumes/volume-path.ts'
import { openVolumeFiles, type OpenVolumeFiles, type VolumeFilesDeps } from './open-volume-files.ts'
import type { VolumeRef } from './read-volumes.ts'
import { recordEvent } from '../events/record-event.ts'

/**
 * The file operations on a volume. Each throws what `openVolumeFiles` does, and for the file itself `invalid_volume_path`,
 * `volume_file_not_found`, `volume_file_conflict` and `quota_exceeded`. A change is answered once its event is written.
 * `signal` is aborted when the client leaves.
 */
export type FileRequest = { readonly ref: VolumeRef; readonly path: string; readonly signal: AbortSignal }

/** What lies in a folder, sorted by path. */
export function listVolumeFiles(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest,
): Promise<readonly VolumeFile[]> {
  return withFiles(deps, caller, ask, ({ files }) => files.list(ask.path))
}

export function statVolumeFile(deps: VolumeFilesDeps, caller: Caller, ask: FileRequest): Promise<VolumeFile> {
  return withFiles(deps, caller, ask, ({ files }) => files.stat(ask.path))
}

export function volumeFileExists(deps: VolumeFilesDeps, caller: Caller, ask: FileRequest): Promise<boolean> {
  return withFiles(deps, caller, ask, ({ files }) => files.exists(ask.path))
}

/** The content of a file as a stream, which the caller reads or destroys. */
export function readVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest,
): Promise<{ readonly sizeBytes: number; readonly content: Readable }> {
  return withFiles(deps, caller, ask, ({ files }) => files.read(ask.path))
}

/** Writes a file from a stream. When the stream breaks off the old file stays. */
export function writeVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest & { readonly content: Readable },
): Promise<void> {
  return withFiles(deps, caller, ask, async ({ volume, files }) => {
    const { sizeBytes } = await files.write(ask.path, ask.content)
    const payload = { volume_id: volume.id, path: shown(ask.path), size_bytes: sizeBytes }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_written', payload })
  })
}

export function createVolumeFolder(deps: VolumeFilesDeps, caller: Caller, ask: FileRequest): Promise<void> {
  return withFiles(deps, caller, ask, async ({ volume, files }) => {
    await files.mkdir(ask.path)
    const payload = { volume_id: volume.id, path: shown(ask.path) }
    await recordFileEvent(deps, caller, { event_type: 'volume_folder_made', payload })
  })
}

/** `path` is where the copy goes. */
export function copyVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest & { readonly from: string },
): Promise<void> {
  return withFiles(deps, caller, ask, async ({ volume, files }) => {
    await files.copy(ask.from, ask.path)
    const payload = { volume_id: volume.id, path: shown(ask.path), from: shown(ask.from) }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_copied', payload })
  })
}

/** `path` is where it goes. */
export function renameVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest & { readonly from: string },
): Promise<void> {
  return withFiles(deps, caller, ask, async ({ volume, files }) => {
    await files.rename(ask.from, ask.path)
    const payload = { volume_id: volume.id, path: shown(ask.path), from: shown(ask.from) }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_renamed', payload })
  })
}

export function removeVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest & { readonly isRecursive: boolean },
): Promise<void> {
  const { isRecursive } = ask
  return withFiles(deps, caller, ask, async ({ volume, files }) => {
    await files.remove(ask.path, { isRecursive })
    const payload = { volume_id: volume.id, path: shown(ask.path), is_recursive: isRecursive }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_removed', payload })
  })
}

async function withFiles<T>(
  deps: VolumeFilesDeps,
  caller: Caller,
  ask: FileRequest,
  work: (open: OpenVolumeFiles) => Promise<T>,
): Promise<T> {
  const open = await openVolumeFiles(deps, caller, ask)
  try {
    return await work(open)
  } catch (error) {
    if (error instanceof Problem) throw error
    if (error instanceof VolumeFileError) {
      const details = { field: 'path', seen: ask.path.slice(0, SEEN_MAX_CHARS), accepted: error.message }
      throw new Problem(error.code, { message: error.message, details, cause: error })
    }
    if (ask.signal.aborted) deps.log.debug({ error }, 'a client left its file operation')
    else deps.log.warn({ error, volume_id: open.volume.id }, 'a file operation was not finished')
    const message = 'the worker of this volume could not finish the operation'
    throw new Problem('unavailable', { message, retryAfterSeconds: 1, cause: error })
  }
}

/** The most of a path that a refusal repeats, in characters. */
const SEEN_MAX_CHARS = 200

/** A path as events show it: from the root, without empty steps. */
function shown(path: string): string {
  const parsed = parseVolumePath(path)
  return 'names' in parsed ? `/${parsed.names.join('/')}` : path
}

async function recordFileEvent(deps: VolumeFilesDeps, { org_id, actor }: Caller, told: TypedEvent): Promise<void> {
  await deps.db.asOrg(org_id, (q) => recordEvent(deps, q, { org_id, actor, ...told }))
}
