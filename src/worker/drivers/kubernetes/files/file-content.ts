import { Transform, pipeline, type Readable } from 'node:stream'
import type { GuestProcess } from '../../../channel/guest.ts'
import { readComplaint, refuse } from './tool-reply.ts'

const SIGKILL = 9
/** `+` and the size. */
const HEAD_BYTES = 9
const SUCCESS = '+'.charCodeAt(0)

/**
 * Reads the reply of the operation `read`: the size of the file, and its content as a stream. A reader that leaves ends the process. The
 * stream fails if the file becomes shorter.
 */
export async function readContent(
  process: GuestProcess,
  path: string,
): Promise<{ readonly sizeBytes: number; readonly content: Readable }> {
  const size = Promise.withResolvers<number | null>()
  let head: Buffer = Buffer.alloc(0)
  let missingBytes: number | null = null
  const content = new Transform({
    transform(piece: Buffer, _encoding, done) {
      if (missingBytes !== null) {
        missingBytes -= piece.length
        done(null, piece)
        return
      }
      head = Buffer.concat([head, piece])
      if (head[0] !== SUCCESS || head.length < HEAD_BYTES) {
        done()
        return
      }
      const sizeBytes = Number(head.readBigUInt64BE(1))
      const rest = head.subarray(HEAD_BYTES)
      missingBytes = sizeBytes - rest.length
      size.resolve(sizeBytes)
      if (rest.length > 0) this.push(rest)
      done()
    },
    flush(done) {
      if (missingBytes === 0 || missingBytes === null) done()
      else done(new Error('the file became shorter while it was read'))
    },
  })
  const complaint = readComplaint(process.stderr)
  pipeline(process.stdout, content, () => {
    size.resolve(null)
    process.signal(SIGKILL) // does nothing if it has ended
  })
  content.once('finish', () => {
    size.resolve(null)
  })
  const sizeBytes = await size.promise
  if (sizeBytes !== null) return { sizeBytes, content }
  content.destroy()
  if (head.toString('latin1', 0, 1) === '!') await refuse(head.subarray(1), [path])
  throw new Error(`the file could not be read: ${complaint.join('').trim()}`)
}
