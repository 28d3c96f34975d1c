// What `guest/volume.pl` says of files and of what is in folders.
import { isUtf8 } from 'node:buffer'
import { VolumeFileError, type VolumeFile } from '../../../../contract/volumes/volume-protocol.ts'
import type { GuestProcess } from '../../../channel/guest.ts'
import { conflictError } from '../../../volumes/file-errors.ts'
import { describeFile, ENTRIES_LIMIT } from '../../../volumes/visible-files.ts'
import { readReplyWhile } from './tool-reply.ts'

/** Mode, user, group (u32 each), size (u64), and times in milliseconds (i64 each). */
const ATTRIBUTES_BYTES = 44

/** Describes a file by the attributes that the operations `stat` and `list` write. */
export function describe(path: string, attributes: Buffer, uidShift: number): VolumeFile {
  const [mode, uid, gid] = [0, 4, 8].map((at) => BigInt(attributes.readUInt32BE(at))) as [bigint, bigint, bigint]
  const stats = {
    mode,
    uid,
    gid,
    size: attributes.readBigUInt64BE(12),
    atimeMs: attributes.readBigInt64BE(20),
    mtimeMs: attributes.readBigInt64BE(28),
    birthtimeMs: attributes.readBigInt64BE(36),
  }
  return describeFile(path, stats, uidShift)
}

type ListOptions = {
  /** The folder as the operation has it, and as the client wrote it. */
  readonly at: string
  readonly path: string
  readonly uidShift: number
  /** Whether a name that isn't UTF-8 is refused, instead of left out: clients can't ask for it. */
  readonly refusesNames: boolean
}

/** Reads the files of a folder as they come, and ends the process at one too many. */
export async function readList(
  process: GuestProcess,
  { at, path, uidShift, refusesNames }: ListOptions,
): Promise<readonly VolumeFile[]> {
  const files: VolumeFile[] = []
  const refused: Buffer[] = []
  let received: Buffer = Buffer.alloc(0)
  const take = (piece: Buffer): boolean => {
    received = Buffer.concat([received, piece])
    let next = 0
    while (received.length - next >= 2) {
      const attributesAt = next + 2 + received.readUInt16BE(next)
      if (received.length < attributesAt + ATTRIBUTES_BYTES) break
      const name = received.subarray(next + 2, attributesAt)
      next = attributesAt + ATTRIBUTES_BYTES
      if (!isUtf8(name)) {
        if (refusesNames) refused.push(name)
        continue
      }
      const full = [...(at === '' ? [] : [at]), name.toString('utf8')].join('/')
      files.push(describe(`/${full}`, received.subarray(attributesAt, next), uidShift))
    }
    received = received.subarray(next)
    return refused.length === 0 && files.length <= ENTRIES_LIMIT
  }
  const isWhole = await readReplyWhile(process, [path], take)
  const [other] = refused
  if (other !== undefined) throw notUtf8(other, path)
  if (!isWhole) throw conflictError(path, `holds more than ${String(ENTRIES_LIMIT)} files`)
  return files.sort((a, b) => (a.path < b.path ? -1 : 1))
}

/** Reads the result of `unlisted`: the targets of a folder's symlinks, by their names. Throws `VolumeFileError` for what can't be copied. */
export function readUnlisted(result: Buffer, path: string): ReadonlyMap<string, string> {
  const links = new Map<string, string>()
  const take = (at: number): readonly [bytes: Buffer, next: number] => {
    const next = at + 2 + result.readUInt16BE(at)
    return [result.subarray(at + 2, next), next]
  }
  for (let at = 0; at < result.length;) {
    const [nameBytes, targetAt] = take(at + 1)
    const [target, next] = take(targetAt)
    const name = nameBytes.toString('utf8')
    if (result.toString('latin1', at, at + 1) !== 'l') throw refusal(`'${name}' is neither file, folder nor symlink`)
    if (!isUtf8(nameBytes)) throw notUtf8(nameBytes, path)
    if (!isUtf8(target)) throw refusal(`the target of the symlink '${name}' is not UTF-8`)
    links.set(name, target.toString('utf8'))
    if (links.size > ENTRIES_LIMIT) throw conflictError(path, `holds more than ${String(ENTRIES_LIMIT)} symlinks`)
    at = next
  }
  return links
}

function notUtf8(name: Buffer, path: string): VolumeFileError {
  return refusal(`'${name.toString('utf8')}' in '${path}' has a name that is not UTF-8`)
}

function refusal(message: string): VolumeFileError {
  return new VolumeFileError('volume_file_conflict', message)
}
