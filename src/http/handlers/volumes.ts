import { OPERATIONS } from '../../contract/operations.ts'
import type { VOLUME_OPERATIONS } from '../../contract/volumes/operations.ts'
import { getVolume, listVolumes, type VolumeRef } from '../../control/volumes/read-volumes.ts'
import { createVolume } from '../../control/volumes/create-volume.ts'
import { updateVolume } from '../../control/volumes/update-volume.ts'
import { deleteVolume } from '../../control/volumes/delete-volume.ts'
import { asId, type VolumeId } from '../../domain/ids.ts'
import { renderList } from '../../domain/json-text.ts'
import { findLabelRefusal } from '../../domain/sandboxes/labels.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { isVolumeName, renderVolume, VOLUME_NAME_RULE } from '../../domain/volumes/volume.ts'
import {
  messageReply,
  refuseField,
  taggedReply,
  type AuthenticatedRequest,
  type CallUseCase,
  type Handler,
  type HandlerFactory,
} from './handler.ts'
import { Readable } from 'node:stream'
import type { VOLUME_FILE_OPERATIONS } from '../../contract/volumes/file-operations.ts'
import {
  decodeVolumePath,
  VOLUME_PATH_HEADER,
  VOLUME_RECURSIVE_HEADER,
} from '../../contract/volumes/volume-protocol.ts'
import {
  copyVolumeFile,
  createVolumeFolder,
  listVolumeFiles,
  readVolumeFile,
  removeVolumeFile,
  renameVolumeFile,
  statVolumeFile,
  volumeFileExists,
  writeVolumeFile,
  type FileRequest,
} from '../../control/volumes/volume-files.ts'
import { Problem } from '../../domain/problem.ts'
import { isUuid } from '../../lib/uuid.ts'

/** Creates the handlers of volumes. */
export function makeVolumeHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof VOLUME_OPERATIONS, Handler> {
  return {
    list_volumes: handler(OPERATIONS.list_volumes, async (_request, { caller }) => {
      const volumes = await call(listVolumes, caller)
      return renderList(volumes.map(renderVolume))
    }),
    create_volume: handler(OPERATIONS.create_volume, async ({ body }, { caller, attempt }) => {
      const { name, capacity_gib = null } = body
      if (!isVolumeName(name)) refuseField('name', name, VOLUME_NAME_RULE)
      const labels = checkLabels(body.labels ?? {})
      return taggedReply(renderVolume(await call(createVolume, caller, { name, labels, capacity_gib, attempt })))
    }),
    get_default_volume: handler(OPERATIONS.get_default_volume, async (_request, { caller }) =>
      taggedReply(renderVolume(await call(getVolume, caller, 'host'))),
    ),
    get_volume: handler(OPERATIONS.get_volume, async ({ params }, { caller }) =>
      taggedReply(renderVolume(await call(getVolume, caller, { id: volumeIdOf(params) }))),
    ),
    update_volume: handler(OPERATIONS.update_volume, async ({ params, body }, { caller, ifMatch }) => {
      const { capacity_gib, labels } = body
      const change = {
        ifMatch,
        ...(capacity_gib === undefined ? {} : { capacity_gib }),
        ...(labels === undefined || labels === null ? {} : { labels: checkLabels(labels) }),
      }
      return taggedReply(renderVolume(await call(updateVolume, caller, volumeIdOf(params), change)))
    }),
    delete_volume: handler(OPERATIONS.delete_volume, async ({ params }, { caller, ifMatch }) => {
      await call(deleteVolume, caller, volumeIdOf(params), ifMatch)
      return messageReply('volume scheduled for deletion')
    }),
  }
}

function volumeIdOf({ id }: { readonly id: string }): VolumeId {
  return asId<VolumeId>(id.toLowerCase())
}

function checkLabels(labels: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  const refusal = findLabelRefusal(labels, 'labels')
  if (refusal !== null) throw refusalProblem(refusal)
  return labels
}

