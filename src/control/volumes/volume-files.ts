import type { Readable } from 'node:stream'
import { VolumeFileError, type VolumeFile } from '../../contract/volumes/volume-protocol.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { TypedEvent } from '../../domain/events/event-types.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeenPath } from '../../domain/refusal.ts'
import { parseVolumePath } from '../../domain/volumes/volume-path.ts'
import { openVolumeFiles, type OpenVolumeFiles, type VolumeFilesDeps } from './open-volume-files.ts'
import type { VolumeRef } from './read-volumes.ts'
import { recordEvent } from '../events/record-event.ts'

/**
 * A request for one of the file operations below. Each operation throws the errors of `openVolumeFiles`. For the file,
 * it throws `invalid_volume_path`, `volume_file_not_found`, `volume_file_conflict` and `quota_exceeded`. An operation
 * that changes files resolves once its audit event is recorded. `signal` is aborted when the client disconnects.
 */
export type FileRequest = { readonly ref: VolumeRef; readonly path: string; readonly signal: AbortSignal }

/** The entries of a folder, sorted by path. */
export function listVolumeFiles(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest,
): Promise<readonly VolumeFile[]> {
  return withFiles(deps, caller, request, ({ files }) => files.list(request.path))
}

export function statVolumeFile(deps: VolumeFilesDeps, caller: Caller, request: FileRequest): Promise<VolumeFile> {
  return withFiles(deps, caller, request, ({ files }) => files.stat(request.path))
}

export function volumeFileExists(deps: VolumeFilesDeps, caller: Caller, request: FileRequest): Promise<boolean> {
  return withFiles(deps, caller, request, ({ files }) => files.exists(request.path))
}

/** The content of a file as a stream. Read it or destroy it. */
export function readVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest,
): Promise<{ readonly sizeBytes: number; readonly content: Readable }> {
  return withFiles(deps, caller, request, ({ files }) => files.read(request.path))
}

/** Writes a file from a stream. If the stream fails, the old file stays. */
export function writeVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest & { readonly content: Readable },
): Promise<void> {
  return withFiles(deps, caller, request, async ({ volume, files }) => {
    const { sizeBytes } = await files.write(request.path, request.content)
    const payload = { volume_id: volume.id, path: eventPath(request.path), size_bytes: sizeBytes }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_written', payload })
  })
}

export function createVolumeFolder(deps: VolumeFilesDeps, caller: Caller, request: FileRequest): Promise<void> {
  return withFiles(deps, caller, request, async ({ volume, files }) => {
    await files.mkdir(request.path)
    const payload = { volume_id: volume.id, path: eventPath(request.path) }
    await recordFileEvent(deps, caller, { event_type: 'volume_folder_made', payload })
  })
}

/** Copies `from` to `path`. */
export function copyVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest & { readonly from: string },
): Promise<void> {
  return withFiles(deps, caller, request, async ({ volume, files }) => {
    await files.copy(request.from, request.path)
    const payload = { volume_id: volume.id, path: eventPath(request.path), from: eventPath(request.from) }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_copied', payload })
  })
}

/** Renames `from` to `path`. */
export function renameVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest & { readonly from: string },
): Promise<void> {
  return withFiles(deps, caller, request, async ({ volume, files }) => {
    await files.rename(request.from, request.path)
    const payload = { volume_id: volume.id, path: eventPath(request.path), from: eventPath(request.from) }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_renamed', payload })
  })
}

export function removeVolumeFile(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest & { readonly isRecursive: boolean },
): Promise<void> {
  const { isRecursive } = request
  return withFiles(deps, caller, request, async ({ volume, files }) => {
    await files.remove(request.path, { isRecursive })
    const payload = { volume_id: volume.id, path: eventPath(request.path), is_recursive: isRecursive }
    await recordFileEvent(deps, caller, { event_type: 'volume_file_removed', payload })
  })
}

async function withFiles<T>(
  deps: VolumeFilesDeps,
  caller: Caller,
  request: FileRequest & { readonly from?: string },
  work: (open: OpenVolumeFiles) => Promise<T>,
): Promise<T> {
  const open = await openVolumeFiles(deps, caller, request)
  try {
    return await work(open)
  } catch (error) {
    if (error instanceof Problem) throw error
    if (error instanceof VolumeFileError && error.code === 'unavailable')
      throw new Problem('unavailable', { message: error.message, retryAfterSeconds: 1, cause: error })
    if (error instanceof VolumeFileError)
      throw new Problem(error.code, { message: error.message, details: detailsOf(request, error), cause: error })
    if (request.signal.aborted) deps.log.debug({ error }, 'a client disconnected during its file operation')
    else deps.log.warn({ error, volume_id: open.volume.id }, 'a file operation failed')
    const message = 'the worker of this volume failed to finish the operation'
    throw new Problem('unavailable', { message, retryAfterSeconds: 1, cause: error })
  }
}

/** The details of a refusal. Those of a copy or a rename name both paths, because the worker's message says which one it is about. */
function detailsOf({ from, path }: FileRequest & { readonly from?: string }, { code, message }: VolumeFileError) {
  const accepted = code === 'volume_file_not_found' || code === 'volume_file_conflict' ? ACCEPTED[code] : message
  const seen = describeSeenPath(path)
  if (from === undefined) return { field: 'path', seen, accepted }
  return { field: 'from, to', seen: `${describeSeenPath(from)}, ${seen}`, accepted }
}

const ACCEPTED = {
  volume_file_not_found: 'a file or folder that exists',
  volume_file_conflict: 'a path whose files and folders allow the operation',
} as const

/** Formats a path for events: from the root, without empty parts. */
function eventPath(path: string): string {
  const parsed = parseVolumePath(path)
  return 'names' in parsed ? `/${parsed.names.join('/')}` : path
}

async function recordFileEvent(deps: VolumeFilesDeps, { org_id, actor }: Caller, event: TypedEvent): Promise<void> {
  await deps.db.asOrg(org_id, (q) => recordEvent(deps, q, { org_id, actor, ...event }))
}
