import { posix } from 'node:path'
import { Writable, type Readable } from 'node:stream'
import { finished } from 'node:stream/promises'
import { VolumeFileError, type VolumeFile } from '../../../../contract/volumes/volume-protocol.ts'
import { parseVolumePath } from '../../../../domain/volumes/volume-path.ts'
import type { Random } from '../../../../lib/random.ts'
import type { GuestProcess } from '../../../channel/guest.ts'
import { conflictError, invalidPathError } from '../../../volumes/file-errors.ts'
import { isTemporaryName, newTemporaryName } from '../../../volumes/temporary-files.ts'
import type { ClaimFiles } from '../claim.ts'
import { readContent } from './file-content.ts'
import { describe, readList, readUnlisted } from './folder-entries.ts'
import { readReply, readReplyWhile, type AskedPaths } from './tool-reply.ts'

type ClaimFilesInput = {
  /** Starts `guest/volume.pl` with an operation and its arguments where the volume is mounted. */
  readonly start: (operation: readonly string[]) => Promise<GuestProcess>
  readonly random: Random
  /** The user that sandboxes see as 0. Default: 0. */
  readonly uidShift?: number
}

/** How long an operation may take that transfers no content, as on a machine's folders. */
const OPERATION_LIMIT_MS = 600_000
/** The most that the result of an operation may have that is read as a whole: a sandbox may have filled a folder with symlinks. */
const RESULT_MAX_BYTES = 4 * 1024 * 1024
/** How long an operation may take to remove its unfinished file. */
const CLEAN_UP_LIMIT_MS = 10_000
const SIGKILL = 9
const PIECE_BYTES = 1024 * 1024
const END = Buffer.alloc(4)

/**
 * Creates the file operations of a volume that only a Pod has mounted: each is a process in it. They have the meaning
 * of `makeVolumeFiles`.
 */
export function makeClaimFiles({ start, random, uidShift = 0 }: ClaimFilesInput): ClaimFiles {
  const ask = async (operation: readonly string[], paths: AskedPaths): Promise<Buffer> => {
    const process = await start(operation)
    process.stdin.end()
    const limit = setTimeout(() => {
      process.signal(SIGKILL)
    }, OPERATION_LIMIT_MS)
    const result: Buffer[] = []
    let sizeBytes = 0
    try {
      const isWhole = await readReplyWhile(process, paths, (piece) => {
        result.push(piece)
        sizeBytes += piece.length
        return sizeBytes <= RESULT_MAX_BYTES
      })
      if (!isWhole)
        throw conflictError(paths[0], `holds too much for one answer: more than ${String(RESULT_MAX_BYTES)} bytes`)
      return Buffer.concat(result)
    } finally {
      clearTimeout(limit)
    }
  }
  const list = async (path: string, { refusesNames = false } = {}): Promise<readonly VolumeFile[]> => {
    const at = parsePath(path)
    const process = await start(['list', at])
    process.stdin.end()
    return await readList(process, { at, path, uidShift, refusesNames })
  }
  const stat = async (path: string): Promise<VolumeFile> => {
    const at = parsePath(path)
    return describe(`/${at}`, await ask(['stat', at], [path]), uidShift)
  }
  return {
    list: (path) => list(path),
    async listToCopy(path) {
      const links = readUnlisted(await ask(['unlisted', parsePath(path)], [path]), path)
      const files = await list(path, { refusesNames: true })
      return { links, files: files.filter((file) => !links.has(posix.basename(file.path))) }
    },
    stat,
    async exists(path) {
      try {
        await stat(path)
        return true
      } catch (error) {
        if (error instanceof VolumeFileError && error.code === 'volume_file_not_found') return false
        throw error
      }
    },
    async read(path) {
      const process = await start(['read', parsePath(path)])
      process.stdin.end()
      return await readContent(process, path)
    },
    async write(path, content) {
      const process = await start(['write', parsePath(path), newTemporaryName(random)])
      return await write(process, { path, content })
    },
    mkdir: async (path) => void (await ask(['mkdir', parsePath(path)], [path])),
    copy: async (from, to) =>
      void (await ask(['copy', parsePath(from), parsePath(to), newTemporaryName(random)], [from, to])),
    rename: async (from, to) => void (await ask(['rename', parsePath(from), parsePath(to)], [from, to])),
    remove: async (path, { isRecursive }) =>
      void (await ask(['remove', parsePath(path), isRecursive ? '1' : '0'], [path])),
  }
}

/** The path for the operation: without a slash in front, and empty for the root. */
function parsePath(path: string): string {
  const parsed = parseVolumePath(path)
  if ('refused' in parsed) throw new VolumeFileError('invalid_volume_path', parsed.refused)
  if (parsed.names.some(isTemporaryName))
    throw invalidPathError(path, 'names with this prefix are reserved for files that are being written')
  return parsed.names.join('/')
}

/** Sends content in pieces, at the pace of the process. If it refuses, the rest of `content` stays unread and the stream stays open. */
async function write(
  process: GuestProcess,
  { path, content }: { readonly path: string; readonly content: Readable },
): Promise<{ readonly sizeBytes: number }> {
  let result: Buffer = Buffer.alloc(0)
  const replied = readReply(process, [path], (piece) => {
    result = Buffer.concat([result, piece])
  })
  const pieces = new Writable({
    write(chunk: Buffer, _encoding, done) {
      process.stdin.write(framed(chunk), done)
    },
  })
  let brokenBy: Error | null = null
  const arrived = finished(content, { writable: false }).catch((error: unknown) => {
    brokenBy = new Error(`the content for '${path}' ended early`, { cause: error })
    throw brokenBy
  })
  try {
    await Promise.race([Promise.all([arrived, finished(content.pipe(pieces))]), replied])
    process.stdin.end(END)
    await replied
    return { sizeBytes: Number(result.readBigUInt64BE(0)) }
  } catch (error) {
    process.stdin.end() // without the end of the content: the unfinished file is removed
    const limit = setTimeout(() => {
      process.signal(SIGKILL)
    }, CLEAN_UP_LIMIT_MS)
    const refusal: unknown = await replied.then(
      () => null,
      (reason: unknown) => reason,
    )
    clearTimeout(limit)
    throw brokenBy ?? refusal ?? error
  } finally {
    content.unpipe(pieces)
    pieces.destroy()
  }
}

/** The pieces of a chunk, each after its length. */
function framed(chunk: Buffer): Buffer {
  const pieces: Buffer[] = []
  for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
    const piece = chunk.subarray(at, at + PIECE_BYTES)
    const length = Buffer.alloc(4)
    length.writeUInt32BE(piece.length)
    pieces.push(length, piece)
  }
  return Buffer.concat(pieces)
}
