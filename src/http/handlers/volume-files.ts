import { Readable } from 'node:stream'
import { OPERATIONS } from '../../contract/operations.ts'
import type { VOLUME_FILE_OPERATIONS } from '../../contract/volumes/file-operations.ts'
import {
  decodeVolumePath,
  VOLUME_PATH_HEADER,
  VOLUME_RECURSIVE_HEADER,
} from '../../contract/volumes/volume-protocol.ts'
import type { VolumeRef } from '../../control/volumes/read-volumes.ts'
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
import { asId, type VolumeId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { isUuid } from '../../lib/uuid.ts'
import { messageReply, refuseField, type AuthenticatedRequest, type Handler, type HandlerFactory } from './handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'

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
  if (id === 'default') return id
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