/** Creates the handlers of the files of volumes. */
export function makeVolumeFileHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof VOLUME_FILE_OPERATIONS, Handler> {
  return {
    list_volume_files: handler(OPERATIONS.list_volume_files, async ({ params }, raw) => {
      const entries = await call(listVolumeFiles, raw.caller, fileRequest(params, raw))
      return JSON.stringify({ entries })
    }),
    stat_volume_file: handler(OPERATIONS.stat_volume_file, async ({ params }, raw) => {
      const metadata = await call(statVolumeFile, raw.caller, fileRequest(params, raw))
      return JSON.stringify({ metadata })
    }),
    volume_file_exists: handler(OPERATIONS.volume_file_exists, async ({ params }, raw) => {
      const exists = await call(volumeFileExists, raw.caller, fileRequest(params, raw))
      return JSON.stringify({ exists })
    }),
    read_volume_file: handler(OPERATIONS.read_volume_file, ({ params }, raw) =>
      call(readVolumeFile, raw.caller, fileRequest(params, raw)),
    ),
    write_volume_file: handler(OPERATIONS.write_volume_file, async ({ params }, raw) => {
      const content = raw.body instanceof Readable ? raw.body : Readable.from([])
      await call(writeVolumeFile, raw.caller, { ...fileRequest(params, raw), content })
      return messageReply('file written')
    }),
    make_volume_folder: handler(OPERATIONS.make_volume_folder, async ({ params, body }, raw) => {
      const { path } = body
      await call(createVolumeFolder, raw.caller, { ref: parseVolumeRef(params), path, signal: raw.signal() })
      return messageReply('folder made')
    }),
    copy_volume_file: handler(OPERATIONS.copy_volume_file, async ({ params, body }, raw) => {
      const { from, to } = body
      await call(copyVolumeFile, raw.caller, { ref: parseVolumeRef(params), from, path: to, signal: raw.signal() })
      return messageReply('copied')
    }),
    rename_volume_file: handler(OPERATIONS.rename_volume_file, async ({ params, body }, raw) => {
      const { from, to } = body
      await call(renameVolumeFile, raw.caller, { ref: parseVolumeRef(params), from, path: to, signal: raw.signal() })
      return messageReply('renamed')
    }),
    remove_volume_file: handler(OPERATIONS.remove_volume_file, async ({ params }, raw) => {
      const isRecursive = parseRecursiveHeader(raw)
      await call(removeVolumeFile, raw.caller, { ...fileRequest(params, raw), isRecursive })
      return messageReply('removed')
    }),
  }
}

type Params = { readonly id: string }

function fileRequest(params: Params, raw: AuthenticatedRequest): FileRequest {
  return { ref: parseVolumeRef(params), path: parsePathHeader(raw), signal: raw.signal() }
}

function parseVolumeRef({ id }: Params): VolumeRef {
  if (id === 'default') return 'host'
  if (!isUuid(id)) refuseField('path.id', id, "a volume's id, or default")
  return { id: asId<VolumeId>(id.toLowerCase()) }
}

function parsePathHeader({ headers }: AuthenticatedRequest): string {
  const header = headers[VOLUME_PATH_HEADER]
  const path = typeof header === 'string' ? decodeVolumePath(header) : null
  if (path !== null) return path
  const accepted = 'base64url of UTF-8 without padding'
  throw new Problem('invalid_volume_path', {
    message: `invalid volume path: ${VOLUME_PATH_HEADER}: accepted: ${accepted}`,
    details: { field: VOLUME_PATH_HEADER, seen: header === undefined ? 'nothing' : 'another encoding', accepted },
  })
}

function parseRecursiveHeader({ headers }: AuthenticatedRequest): boolean {
  const header = headers[VOLUME_RECURSIVE_HEADER] ?? 'false'
  if (header !== 'true' && header !== 'false') refuseField(VOLUME_RECURSIVE_HEADER, header, 'true or false')
  return header === 'true'
}
